// SlabPool: reusable memory for batches. A slab is handed out again only when nobody holds it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/thread_annotations.h"

namespace widestream {

// A lease on a piece of memory, aligned to a page; given back to its pool when the last owner drops
// it, from any thread, even after the pool is gone.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual std::span<std::byte> memory() = 0;
};

// Thread-safe.
class SlabPool {
 public:
  // At most `limit_bytes` are out on lease at a time.
  explicit SlabPool(std::size_t limit_bytes);
  ~SlabPool();

  // Waits for room until `deadline`: DeadlineExceeded says how many slabs are out. Larger than the
  // limit: InvalidArgument.
  Result<std::shared_ptr<Slab>> Lease(std::size_t size_bytes,
                                      std::chrono::steady_clock::time_point deadline);
  // Waits until `size_bytes` more can be leased. Where one thread takes all leases, what it waited
  // for stays free for it.
  Status WaitForRoom(std::size_t size_bytes, std::chrono::steady_clock::time_point deadline);
  // Wakes all waiters with Cancelled.
  void Stop();
  std::size_t leased_bytes() const;
  std::size_t leases() const;

 private:
  class PooledSlab;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace widestream
