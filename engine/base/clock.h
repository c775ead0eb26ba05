// Clock: where code that measures or waits gets its time, so that tests can supply it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/cancellation.h"
#include "engine/base/status.h"
#include "engine/base/thread_annotations.h"

namespace widestream {

// Thread-safe. Whoever is given a Clock borrows it.
class Clock {
 public:
  virtual ~Clock() = default;

  // Steady time, for durations and deadlines.
  [[nodiscard]] virtual TimePoint Now() const = 0;
  // Nanoseconds since 1970 (UTC), for records that people read. May jump; never measure with it.
  [[nodiscard]] virtual std::int64_t UnixNanoseconds() const = 0;
  // Waits until Now() >= time and returns OK; or the token's reason if it is cancelled before. The
  // token's own deadline ends the wait with DeadlineExceeded if it is earlier than `time`.
  [[nodiscard]] virtual Status SleepUntil(TimePoint time, const CancellationToken& token) = 0;

  [[nodiscard]] Status SleepFor(Duration duration, const CancellationToken& token);
};

// The machine's clocks. Stateless apart from the sleepers, so one object serves a process.
class SystemClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override;
  [[nodiscard]] std::int64_t UnixNanoseconds() const override;
  [[nodiscard]] Status SleepUntil(TimePoint time, const CancellationToken& token) override;
};

// A clock that stands still until it is advanced: for tests. Starts at 1 s after the epoch of
// either clock.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint Now() const override WS_EXCLUDES(mutex_);
  [[nodiscard]] std::int64_t UnixNanoseconds() const override WS_EXCLUDES(mutex_);
  [[nodiscard]] Status SleepUntil(TimePoint time, const CancellationToken& token) override
      WS_EXCLUDES(mutex_);

  // Moves both clocks forward and wakes the sleepers whose time has come. A negative duration
  // counts as zero.
  void Advance(Duration duration) WS_EXCLUDES(mutex_);
  // Waits, in real time, until at least `count` threads sleep on this clock: to advance only when
  // the code under test is ready.
  void AwaitSleepers(std::size_t count) WS_EXCLUDES(mutex_);
  // When the earliest sleeper wakes; TimePoint::max() if there is none.
  [[nodiscard]] TimePoint NextWakeTime() const WS_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  TimePoint now_ WS_GUARDED_BY(mutex_) = TimePoint(std::chrono::seconds(1));
  std::vector<TimePoint> wake_times_ WS_GUARDED_BY(mutex_);
};

}  // namespace widestream
