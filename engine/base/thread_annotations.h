// Mutex, MutexLock and CondVar whose use clang checks at compile time (-Wthread-safety): a member
// marked WS_GUARDED_BY(mutex_) can be touched only where mutex_ is known to be held. Other
// compilers see plain std::mutex code.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define WS_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define WS_THREAD_ANNOTATION(x)
#endif

#define WS_CAPABILITY(x) WS_THREAD_ANNOTATION(capability(x))
#define WS_SCOPED_CAPABILITY WS_THREAD_ANNOTATION(scoped_lockable)
// The member may be used only while `x` is held.
#define WS_GUARDED_BY(x) WS_THREAD_ANNOTATION(guarded_by(x))
// What the pointer points to may be used only while `x` is held.
#define WS_PT_GUARDED_BY(x) WS_THREAD_ANNOTATION(pt_guarded_by(x))
#define WS_ACQUIRED_BEFORE(...) WS_THREAD_ANNOTATION(acquired_before(__VA_ARGS__))
#define WS_ACQUIRED_AFTER(...) WS_THREAD_ANNOTATION(acquired_after(__VA_ARGS__))
// The caller must hold (WS_REQUIRES) or must not hold (WS_EXCLUDES) the mutex.
#define WS_REQUIRES(...) WS_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define WS_EXCLUDES(...) WS_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
#define WS_ACQUIRE(...) WS_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define WS_RELEASE(...) WS_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define WS_TRY_ACQUIRE(...) WS_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define WS_ASSERT_CAPABILITY WS_THREAD_ANNOTATION(assert_capability(this))
#define WS_RETURN_CAPABILITY(x) WS_THREAD_ANNOTATION(lock_returned(x))
#define WS_NO_THREAD_SAFETY_ANALYSIS WS_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace widestream {

class CondVar;

// A std::mutex that clang can check. Not recursive.
class WS_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() WS_ACQUIRE() { mutex_.lock(); }
  void Unlock() WS_RELEASE() { mutex_.unlock(); }
  // For clang, where it cannot see that the caller holds it: in a callback.
  void AssertHeld() WS_ASSERT_CAPABILITY {}
  [[nodiscard]] bool TryLock() WS_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for a scope. Unlock() and Lock() may be used to let go of it in between; the
// destructor unlocks only if it is held then.
class WS_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) WS_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() WS_RELEASE() {
    if (held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Unlock() WS_RELEASE() {
    mutex_.Unlock();
    held_ = false;
  }
  void Lock() WS_ACQUIRE() {
    mutex_.Lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// A condition variable for Mutex. Waits may wake spuriously: call them in a loop that tests the
// condition. Predicates are loops in the caller, where clang sees that the mutex is held.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  void Wait(Mutex& mutex) WS_REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False if `time` had passed when it woke. time_point::max() waits without a limit.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point time) WS_REQUIRES(mutex) {
    if (time == std::chrono::steady_clock::time_point::max()) {
      Wait(mutex);
      return true;
    }
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, time) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace widestream
