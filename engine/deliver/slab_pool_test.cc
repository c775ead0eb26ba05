#include "engine/deliver/slab_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

namespace widestream {
namespace {

using Clock = std::chrono::steady_clock;

TEST(SlabPool, AReturnedSlabIsUsedAgain) {
  SlabPool pool(1 << 20);
  const std::byte* first = nullptr;
  {
    auto slab = pool.Lease(10000, Clock::time_point::max());
    ASSERT_TRUE(slab.ok());
    first = (*slab)->memory().data();
    EXPECT_EQ((*slab)->memory().size(), 10000U);
  }
  auto again = pool.Lease(9000, Clock::time_point::max());
  ASSERT_TRUE(again.ok());
  EXPECT_EQ((*again)->memory().data(), first);
  EXPECT_EQ(pool.leases(), 1U);
}

TEST(SlabPool, ASlabIsNotReusedWhileItIsHeld) {
  SlabPool pool(1 << 20);
  auto a = pool.Lease(4096, Clock::time_point::max());
  auto b = pool.Lease(4096, Clock::time_point::max());
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE((*a)->memory().data(), (*b)->memory().data());
}

TEST(SlabPool, AFullPoolSaysWhoHoldsItAndTooLargeIsRefused) {
  SlabPool pool(8192);
  auto held = pool.Lease(8192, Clock::time_point::max());
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(pool.Lease(1, Clock::now()).status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(pool.Lease(8193, Clock::now()).status().code(), StatusCode::kInvalidArgument);
}

TEST(SlabPool, StopWakesWaitersAndHeldSlabsOutliveThePool) {
  auto pool = std::make_unique<SlabPool>(4096);
  auto held = pool->Lease(4096, Clock::time_point::max());
  ASSERT_TRUE(held.ok());
  std::thread waiter([&] {
    EXPECT_EQ(pool->Lease(4096, Clock::time_point::max()).status().code(), StatusCode::kCancelled);
  });
  pool->Stop();
  waiter.join();
  pool.reset();
  std::memset((*held)->memory().data(), 1, 4096);
}

TEST(SlabPool, ManyThreadsStayWithinTheLimit) {
  SlabPool pool(std::size_t{16} * 4096);
  std::atomic<bool> within{true};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, &within, t] {
      for (int i = 0; i < 500; ++i) {
        auto slab = pool.Lease(std::size_t{4096} * static_cast<std::size_t>(1 + (i + t) % 4),
                               Clock::time_point::max());
        if (!slab.ok() || pool.leased_bytes() > std::size_t{16} * 4096) within = false;
        (*slab)->memory()[0] = std::byte{1};
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(within);
  EXPECT_EQ(pool.leased_bytes(), 0U);
}

}  // namespace
}  // namespace widestream
