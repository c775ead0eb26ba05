#include "engine/base/cancellation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/thread_annotations.h"

namespace widestream {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(DeadlineTest, PassesAtItsTime) {
  const TimePoint now = std::chrono::steady_clock::now();
  const Deadline deadline = Deadline::At(now);
  EXPECT_FALSE(deadline.HasPassed(now - Duration(1)));
  EXPECT_TRUE(deadline.HasPassed(now));
  EXPECT_TRUE(deadline.HasPassed());
  EXPECT_EQ(deadline.Remaining(), Duration::zero());
  EXPECT_TRUE(Deadline::After(-seconds(1)).HasPassed());
  EXPECT_TRUE(Deadline::After(Duration::min()).HasPassed());
}

TEST(DeadlineTest, AnInfiniteDeadlineNeverPasses) {
  EXPECT_TRUE(Deadline().IsInfinite());
  EXPECT_TRUE(Deadline::After(Duration::max()).IsInfinite());
  EXPECT_FALSE(Deadline::Infinite().HasPassed(TimePoint::max()));
  EXPECT_EQ(Deadline().Remaining(), Duration::max());
  const Deadline later = Deadline::After(hours(1));
  EXPECT_EQ(Deadline::Earlier(later, Deadline()).time(), later.time());
  EXPECT_EQ(Deadline::Earlier(Deadline(), later).time(), later.time());
  EXPECT_GT(later.Remaining(), Duration::zero());
}

TEST(CancellationTest, ADefaultTokenIsNeverCancelled) {
  const CancellationToken token;
  EXPECT_FALSE(token.IsCancelled());
  EXPECT_TRUE(token.Check().ok());
  EXPECT_TRUE(token.deadline().IsInfinite());
  bool called = false;
  token.OnCancel([&called] { called = true; }).Reset();
  EXPECT_FALSE(called);
}

TEST(CancellationTest, EveryCopyOfATokenSeesTheFirstReason) {
  CancellationSource source;
  const std::vector<CancellationToken> before(2, source.token());
  source.Cancel("the job ended");
  source.Cancel("too late");
  for (const CancellationToken& token : {before[0], before[1], source.token()}) {
    EXPECT_TRUE(token.IsCancelled());
    EXPECT_EQ(token.Check().code(), StatusCode::kCancelled);
    EXPECT_EQ(token.Check().message(), "the job ended");
  }
}

TEST(CancellationTest, AnErrorCanBeTheReason) {
  CancellationSource source;
  source.Cancel(Status::DataCorruption("shard 3"));
  EXPECT_EQ(source.token().Check().code(), StatusCode::kDataCorruption);
  CancellationSource odd;
  odd.Cancel(Status::Ok());
  EXPECT_EQ(odd.token().Check().code(), StatusCode::kInternal);
}

TEST(CancellationTest, APassedDeadlineFailsTheCheckWithoutCancelling) {
  CancellationSource source(Deadline::After(-seconds(1)));
  EXPECT_FALSE(source.token().IsCancelled());
  EXPECT_EQ(source.token().Check().code(), StatusCode::kDeadlineExceeded);
  source.Cancel("stop");
  EXPECT_EQ(source.token().Check().code(), StatusCode::kCancelled);
}

TEST(CancellationTest, CallbacksRunOnceAndOnlyWhileRegistered) {
  CancellationSource source;
  int kept = 0;
  int dropped = 0;
  int moved = 0;
  const CancellationRegistration keep = source.token().OnCancel([&kept] { ++kept; });
  CancellationRegistration first = source.token().OnCancel([&moved] { ++moved; });
  CancellationRegistration second = std::move(first);
  {
    const auto drop = source.token().OnCancel([&dropped] { ++dropped; });
  }
  CancellationRegistration replaced = source.token().OnCancel([&dropped] { ++dropped; });
  replaced = CancellationRegistration();
  source.Cancel();
  source.Cancel();
  EXPECT_EQ(kept, 1);
  EXPECT_EQ(moved, 1);
  EXPECT_EQ(dropped, 0);
  int late = 0;
  const CancellationRegistration after = source.token().OnCancel([&late] { ++late; });
  EXPECT_EQ(late, 1);
}

TEST(CancellationTest, ACallbackMayDropItsOwnRegistration) {
  CancellationSource source;
  std::optional<CancellationRegistration> registration;
  registration = source.token().OnCancel([&registration] { registration.reset(); });
  source.Cancel();
  EXPECT_FALSE(registration.has_value());
}

TEST(CancellationTest, AChildIsCancelledWithItsParentButNotTheReverse) {
  CancellationSource parent(Deadline::After(hours(1)));
  CancellationSource child(parent.token());
  CancellationSource sibling(parent.token(), Deadline::After(hours(2)));
  CancellationSource hasty(parent.token(), Deadline::After(seconds(1)));
  EXPECT_EQ(child.token().deadline().time(), parent.token().deadline().time());
  EXPECT_EQ(sibling.token().deadline().time(), parent.token().deadline().time());
  EXPECT_LT(hasty.token().deadline().time(), parent.token().deadline().time());
  child.Cancel("only the child");
  EXPECT_FALSE(parent.token().IsCancelled());
  EXPECT_FALSE(sibling.token().IsCancelled());
  CancellationSource moved = std::move(sibling);
  parent.Cancel("all");
  EXPECT_EQ(moved.token().Check().message(), "all");
  EXPECT_EQ(child.token().Check().message(), "only the child");
  const CancellationSource late(parent.token());
  EXPECT_EQ(late.token().Check().message(), "all");
  EXPECT_FALSE(CancellationSource(CancellationToken()).token().IsCancelled());
}

// After the registration is gone the callback no longer runs, so what it uses can go too.
// Sanitizers see a violation.
TEST(CancellationTest, DroppingARegistrationWaitsForARunningCallback) {
  for (int round = 0; round < 200; ++round) {
    CancellationSource source;
    auto counter = std::make_unique<std::atomic<int>>(0);
    CancellationRegistration registration =
        source.token().OnCancel([raw = counter.get()] { raw->fetch_add(1); });
    std::thread canceller([&source] { source.Cancel(); });
    registration.Reset();
    counter.reset();
    canceller.join();
  }
}

TEST(CancellationTest, ACallbackWakesAWaiter) {
  CancellationSource source;
  Mutex mutex;
  CondVar changed;
  std::thread waiter([&] {
    const CancellationToken token = source.token();
    const CancellationRegistration registration = token.OnCancel([&mutex, &changed] {
      // The lock orders this after the waiter's test of its condition.
      {
        const MutexLock lock(mutex);
      }
      changed.NotifyAll();
    });
    const MutexLock lock(mutex);
    while (!token.IsCancelled()) changed.Wait(mutex);
  });
  source.Cancel();
  waiter.join();
  EXPECT_TRUE(source.token().IsCancelled());
}

TEST(CancellationTest, ManyThreadsMayRegisterAndCancel) {
  CancellationSource source;
  std::atomic<int> calls = 0;
  constexpr int kThreads = 4;
  constexpr int kRegistrations = 100;
  std::vector<std::thread> threads;
  std::vector<std::vector<CancellationRegistration>> registrations(kThreads);
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRegistrations; ++i) {
        registrations[t].push_back(source.token().OnCancel([&calls] { ++calls; }));
        if (t == 0 && i == kRegistrations / 2) source.Cancel();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  registrations.clear();
  EXPECT_EQ(calls.load(), kThreads * kRegistrations);
}

}  // namespace
}  // namespace widestream
