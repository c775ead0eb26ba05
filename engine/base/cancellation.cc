#include "engine/base/cancellation.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>

#include "engine/base/thread_annotations.h"

namespace widestream {

Deadline Deadline::After(Duration duration) {
  const TimePoint now = std::chrono::steady_clock::now();
  if (duration >= TimePoint::max() - now) return Infinite();
  return Deadline(now + std::max(duration, Duration::zero()));
}

Duration Deadline::Remaining() const {
  if (IsInfinite()) return Duration::max();
  return std::max(time_ - TimePoint(std::chrono::steady_clock::now()), Duration::zero());
}

namespace cancellation_internal {

struct Callback {
  std::function<void()> call;
};

// What a source, its tokens and its registrations share. Invariant: once `cancelled_` is set,
// `reason_` never changes, and a callback is either in `callbacks_`, or running, or will not run.
class State {
 public:
  explicit State(Deadline deadline) : deadline_(deadline) {}

  bool IsCancelled() const { return cancelled_.load(std::memory_order_acquire); }
  Deadline deadline() const { return deadline_; }

  Status Reason() const WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return reason_;
  }

  void Cancel(Status reason) WS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (cancelled_.load(std::memory_order_relaxed)) return;
    reason_ = std::move(reason);
    cancelled_.store(true, std::memory_order_release);
    running_thread_ = std::this_thread::get_id();
    while (!callbacks_.empty()) {
      running_ = *callbacks_.begin();
      callbacks_.erase(callbacks_.begin());
      const std::shared_ptr<Callback> callback = running_;
      lock.Unlock();
      callback->call();
      lock.Lock();
      running_ = nullptr;
      callback_returned_.NotifyAll();
    }
  }

  // False if the token is cancelled already: the caller then runs the callback.
  bool Add(std::shared_ptr<Callback> callback) WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (cancelled_.load(std::memory_order_relaxed)) return false;
    callbacks_.insert(std::move(callback));
    return true;
  }

  void Remove(const std::shared_ptr<Callback>& callback) WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    callbacks_.erase(callback);
    if (running_thread_ == std::this_thread::get_id()) return;
    while (running_ == callback) callback_returned_.Wait(mutex_);
  }

 private:
  const Deadline deadline_;
  std::atomic<bool> cancelled_ = false;
  mutable Mutex mutex_;
  CondVar callback_returned_;
  Status reason_ WS_GUARDED_BY(mutex_);
  std::unordered_set<std::shared_ptr<Callback>> callbacks_ WS_GUARDED_BY(mutex_);
  std::shared_ptr<Callback> running_ WS_GUARDED_BY(mutex_);
  std::thread::id running_thread_ WS_GUARDED_BY(mutex_);
};

}  // namespace cancellation_internal

using cancellation_internal::Callback;
using cancellation_internal::State;

CancellationRegistration::CancellationRegistration(std::shared_ptr<State> state,
                                                   std::shared_ptr<Callback> callback)
    : state_(std::move(state)), callback_(std::move(callback)) {}

CancellationRegistration& CancellationRegistration::operator=(
    CancellationRegistration&& other) noexcept {
  if (this != &other) {
    Reset();
    state_ = std::move(other.state_);
    callback_ = std::move(other.callback_);
  }
  return *this;
}

void CancellationRegistration::Reset() {
  if (callback_ != nullptr) state_->Remove(callback_);
  callback_ = nullptr;
  state_ = nullptr;
}

bool CancellationToken::IsCancelled() const { return state_ != nullptr && state_->IsCancelled(); }

Status CancellationToken::Check() const {
  if (state_ == nullptr) return Status::Ok();
  if (state_->IsCancelled()) return state_->Reason();
  if (state_->deadline().HasPassed()) {
    return Status::DeadlineExceeded("the deadline of the work has passed");
  }
  return Status::Ok();
}

Deadline CancellationToken::deadline() const {
  return state_ == nullptr ? Deadline::Infinite() : state_->deadline();
}

CancellationRegistration CancellationToken::OnCancel(std::function<void()> callback) const {
  if (state_ == nullptr) return {};
  auto shared = std::make_shared<Callback>(Callback{std::move(callback)});
  if (state_->Add(shared)) return {state_, std::move(shared)};
  shared->call();
  return {};
}

CancellationSource::CancellationSource(Deadline deadline)
    : state_(std::make_shared<State>(deadline)) {}

CancellationSource::CancellationSource(const CancellationToken& parent, Deadline deadline)
    : CancellationSource(Deadline::Earlier(deadline, parent.deadline())) {
  // The parent must not keep this state alive: sources come and go under one long-lived parent.
  // Nor may the callback keep the parent's state alive, which owns the callback.
  parent_ =
      parent.OnCancel([weak = std::weak_ptr<State>(state_), parent_state = parent.state_.get()] {
        if (const std::shared_ptr<State> state = weak.lock()) {
          state->Cancel(parent_state->Reason());
        }
      });
}

void CancellationSource::Cancel(std::string_view reason) {
  state_->Cancel(Status::Cancelled(std::string(reason)));
}

void CancellationSource::Cancel(Status reason) {
  state_->Cancel(reason.ok() ? Status::Internal("work was cancelled with an OK status")
                             : std::move(reason));
}

}  // namespace widestream
