#include "engine/base/byte_budget.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/thread_annotations.h"

namespace widestream {
namespace {

constexpr auto kPast = std::chrono::seconds(-1);

Reservation Take(ByteBudget& budget, std::uint64_t bytes) {
  Result<Reservation> taken = budget.TryReserve(bytes);
  EXPECT_TRUE(taken.ok()) << taken.status().ToString();
  return std::move(taken).value();
}

void AwaitWaiters(const ByteBudget& budget, std::uint64_t count) {
  while (budget.GetMetrics().waiting_requests != count) std::this_thread::yield();
}

TEST(ByteBudgetTest, ReservationsAreCountedAndGivenBack) {
  ByteBudget budget(100, "test");
  {
    const Reservation a = Take(budget, 60);
    const Reservation b = Take(budget, 40);
    EXPECT_EQ(a.bytes(), 60U);
    EXPECT_EQ(budget.GetMetrics().used_bytes, 100U);
    EXPECT_EQ(budget.TryReserve(1).status().code(), StatusCode::kUnavailable);
  }
  const ByteBudget::Metrics metrics = budget.GetMetrics();
  EXPECT_EQ(metrics.limit_bytes, 100U);
  EXPECT_EQ(metrics.used_bytes, 0U);
  EXPECT_EQ(metrics.peak_bytes, 100U);
  EXPECT_EQ(metrics.granted_requests, 2U);
  EXPECT_EQ(metrics.waited_requests, 0U);
}

TEST(ByteBudgetTest, MoreThanTheLimitFailsAtOnce) {
  ByteBudget budget(100, "host memory");
  const Status status = budget.Reserve(101).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "A reservation of 101 bytes exceeds the limit of 100 bytes of the byte budget "
            "\"host memory\". Raise the limit or ask for less");
  EXPECT_EQ(budget.TryReserve(~std::uint64_t{0}).status().code(), StatusCode::kInvalidArgument);
}

TEST(ByteBudgetTest, ZeroBytesNeverWait) {
  ByteBudget budget(0, "empty");
  EXPECT_TRUE(budget.Reserve(0).ok());
  EXPECT_TRUE(budget.TryReserve(0).ok());
}

TEST(ByteBudgetTest, ReservationsSplitShrinkAndMerge) {
  ByteBudget budget(100, "test");
  Reservation step = Take(budget, 90);
  Result<Reservation> part = step.Split(30);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(step.bytes(), 60U);
  EXPECT_EQ(part->bytes(), 30U);
  EXPECT_EQ(step.Split(61).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(step.ShrinkTo(61).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(step.ShrinkTo(20).ok());
  EXPECT_EQ(budget.GetMetrics().used_bytes, 50U);
  EXPECT_TRUE(step.Merge(std::move(*part)).ok());
  EXPECT_EQ(step.bytes(), 50U);
  Reservation& same = step;
  EXPECT_EQ(step.Merge(std::move(same)).code(), StatusCode::kInvalidArgument);
  ByteBudget other_budget(10, "other");
  Reservation other = Take(other_budget, 5);
  EXPECT_EQ(step.Merge(std::move(other)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(other_budget.GetMetrics().used_bytes, 5U);
  Reservation gathered;
  EXPECT_TRUE(gathered.Merge(std::move(step)).ok());
  EXPECT_TRUE(gathered.Merge(Reservation()).ok());
  EXPECT_EQ(gathered.bytes(), 50U);
  gathered = Take(budget, 1);
  EXPECT_EQ(budget.GetMetrics().used_bytes, 1U);
  gathered.Release();
  gathered.Release();
  EXPECT_EQ(budget.GetMetrics().used_bytes, 0U);
}

TEST(ByteBudgetTest, AReservationMayOutliveItsBudget) {
  auto budget = std::make_unique<ByteBudget>(10, "test");
  Reservation kept = Take(*budget, 10);
  budget.reset();
  EXPECT_EQ(kept.bytes(), 10U);
  EXPECT_TRUE(kept.ShrinkTo(3).ok());
}

RC_GTEST_PROP(ByteBudgetTest, AnySequenceOfOperationsConservesBytes, ()) {
  ByteBudget budget(1000, "test");
  std::vector<Reservation> held;
  const int operations = *rc::gen::inRange(0, 60);
  for (int i = 0; i < operations; ++i) {
    const auto bytes = *rc::gen::inRange<std::uint64_t>(0, 400);
    const auto pick = held.empty() ? 0 : *rc::gen::inRange<std::size_t>(0, held.size());
    switch (held.empty() ? 0 : *rc::gen::inRange(0, 5)) {
      case 0:
        if (Result<Reservation> taken = budget.TryReserve(bytes); taken.ok()) {
          held.push_back(std::move(*taken));
        } else {
          RC_ASSERT(bytes > 1000 - budget.GetMetrics().used_bytes);
        }
        break;
      case 1:
        if (Result<Reservation> part = held[pick].Split(bytes); part.ok()) {
          held.push_back(std::move(*part));
        }
        break;
      case 2: {
        const bool shrinks = bytes <= held[pick].bytes();
        RC_ASSERT(held[pick].ShrinkTo(bytes).ok() == shrinks);
        break;
      }
      case 3:
        if (pick + 1 != held.size()) RC_ASSERT(held[pick].Merge(std::move(held.back())).ok());
        break;
      default:
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    std::uint64_t sum = 0;
    for (const Reservation& reservation : held) sum += reservation.bytes();
    RC_ASSERT(budget.GetMetrics().used_bytes == sum);
  }
  held.clear();
  RC_ASSERT(budget.GetMetrics().used_bytes == 0U);
}

TEST(ByteBudgetTest, WaitersAreServedInOrderAndALargeOneIsNotOvertaken) {
  ByteBudget budget(100, "test");
  std::optional<Reservation> blocker = Take(budget, 50);
  Mutex mutex;
  std::vector<std::uint64_t> order;
  std::vector<std::thread> threads;
  // The second would fit at once but must not overtake the first.
  const std::vector<std::uint64_t> requests = {90, 40, 95, 20};
  for (std::uint64_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      const Result<Reservation> taken = budget.Reserve(requests[i]);
      EXPECT_TRUE(taken.ok());
      const MutexLock lock(mutex);
      order.push_back(requests[i]);
    });
    AwaitWaiters(budget, i + 1);
  }
  EXPECT_EQ(budget.GetMetrics().waiting_bytes, 245U);
  EXPECT_EQ(budget.TryReserve(1).status().code(), StatusCode::kUnavailable);
  blocker.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, requests);
  EXPECT_EQ(budget.GetMetrics().used_bytes, 0U);
  EXPECT_EQ(budget.GetMetrics().waiting_bytes, 0U);
  EXPECT_EQ(budget.GetMetrics().waited_requests, 4U);
}

TEST(ByteBudgetTest, CancellingTheHeadLetsTheNextOnesPass) {
  ByteBudget budget(100, "test");
  const Reservation blocker = Take(budget, 50);
  CancellationSource source;
  Status cancelled;
  std::thread large([&] { cancelled = budget.Reserve(90, source.token()).status(); });
  AwaitWaiters(budget, 1);
  bool granted = false;
  std::thread small([&] { granted = budget.Reserve(40).ok(); });
  AwaitWaiters(budget, 2);
  source.Cancel("the source was closed");
  large.join();
  small.join();
  EXPECT_EQ(cancelled.code(), StatusCode::kCancelled);
  EXPECT_EQ(cancelled.message(), "the source was closed");
  EXPECT_TRUE(granted);
  EXPECT_EQ(budget.GetMetrics().waiting_requests, 0U);
  EXPECT_EQ(budget.Reserve(1, source.token()).status().code(), StatusCode::kCancelled);
}

TEST(ByteBudgetTest, ADeadlineEndsTheWaitAndSaysWhoHoldsWhat) {
  ByteBudget budget(100, "host memory");
  const Reservation blocker = Take(budget, 70);
  const Status status = budget.Reserve(40, {}, Deadline::After(kPast)).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            "40 bytes of the byte budget \"host memory\" were not free before the deadline: 70 of "
            "100 bytes are in use and 0 other requests for 0 bytes wait. Whoever holds them must "
            "release some, or the limit must be raised");
  const CancellationSource late(Deadline::After(std::chrono::milliseconds(5)));
  EXPECT_EQ(budget.Reserve(40, late.token()).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(budget.Reserve(30, {}, Deadline::After(kPast)).ok());
  EXPECT_EQ(budget.GetMetrics().used_bytes, 70U);
  EXPECT_EQ(budget.GetMetrics().waiting_requests, 0U);
}

TEST(ByteBudgetTest, TheLimitHoldsUnderManyThreadsAndCancellations) {
  constexpr std::uint64_t kLimit = 100;
  ByteBudget budget(kLimit, "test");
  std::atomic<std::uint64_t> in_use = 0;
  std::atomic<bool> exceeded = false;
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 300; ++i) {
        CancellationSource source;
        const std::uint64_t bytes = 1 + (i * 37 + t * 11) % kLimit;
        std::optional<std::thread> canceller;
        if (i % 16 == 0) canceller.emplace([&source] { source.Cancel(); });
        Result<Reservation> taken = budget.Reserve(bytes, source.token());
        if (taken.ok()) {
          if (in_use.fetch_add(bytes) + bytes > kLimit) exceeded = true;
          const Result<Reservation> part = taken->Split(bytes / 2);
          in_use.fetch_sub(bytes);
        }
        if (canceller) canceller->join();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(exceeded.load());
  EXPECT_EQ(budget.GetMetrics().used_bytes, 0U);
  EXPECT_LE(budget.GetMetrics().peak_bytes, kLimit);
}

}  // namespace
}  // namespace widestream
