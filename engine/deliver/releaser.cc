#include "engine/deliver/releaser.h"

#include <pthread.h>
#include <sched.h>

#include <system_error>
#include <utility>

namespace widestream::delivery {

void Releaser::Push(const Dropped& dropped) {
  {
    MutexLock lock(mutex_);
    if (!dropped_ && StartThread()) {
      dropped_ = dropped;
      changed_.NotifyAll();
      return;
    }
  }
  release_(dropped);
}

bool Releaser::StartThread() {
  if (thread_) return true;
  try {
    thread_ = std::make_unique<std::thread>([this] { Run(); });
  } catch (const std::system_error&) {
    return false;
  }
  return true;
}

void Releaser::Finish() {
  if (!thread_) return;
  {
    MutexLock lock(mutex_);
    ends_ = true;
    changed_.NotifyAll();
  }
  thread_->join();
  thread_.reset();
}

// Leaks the handle: a thread that is not there can be neither joined nor detached.
void Releaser::Abandon() { [[maybe_unused]] const std::thread* const leaked = thread_.release(); }

void Releaser::Run() {
  // A thread that wakes up as SCHED_BATCH does not push the one that woke it off its core. Where
  // that is refused it may.
  const sched_param priority{};
  static_cast<void>(pthread_setschedparam(pthread_self(), SCHED_BATCH, &priority));
  for (;;) {
    Dropped taken;
    {
      MutexLock lock(mutex_);
      while (!dropped_ && !ends_) changed_.Wait(mutex_);
      if (!dropped_) return;
      taken = *dropped_;
      dropped_.reset();
    }
    release_(taken);
  }
}

}  // namespace widestream::delivery
