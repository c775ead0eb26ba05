#include "engine/deliver/releaser.h"

#include <pthread.h>
#include <sched.h>

#include <system_error>
#include <utility>

namespace widestream::delivery {

void Releaser::Push(const Dropped& dropped) {
  MutexLock lock(mutex_);
  if (!thread_) {
    try {
      thread_ = std::make_unique<std::thread>([this] { Run(); });
    } catch (const std::system_error&) {
      lock.Unlock();
      release_(dropped);
      return;
    }
  }
  dropped_.push_back(dropped);
  changed_.NotifyAll();
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
void Releaser::Abandon() { static_cast<void>(thread_.release()); }

void Releaser::Run() {
  // A thread that wakes up as SCHED_BATCH does not push the one that woke it off its core. Where
  // that is refused it may.
  const sched_param priority{};
  static_cast<void>(pthread_setschedparam(pthread_self(), SCHED_BATCH, &priority));
  std::vector<Dropped> taken;
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (dropped_.empty() && !ends_) changed_.Wait(mutex_);
      if (dropped_.empty()) return;
      taken.swap(dropped_);
    }
    for (const Dropped& dropped : taken) release_(dropped);
    taken.clear();
  }
}

}  // namespace widestream::delivery
