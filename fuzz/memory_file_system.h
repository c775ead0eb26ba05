// One file in memory, for fuzzers.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/storage/file_system.h"

namespace widestream {

// Opens the same bytes under every path; they must outlive it. Reads only.
class MemoryFileSystem final : public FileSystem {
 public:
  explicit MemoryFileSystem(std::string_view bytes) : bytes_(bytes) {}

  Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override {
    return std::unique_ptr<RandomAccessFile>(std::make_unique<File>(bytes_, path));
  }
  Result<FileInfo> Stat(const std::string& path) override {
    FileInfo info;
    info.path = path;
    info.size_bytes = bytes_.size();
    return info;
  }
  Result<std::vector<FileInfo>> List(const std::string&) override { return Refuse(); }
  Result<std::unique_ptr<AppendFile>> OpenAppend(const std::string&) override { return Refuse(); }
  Status WriteAtomically(const std::string&, std::string_view) override { return Refuse(); }
  Result<std::string> ReadAll(const std::string&, std::uint64_t limit_bytes) override {
    if (bytes_.size() > limit_bytes) return Status::ResourceExhausted("longer than the limit");
    return std::string(bytes_);
  }
  Status Truncate(const std::string&, std::uint64_t) override { return Refuse(); }
  Status CreateFolders(const std::string&) override { return Refuse(); }
  Status Remove(const std::string&) override { return Refuse(); }

 private:
  class File final : public RandomAccessFile {
   public:
    File(std::string_view bytes, std::string path) : bytes_(bytes), path_(std::move(path)) {}
    Result<std::size_t> ReadAt(std::uint64_t offset, std::size_t size, char* out) const override {
      if (offset >= bytes_.size()) return std::size_t{0};
      const auto at = static_cast<std::size_t>(offset);
      size = std::min(size, bytes_.size() - at);
      std::memcpy(out, bytes_.data() + at, size);
      return size;
    }
    std::uint64_t size_bytes() const override { return bytes_.size(); }
    const std::string& path() const override { return path_; }

   private:
    const std::string_view bytes_;
    const std::string path_;
  };

  static Status Refuse() { return Status::InvalidArgument("the memory file system only reads"); }

  const std::string_view bytes_;
};

}  // namespace widestream
