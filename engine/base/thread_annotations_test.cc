#include "engine/base/thread_annotations.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

namespace widestream {
namespace {

struct Shared {
  Mutex mutex;
  CondVar changed;
  int count WS_GUARDED_BY(mutex) = 0;
};

TEST(ThreadAnnotationsTest, LockExcludesOtherThreads) {
  Shared shared;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&shared] {
      for (int i = 0; i < 1000; ++i) {
        const MutexLock lock(shared.mutex);
        ++shared.count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.count, 4000);
}

TEST(ThreadAnnotationsTest, CondVarWakesAWaiterThatStillHoldsTheMutex) {
  Shared shared;
  std::thread waiter([&shared] {
    const MutexLock lock(shared.mutex);
    while (shared.count == 0) shared.changed.Wait(shared.mutex);
    shared.count = 2;
  });
  {
    const MutexLock lock(shared.mutex);
    shared.count = 1;
  }
  shared.changed.NotifyAll();
  waiter.join();
  const MutexLock lock(shared.mutex);
  EXPECT_EQ(shared.count, 2);
}

TEST(ThreadAnnotationsTest, WaitUntilATimeInThePastReportsIt) {
  Shared shared;
  const MutexLock lock(shared.mutex);
  EXPECT_FALSE(shared.changed.WaitUntil(
      shared.mutex, std::chrono::steady_clock::now() - std::chrono::seconds(1)));
}

TEST(ThreadAnnotationsTest, AScopedLockCanBeReleasedAndTakenAgain) {
  Shared shared;
  MutexLock lock(shared.mutex);
  lock.Unlock();
  bool taken = false;
  std::thread([&shared, &taken] {
    if (shared.mutex.TryLock()) {
      taken = true;
      shared.mutex.Unlock();
    }
  }).join();
  EXPECT_TRUE(taken);
  lock.Lock();
  std::thread([&shared, &taken] {
    if (shared.mutex.TryLock()) {
      taken = false;
      shared.mutex.Unlock();
    }
  }).join();
  EXPECT_TRUE(taken);
}

}  // namespace
}  // namespace widestream
