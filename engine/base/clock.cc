#include "engine/base/clock.h"

#include <algorithm>

namespace widestream {
namespace {

// Calls `wake` under the mutex when the token is cancelled: the lock orders it after the sleeper's
// test of its condition.
CancellationRegistration WakeOnCancel(const CancellationToken& token, Mutex& mutex,
                                      CondVar& changed) {
  return token.OnCancel([&mutex, &changed] {
    const MutexLock lock(mutex);
    changed.NotifyAll();
  });
}

}  // namespace

Status Clock::SleepFor(Duration duration, const CancellationToken& token) {
  const TimePoint now = Now();
  const TimePoint end =
      duration >= TimePoint::max() - now ? TimePoint::max() : now + std::max(duration, Duration(0));
  return SleepUntil(end, token);
}

TimePoint SystemClock::Now() const { return std::chrono::steady_clock::now(); }

std::int64_t SystemClock::UnixNanoseconds() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Status SystemClock::SleepUntil(TimePoint time, const CancellationToken& token) {
  Mutex mutex;
  CondVar changed;
  const CancellationRegistration registration = WakeOnCancel(token, mutex, changed);
  const TimePoint end = std::min(time, token.deadline().time());
  const MutexLock lock(mutex);
  while (!token.IsCancelled() && Now() < end) changed.WaitUntil(mutex, end);
  return Now() >= time ? Status::Ok() : token.Check();
}

TimePoint ManualClock::Now() const {
  const MutexLock lock(mutex_);
  return now_;
}

std::int64_t ManualClock::UnixNanoseconds() const { return Now().time_since_epoch().count(); }

Status ManualClock::SleepUntil(TimePoint time, const CancellationToken& token) {
  const CancellationRegistration registration = WakeOnCancel(token, mutex_, changed_);
  const TimePoint end = std::min(time, token.deadline().time());
  const MutexLock lock(mutex_);
  wake_times_.push_back(end);
  changed_.NotifyAll();
  while (!token.IsCancelled() && now_ < end) changed_.Wait(mutex_);
  wake_times_.erase(std::find(wake_times_.begin(), wake_times_.end(), end));
  if (now_ >= time) return Status::Ok();
  if (token.IsCancelled()) return token.Check();
  return Status::DeadlineExceeded("the deadline of the work has passed");
}

void ManualClock::Advance(Duration duration) {
  const MutexLock lock(mutex_);
  now_ += std::max(duration, Duration(0));
  changed_.NotifyAll();
}

void ManualClock::AwaitSleepers(std::size_t count) {
  const MutexLock lock(mutex_);
  while (wake_times_.size() < count) changed_.Wait(mutex_);
}

TimePoint ManualClock::NextWakeTime() const {
  const MutexLock lock(mutex_);
  const auto earliest = std::min_element(wake_times_.begin(), wake_times_.end());
  return earliest == wake_times_.end() ? TimePoint::max() : *earliest;
}

}  // namespace widestream
