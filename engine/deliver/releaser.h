// Releaser: gives dropped batches back on a thread of its own, off the trainer's path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "engine/base/thread_annotations.h"

namespace widestream::delivery {

// What a batch used, once its last tensor is gone.
struct Dropped {
  std::uint64_t step = 0;
  std::uint64_t slab_id = 0;
  std::byte* used = nullptr;
  std::size_t used_bytes = 0;
};

// Thread-safe. The thread begins with the first Push and takes no core from a thread that runs. In
// a child of fork() it does not exist: there call only Abandon.
class Releaser {
 public:
  // `release` is called on the thread, or in Push.
  explicit Releaser(std::function<void(const Dropped&)> release) : release_(std::move(release)) {}
  ~Releaser() { Finish(); }
  Releaser(const Releaser&) = delete;
  Releaser& operator=(const Releaser&) = delete;

  // Releases at once where no thread can be had, or where the thread has not yet come to the one
  // before: at most one waits, so that a loop that does nothing else holds no more memory.
  void Push(const Dropped& dropped) WS_EXCLUDES(mutex_);
  // Releases what is left and ends the thread. No Push may follow.
  void Finish() WS_EXCLUDES(mutex_);
  // In a forked child, instead of Finish: touches nothing.
  void Abandon();

 private:
  bool StartThread() WS_REQUIRES(mutex_);  // false if there can be none
  void Run() WS_EXCLUDES(mutex_);

  const std::function<void(const Dropped&)> release_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Dropped> dropped_ WS_GUARDED_BY(mutex_);
  bool ends_ WS_GUARDED_BY(mutex_) = false;
  // Set once, under mutex_; Finish and Abandon are alone.
  std::unique_ptr<std::thread> thread_;
};

}  // namespace widestream::delivery
