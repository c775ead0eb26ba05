#include "engine/deliver/slab_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

namespace widestream {
namespace {

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

constexpr std::size_t kPageBytes = 4096;

// A sealed memfd and this process's writable mapping of it.
class Block {
 public:
  Block(int fd, std::byte* data, std::size_t size_bytes)
      : fd_(fd), data_(data), size_bytes_(size_bytes), id_(NextId()) {}
  ~Block() {
    munmap(data_, size_bytes_);
    close(fd_);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }

 private:
  static std::uint64_t NextId() {
    static std::atomic<std::uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
  }

  const int fd_;
  std::byte* const data_;
  const std::size_t size_bytes_;
  const std::uint64_t id_;
};

Status SlabError(const std::string& problem, std::size_t size_bytes, int error) {
  const std::string what = "a slab of " + std::to_string(size_bytes) + " bytes: " + problem;
  switch (error) {
    case EMFILE:
    case ENFILE:
      return {StatusCode::kResourceExhausted,
              what +
                  ": too many open files; raise the limit (ulimit -n) or lower "
                  "limits.host_memory",
              error};
    case ENOMEM:
    case ENOSPC:
      return {StatusCode::kResourceExhausted,
              what + ": the system has no memory for it; lower limits.host_memory", error};
    case EPERM:
    case ENOSYS:
    case EINVAL:
      return Status::IoError(
          what +
              ": memfd_create and F_SEAL_FUTURE_WRITE are needed: Linux 5.1 or later, and "
              "a sandbox that allows them",
          error);
    default:
      return Status::IoError(what, error);
  }
}

Result<std::shared_ptr<Block>> MakeBlock(std::size_t size_bytes) {
  const int fd = memfd_create("widestream-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SlabError("memfd_create", size_bytes, errno);
  const auto fail = [&](const char* problem) {
    const int error = errno;
    close(fd);
    return SlabError(problem, size_bytes, error);
  };
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) != 0) return fail("ftruncate");
  void* data = mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return fail("mmap");
  // After this mapping nobody can make another that writes, nor change the size under a reader.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) !=
      0) {
    const Status status = fail("sealing");
    munmap(data, size_bytes);
    return status;
  }
  return std::make_shared<Block>(fd, static_cast<std::byte*>(data), size_bytes);
}

// Divided first: a size near 2^64 must not wrap to a small one.
std::size_t PagesOf(std::size_t size_bytes) {
  return std::max<std::size_t>(1, size_bytes / kPageBytes + (size_bytes % kPageBytes != 0 ? 1 : 0));
}

}  // namespace

struct SlabPool::Shared {
  const std::size_t limit_bytes;
  Mutex mutex;
  CondVar returned;
  std::vector<std::shared_ptr<Block>> free WS_GUARDED_BY(mutex);
  std::size_t free_bytes WS_GUARDED_BY(mutex) = 0;
  std::size_t leased_bytes WS_GUARDED_BY(mutex) = 0;
  std::size_t leases WS_GUARDED_BY(mutex) = 0;
  bool stopped WS_GUARDED_BY(mutex) = false;

  explicit Shared(std::size_t limit) : limit_bytes(limit) {}

  Status WaitForRoom(std::size_t size_bytes, std::chrono::steady_clock::time_point deadline)
      WS_REQUIRES(mutex) {
    const std::size_t pages = PagesOf(size_bytes);
    if (pages > limit_bytes / kPageBytes) {
      return Status::InvalidArgument("a step's tensors need " + std::to_string(size_bytes) +
                                     " bytes, limits.host_memory leaves " +
                                     std::to_string(limit_bytes) +
                                     " for batches; raise it or lower the batch");
    }
    while (leased_bytes + pages * kPageBytes > limit_bytes && !stopped) {
      if (!returned.WaitUntil(mutex, deadline) && std::chrono::steady_clock::now() >= deadline) {
        return Status::DeadlineExceeded(
            "all memory for batches is held by " + std::to_string(leases) +
            " batches that the trainer has not released; drop references to old batches");
      }
    }
    if (stopped) return Status::Cancelled("the slab pool was stopped");
    return Status::Ok();
  }
};

