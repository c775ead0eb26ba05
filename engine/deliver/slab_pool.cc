#include "engine/deliver/slab_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace widestream {
namespace {

constexpr std::size_t kPageBytes = 4096;

struct Mapping {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
};

std::size_t RoundUp(std::size_t size_bytes) {
  return std::max<std::size_t>(1, (size_bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
}

void Unmap(const Mapping& mapping) {
  if (mapping.data != nullptr) munmap(mapping.data, mapping.size_bytes);
}

}  // namespace

struct SlabPool::Shared {
  const std::size_t limit_bytes;
  Mutex mutex;
  CondVar returned;
  std::vector<Mapping> free WS_GUARDED_BY(mutex);
  std::size_t free_bytes WS_GUARDED_BY(mutex) = 0;
  std::size_t leased_bytes WS_GUARDED_BY(mutex) = 0;
  std::size_t leases WS_GUARDED_BY(mutex) = 0;
  bool stopped WS_GUARDED_BY(mutex) = false;

  explicit Shared(std::size_t limit) : limit_bytes(limit) {}
  ~Shared() {
    for (const Mapping& mapping : free) Unmap(mapping);
  }

  Status WaitForRoom(std::size_t rounded, std::chrono::steady_clock::time_point deadline)
      WS_REQUIRES(mutex) {
    if (rounded > limit_bytes) {
      return Status::InvalidArgument(
          "a step's tensors need " + std::to_string(rounded) + " bytes, limits.host_memory leaves " +
          std::to_string(limit_bytes) + " for batches; raise it or lower the batch");
    }
    while (leased_bytes + rounded > limit_bytes && !stopped) {
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
  PooledSlab(std::shared_ptr<Shared> shared, Mapping mapping, std::size_t size_bytes)
      : shared_(std::move(shared)), mapping_(mapping), size_bytes_(size_bytes) {}
  ~PooledSlab() override {
    MutexLock lock(shared_->mutex);
    shared_->leased_bytes -= mapping_.size_bytes;
    --shared_->leases;
    if (shared_->stopped) {
      Unmap(mapping_);
    } else {
      shared_->free.push_back(mapping_);
      shared_->free_bytes += mapping_.size_bytes;
    }
    shared_->returned.NotifyAll();
  }
  std::span<std::byte> memory() override { return {mapping_.data, size_bytes_}; }

 private:
  std::shared_ptr<Shared> shared_;
  Mapping mapping_;
  std::size_t size_bytes_;
};

SlabPool::SlabPool(std::size_t limit_bytes) : shared_(std::make_shared<Shared>(limit_bytes)) {}

SlabPool::~SlabPool() { Stop(); }

Result<std::shared_ptr<Slab>> SlabPool::Lease(std::size_t size_bytes,
                                              std::chrono::steady_clock::time_point deadline) {
  const std::size_t rounded = RoundUp(size_bytes);
  Shared& shared = *shared_;
  MutexLock lock(shared.mutex);
  WS_RETURN_IF_ERROR(shared.WaitForRoom(rounded, deadline));
  // The smallest free slab that fits without wasting more than half of it.
  auto best = shared.free.end();
  for (auto it = shared.free.begin(); it != shared.free.end(); ++it) {
    if (it->size_bytes >= rounded && it->size_bytes <= 2 * rounded &&
        (best == shared.free.end() || it->size_bytes < best->size_bytes)) {
      best = it;
    }
  }
  Mapping mapping;
  if (best != shared.free.end() && shared.leased_bytes + best->size_bytes <= shared.limit_bytes) {
    mapping = *best;
    shared.free.erase(best);
    shared.free_bytes -= mapping.size_bytes;
  } else {
    while (!shared.free.empty() &&
           shared.leased_bytes + shared.free_bytes + rounded > shared.limit_bytes) {
      shared.free_bytes -= shared.free.back().size_bytes;
      Unmap(shared.free.back());
      shared.free.pop_back();
    }
    void* data = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      return Status::ResourceExhausted("no memory for a slab of " + std::to_string(rounded) +
                                       " bytes");
    }
    mapping = {static_cast<std::byte*>(data), rounded};
  }
  shared.leased_bytes += mapping.size_bytes;
  ++shared.leases;
  return std::shared_ptr<Slab>(std::make_shared<PooledSlab>(shared_, mapping, size_bytes));
}

Status SlabPool::WaitForRoom(std::size_t size_bytes,
                             std::chrono::steady_clock::time_point deadline) {
  MutexLock lock(shared_->mutex);
  return shared_->WaitForRoom(RoundUp(size_bytes), deadline);
}

void SlabPool::Stop() {
  MutexLock lock(shared_->mutex);
  shared_->stopped = true;
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
