// Deadline, and CancellationSource / CancellationToken: how work that blocks is told to stop.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "engine/base/status.h"

namespace widestream {

// Time on the steady clock, which never jumps.
using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// A point in time after which work should not go on. A value; infinite unless set.
class Deadline {
 public:
  Deadline() = default;

  static Deadline Infinite() { return {}; }
  static Deadline At(TimePoint time) { return Deadline(time); }
  // From now on the steady clock; far too long ones are infinite, negative ones already past.
  static Deadline After(Duration duration);
  static Deadline Earlier(Deadline a, Deadline b) { return a.time_ < b.time_ ? a : b; }

  [[nodiscard]] bool IsInfinite() const { return time_ == TimePoint::max(); }
  // TimePoint::max() if infinite.
  [[nodiscard]] TimePoint time() const { return time_; }
  [[nodiscard]] bool HasPassed() const { return HasPassed(std::chrono::steady_clock::now()); }
  [[nodiscard]] bool HasPassed(TimePoint now) const { return now >= time_ && !IsInfinite(); }
  // Zero once it has passed, Duration::max() if infinite.
  [[nodiscard]] Duration Remaining() const;

 private:
  explicit Deadline(TimePoint time) : time_(time) {}

  TimePoint time_ = TimePoint::max();
};

namespace cancellation_internal {
class State;
struct Callback;
}  // namespace cancellation_internal

// Keeps a callback attached to a token for as long as it lives. Move-only; the object itself is not
// thread-safe.
class CancellationRegistration {
 public:
  CancellationRegistration() = default;
  // Detaches the callback. If it is running in another thread, waits until it has returned, so what
  // it uses may be destroyed afterwards; inside the callback itself it does not wait.
  ~CancellationRegistration() { Reset(); }
  CancellationRegistration(CancellationRegistration&& other) noexcept = default;
  CancellationRegistration& operator=(CancellationRegistration&& other) noexcept;

  void Reset();

 private:
  friend class CancellationToken;
  CancellationRegistration(std::shared_ptr<cancellation_internal::State> state,
                           std::shared_ptr<cancellation_internal::Callback> callback);

  std::shared_ptr<cancellation_internal::State> state_;
  std::shared_ptr<cancellation_internal::Callback> callback_;
};

// Says whether work should stop. Cheap to copy (one pointer) and thread-safe. A default token is
// never cancelled and has no deadline.
class CancellationToken {
 public:
  CancellationToken() = default;

  // True once the source, or one that it is linked to, was cancelled. A passed deadline does not
  // count.
  [[nodiscard]] bool IsCancelled() const;
  // OK; or the reason given to Cancel; or DeadlineExceeded once the source's deadline has passed.
  [[nodiscard]] Status Check() const;
  // The source's deadline. No thread watches it: whoever waits must wait no longer than this.
  [[nodiscard]] Deadline deadline() const;

  // Calls `callback` once when the token is cancelled, in the thread that cancels, or at once in
  // this thread if it is cancelled already. Not called for a passed deadline. The callback is meant
  // to wake a waiter: it must be short and must not throw. It may take locks, so never call
  // OnCancel or destroy a registration while holding a lock that the callback takes.
  [[nodiscard]] CancellationRegistration OnCancel(std::function<void()> callback) const;

 private:
  friend class CancellationSource;
  explicit CancellationToken(std::shared_ptr<cancellation_internal::State> state)
      : state_(std::move(state)) {}

  std::shared_ptr<cancellation_internal::State> state_;
};

// Cancels the tokens that it gives out. Destroying the source cancels nothing and cuts its tokens
// off from the parent, so keep it while its tokens are in use. Thread-safe; move-only; a moved-from
// source may only be destroyed or assigned to.
class CancellationSource {
 public:
  explicit CancellationSource(Deadline deadline = Deadline::Infinite());
  // Cancelled when `parent` is, with its reason, and never later than its deadline.
  explicit CancellationSource(const CancellationToken& parent,
                              Deadline deadline = Deadline::Infinite());
  CancellationSource(CancellationSource&&) noexcept = default;
  CancellationSource& operator=(CancellationSource&&) noexcept = default;

  [[nodiscard]] CancellationToken token() const { return CancellationToken(state_); }
  // Cancels with status Cancelled and this message, and returns after the callbacks have. Only the
  // first call counts.
  void Cancel(std::string_view reason = "the work was cancelled");
  // Cancels with the status that stopped the work, for instance the first error of a group of
  // tasks. An OK status becomes Internal.
  void Cancel(Status reason);

 private:
  std::shared_ptr<cancellation_internal::State> state_;
  CancellationRegistration parent_;
};

}  // namespace widestream
