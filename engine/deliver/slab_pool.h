// SlabPool: reusable memory for batches that other processes can map. A slab is handed out again
// only when nobody holds it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/status.h"
#include "engine/base/thread_annotations.h"

namespace widestream {

// A lease on a piece of memory, aligned to a page; given back to its pool when the last owner drops
// it, from any thread, even after the pool is gone. The memory is an unnamed file of the kernel
// (memfd): it has no path, so nothing is left when the process is killed.
class Slab {
 public:
  virtual ~Slab() = default;
  virtual std::span<std::byte> memory() = 0;
  // The memory as a file: to be mapped by another process, privately. Its size is sealed, and no
  // new writable shared mapping of it can be made. Owned by the pool; valid as long as the lease.
  [[nodiscard]] virtual int fd() const = 0;
  // Of the memory, not of the lease: the same id means the same file. Unique in the process.
  [[nodiscard]] virtual std::uint64_t id() const = 0;
  // Size of the file; at least memory().size().
  [[nodiscard]] virtual std::size_t file_bytes() const = 0;
  // Expires when the memory itself is given up, for who keeps mappings of it beyond the lease.
  [[nodiscard]] virtual std::weak_ptr<const void> lifetime() const = 0;
};

// Thread-safe.
class SlabPool {
 public:
  // At most `limit_bytes` are out on lease at a time, and as much is kept in all.
  explicit SlabPool(std::size_t limit_bytes);
  ~SlabPool();

  // Waits for room until `deadline`: DeadlineExceeded says how many slabs are out. Larger than the
  // limit: InvalidArgument. ResourceExhausted or IoError: the system gives no memory or no
  // descriptor.
  Result<std::shared_ptr<Slab>> Lease(std::size_t size_bytes,
                                      std::chrono::steady_clock::time_point deadline);
  // Waits until `size_bytes` more can be leased, as Lease does. Where one thread takes all leases,
  // what it waited for stays free for it.
  Status WaitForRoom(std::size_t size_bytes, std::chrono::steady_clock::time_point deadline);
  // Wakes all waiters with Cancelled, and frees what is not on lease.
  void Stop();
  std::size_t leased_bytes() const;
  std::size_t leases() const;

 private:
  class PooledSlab;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace widestream
