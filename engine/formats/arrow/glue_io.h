// How Arrow gets memory and bytes inside the glue. Included by the glue only.
#pragma once

#include <arrow/buffer.h>
#include <arrow/io/interfaces.h>
#include <arrow/memory_pool.h>
#include <arrow/result.h>
#include <arrow/status.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "engine/formats/arrow/glue_abi.h"

namespace widestream {

// Counts what is allocated through it and refuses what goes over the limit, before it is touched.
class LimitedPool final : public arrow::MemoryPool {
 public:
  explicit LimitedPool(std::int64_t limit) : limit_(limit) {}

  arrow::Status Allocate(std::int64_t size, std::int64_t alignment, std::uint8_t** out) override {
    ARROW_RETURN_NOT_OK(Reserve(size));
    arrow::Status status = inner_->Allocate(size, alignment, out);
    if (!status.ok()) used_ -= size;
    return status;
  }
  arrow::Status Reallocate(std::int64_t old_size, std::int64_t new_size, std::int64_t alignment,
                           std::uint8_t** out) override {
    ARROW_RETURN_NOT_OK(Reserve(new_size - old_size));
    arrow::Status status = inner_->Reallocate(old_size, new_size, alignment, out);
    if (!status.ok()) used_ -= new_size - old_size;
    return status;
  }
  void Free(std::uint8_t* buffer, std::int64_t size, std::int64_t alignment) override {
    inner_->Free(buffer, size, alignment);
    used_ -= size;
  }
  std::int64_t bytes_allocated() const override { return used_; }
  std::int64_t total_bytes_allocated() const override { return total_; }
  std::int64_t num_allocations() const override { return allocations_; }
  std::string backend_name() const override { return "limited"; }

 private:
  arrow::Status Reserve(std::int64_t size) {
    // Compared so that no sum can overflow: used_ is never above limit_.
    if (size > limit_ - used_) {
      return arrow::Status::OutOfMemory("the page claims ", size, " bytes, with ",
                                        limit_ - used_.load(), " of ", limit_, " left");
    }
    used_ += size;
    total_ += std::max<std::int64_t>(size, 0);
    ++allocations_;
    return arrow::Status::OK();
  }

  // malloc: sanitizers see its blocks, and it gives large ones back.
  arrow::MemoryPool* const inner_ = arrow::system_memory_pool();
  const std::int64_t limit_;
  std::atomic<std::int64_t> used_{0};
  std::atomic<std::int64_t> total_{0};
  std::atomic<std::int64_t> allocations_{0};
};

// The engine's file as Arrow wants it. Keeps the engine's own error, which is better than what
// comes back through Arrow. One for each thread of use (see Open and Reader).
class CallbackFile final : public arrow::io::RandomAccessFile {
 public:
  explicit CallbackFile(const ws_arrow_file& file) : file_(file) {
    set_mode(arrow::io::FileMode::READ);
  }

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<std::int64_t> Tell() const override { return position_; }
  arrow::Status Seek(std::int64_t position) override {
    if (position < 0) return arrow::Status::Invalid("negative position");
    position_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<std::int64_t> GetSize() override {
    return static_cast<std::int64_t>(file_.size_bytes);
  }
  arrow::Result<std::int64_t> Read(std::int64_t size, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const std::int64_t got, ReadAt(position_, size, out));
    position_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(std::int64_t size) override {
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::Buffer> buffer, ReadAt(position_, size));
    position_ += buffer->size();
    return buffer;
  }
  arrow::Result<std::int64_t> ReadAt(std::int64_t position, std::int64_t size, void* out) override {
    if (position < 0 || size < 0) return arrow::Status::Invalid("negative position or size");
    const auto end = static_cast<std::int64_t>(file_.size_bytes);
    size = std::min(size, std::max<std::int64_t>(end - position, 0));
    if (size == 0) return 0;
    if (file_.read_exactly(file_.context, static_cast<std::uint64_t>(position),
                           static_cast<std::uint64_t>(size), out, &error_) != 0) {
      failed_ = true;
      return arrow::Status::IOError(error_.message);
    }
    return size;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(std::int64_t position,
                                                       std::int64_t size) override {
    if (position < 0 || size < 0) return arrow::Status::Invalid("negative position or size");
    // No more than the file has: sizes come from the file.
    const auto end = static_cast<std::int64_t>(file_.size_bytes);
    size = std::min(size, std::max<std::int64_t>(end - position, 0));
    ARROW_ASSIGN_OR_RAISE(std::shared_ptr<arrow::ResizableBuffer> buffer,
                          arrow::AllocateResizableBuffer(size, arrow::system_memory_pool()));
    ARROW_ASSIGN_OR_RAISE(const std::int64_t got, ReadAt(position, size, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

  const ws_arrow_error* error() const { return failed_ ? &error_ : nullptr; }

 private:
  const ws_arrow_file file_;
  std::int64_t position_ = 0;
  bool closed_ = false;
  bool failed_ = false;
  ws_arrow_error error_{};
};

}  // namespace widestream