class SlabPool::PooledSlab final : public Slab {
 public:
  PooledSlab(std::shared_ptr<Shared> shared, std::shared_ptr<Block> block, std::size_t size_bytes)
      : shared_(std::move(shared)), block_(std::move(block)), size_bytes_(size_bytes) {}
  ~PooledSlab() override {
    MutexLock lock(shared_->mutex);
    shared_->leased_bytes -= block_->size_bytes();
    --shared_->leases;
    if (!shared_->stopped) {
      shared_->free_bytes += block_->size_bytes();
      shared_->free.push_back(std::move(block_));
    }
    shared_->returned.NotifyAll();
  }
  std::span<std::byte> memory() override { return {block_->data(), size_bytes_}; }
  [[nodiscard]] int fd() const override { return block_->fd(); }
  [[nodiscard]] std::uint64_t id() const override { return block_->id(); }
  [[nodiscard]] std::size_t file_bytes() const override { return block_->size_bytes(); }
  [[nodiscard]] std::weak_ptr<const void> lifetime() const override { return block_; }

 private:
  std::shared_ptr<Shared> shared_;
  std::shared_ptr<Block> block_;
  std::size_t size_bytes_;
};

SlabPool::SlabPool(std::size_t limit_bytes) : shared_(std::make_shared<Shared>(limit_bytes)) {}

SlabPool::~SlabPool() { Stop(); }

Result<std::shared_ptr<Slab>> SlabPool::Lease(std::size_t size_bytes,
                                              std::chrono::steady_clock::time_point deadline) {
  Shared& shared = *shared_;
  MutexLock lock(shared.mutex);
  WS_RETURN_IF_ERROR(shared.WaitForRoom(size_bytes, deadline));
  const std::size_t rounded = PagesOf(size_bytes) * kPageBytes;
  // The smallest free slab that fits without wasting more than half of it; of several the one that
  // was returned last: the fewer are in use, the fewer a client maps.
  auto best = shared.free.end();
  for (auto it = shared.free.begin(); it != shared.free.end(); ++it) {
    if ((*it)->size_bytes() >= rounded && (*it)->size_bytes() <= 2 * rounded &&
        (best == shared.free.end() || (*it)->size_bytes() <= (*best)->size_bytes())) {
      best = it;
    }
  }
  std::shared_ptr<Block> block;
  if (best != shared.free.end() &&
      shared.leased_bytes + (*best)->size_bytes() <= shared.limit_bytes) {
    block = std::move(*best);
    shared.free.erase(best);
    shared.free_bytes -= block->size_bytes();
  } else {
    while (!shared.free.empty() &&
           shared.leased_bytes + shared.free_bytes + rounded > shared.limit_bytes) {
      shared.free_bytes -= shared.free.front()->size_bytes();
      shared.free.erase(shared.free.begin());
    }
    WS_ASSIGN_OR_RETURN(block, MakeBlock(rounded));
  }
  shared.leased_bytes += block->size_bytes();
  ++shared.leases;
  return std::shared_ptr<Slab>(std::make_shared<PooledSlab>(shared_, std::move(block), size_bytes));
}

Status SlabPool::WaitForRoom(std::size_t size_bytes,
                             std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(shared_->mutex);
  return shared_->WaitForRoom(size_bytes, deadline);
}

void SlabPool::Stop() {
  MutexLock lock(shared_->mutex);
  shared_->stopped = true;
  shared_->free.clear();
  shared_->free_bytes = 0;
  shared_->returned.NotifyAll();
}

std::size_t SlabPool::leased_bytes() const {
  MutexLock lock(shared_->mutex);
  return shared_->leased_bytes;
}

std::size_t SlabPool::leases() const {
  MutexLock lock(shared_->mutex);
  return shared_->leases;
}

}  // namespace widestream
