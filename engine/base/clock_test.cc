#include "engine/base/clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace widestream {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SystemClockTest, TimeGoesOn) {
  SystemClock clock;
  const TimePoint before = clock.Now();
  EXPECT_TRUE(clock.SleepFor(milliseconds(2), {}).ok());
  EXPECT_GE(clock.Now() - before, milliseconds(2));
  EXPECT_GT(clock.UnixNanoseconds(), 1'600'000'000'000'000'000);
  EXPECT_TRUE(clock.SleepFor(-seconds(1), {}).ok());
}

TEST(SystemClockTest, CancellingEndsASleep) {
  SystemClock clock;
  CancellationSource source;
  Status status;
  std::thread sleeper([&] { status = clock.SleepFor(Duration::max(), source.token()); });
  source.Cancel("stop");
  sleeper.join();
  EXPECT_EQ(status.message(), "stop");
}

TEST(SystemClockTest, TheTokensDeadlineEndsASleep) {
  SystemClock clock;
  const CancellationSource source(Deadline::After(milliseconds(2)));
  EXPECT_EQ(clock.SleepFor(hours(1), source.token()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(clock.SleepUntil(clock.Now(), source.token()).ok());
}

TEST(ManualClockTest, StandsStillUntilAdvanced) {
  ManualClock clock;
  const TimePoint start = clock.Now();
  EXPECT_EQ(start.time_since_epoch(), seconds(1));
  EXPECT_EQ(clock.UnixNanoseconds(), 1'000'000'000);
  clock.Advance(milliseconds(5));
  clock.Advance(-seconds(9));
  EXPECT_EQ(clock.Now() - start, milliseconds(5));
  EXPECT_TRUE(clock.SleepUntil(start, {}).ok());
}

TEST(ManualClockTest, SleepersWakeAtTheirTime) {
  ManualClock clock;
  const TimePoint start = clock.Now();
  TimePoint short_end;
  TimePoint long_end;
  std::thread short_sleeper([&] {
    EXPECT_TRUE(clock.SleepUntil(start + seconds(1), {}).ok());
    short_end = clock.Now();
  });
  std::thread long_sleeper([&] {
    EXPECT_TRUE(clock.SleepUntil(start + seconds(3), {}).ok());
    long_end = clock.Now();
  });
  clock.AwaitSleepers(2);
  EXPECT_EQ(clock.NextWakeTime(), start + seconds(1));
  clock.Advance(seconds(1));
  short_sleeper.join();
  EXPECT_EQ(clock.NextWakeTime(), start + seconds(3));
  clock.Advance(seconds(2));
  long_sleeper.join();
  EXPECT_EQ(short_end, start + seconds(1));
  EXPECT_EQ(long_end, start + seconds(3));
  EXPECT_EQ(clock.NextWakeTime(), TimePoint::max());
}

TEST(ManualClockTest, CancellingOrTheTokensDeadlineEndsASleep) {
  ManualClock clock;
  CancellationSource cancelled;
  Status status;
  std::thread first([&] { status = clock.SleepFor(Duration::max(), cancelled.token()); });
  clock.AwaitSleepers(1);
  cancelled.Cancel("stop");
  first.join();
  EXPECT_EQ(status.message(), "stop");
  const CancellationSource timed(Deadline::At(clock.Now() + seconds(2)));
  std::thread second([&] { status = clock.SleepFor(seconds(5), timed.token()); });
  clock.AwaitSleepers(1);
  clock.Advance(seconds(2));
  second.join();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace widestream
