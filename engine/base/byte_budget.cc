#include "engine/base/byte_budget.h"

#include <algorithm>
#include <list>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/thread_annotations.h"

namespace widestream {
namespace byte_budget_internal {

class State {
 public:
  State(std::uint64_t limit_bytes, std::string name)
      : limit_bytes_(limit_bytes), name_(std::move(name)) {}

  std::uint64_t limit_bytes() const { return limit_bytes_; }

  Status CheckSize(std::uint64_t bytes) const {
    if (bytes <= limit_bytes_) return Status::Ok();
    return Status::InvalidArgument(
        StrCat("A reservation of ", bytes, " bytes exceeds the limit of ", limit_bytes_,
               " bytes of the byte budget ", Quoted(name_), ". Raise the limit or ask for less"));
  }

  Status TryTake(std::uint64_t bytes) WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (TakeIfFree(bytes)) return Status::Ok();
    return Status::Unavailable(Describe(bytes, " are not free now"));
  }

  // Returns once the bytes are taken, or with the reason why not.
  Status Take(std::uint64_t bytes, const CancellationToken& token, Deadline deadline)
      WS_EXCLUDES(mutex_) {
    if (token.IsCancelled()) return token.Check();
    Waiter waiter{.bytes = bytes, .changed = {}};
    {
      const MutexLock lock(mutex_);
      if (TakeIfFree(bytes)) return Status::Ok();
    }
    // Outside the lock, because the callback takes it. It is detached before `waiter` goes away.
    const CancellationRegistration registration = token.OnCancel([this, &waiter] {
      // The lock orders this after the waiter's test of its condition, so that no wake-up is lost.
      const MutexLock lock(mutex_);
      waiter.changed.NotifyOne();
    });
    deadline = Deadline::Earlier(deadline, token.deadline());
    const MutexLock lock(mutex_);
    if (TakeIfFree(bytes)) return Status::Ok();
    waiters_.push_back(&waiter);
    waiting_bytes_ += bytes;
    ++waited_requests_;
    while (!waiter.granted) {
      if (token.IsCancelled() || deadline.HasPassed()) {
        std::erase(waiters_, &waiter);
        waiting_bytes_ -= bytes;
        // If this was the head, the next ones may fit.
        GrantWaiters();
        if (token.IsCancelled()) return token.Check();
        return Status::DeadlineExceeded(Describe(bytes, " were not free before the deadline"));
      }
      waiter.changed.WaitUntil(mutex_, deadline.time());
    }
    return Status::Ok();
  }

  void Give(std::uint64_t bytes) WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    used_bytes_ -= bytes;
    GrantWaiters();
  }

  ByteBudget::Metrics GetMetrics() const WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return {.limit_bytes = limit_bytes_,
            .used_bytes = used_bytes_,
            .peak_bytes = peak_bytes_,
            .waiting_requests = waiters_.size(),
            .waiting_bytes = waiting_bytes_,
            .granted_requests = granted_requests_,
            .waited_requests = waited_requests_};
  }

 private:
  // Lives on the stack of the thread that waits. Its fields are guarded by the state's mutex_.
  struct Waiter {
    std::uint64_t bytes;
    bool granted = false;
    CondVar changed;
  };

  bool Fits(std::uint64_t bytes) const WS_REQUIRES(mutex_) {
    return bytes <= limit_bytes_ - used_bytes_;
  }

  void Grant(std::uint64_t bytes) WS_REQUIRES(mutex_) {
    used_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, used_bytes_);
    ++granted_requests_;
  }

  bool TakeIfFree(std::uint64_t bytes) WS_REQUIRES(mutex_) {
    if (!waiters_.empty() || !Fits(bytes)) return false;
    Grant(bytes);
    return true;
  }

  void GrantWaiters() WS_REQUIRES(mutex_) {
    while (!waiters_.empty() && Fits(waiters_.front()->bytes)) {
      Waiter& waiter = *waiters_.front();
      waiters_.pop_front();
      waiting_bytes_ -= waiter.bytes;
      Grant(waiter.bytes);
      waiter.granted = true;
      waiter.changed.NotifyOne();
    }
  }

  std::string Describe(std::uint64_t bytes, std::string_view problem) const WS_REQUIRES(mutex_) {
    return StrCat(bytes, " bytes of the byte budget ", Quoted(name_), problem, ": ", used_bytes_,
                  " of ", limit_bytes_, " bytes are in use and ", waiters_.size(),
                  " other requests for ", waiting_bytes_,
                  " bytes wait. Whoever holds them must release some, or the limit must be raised");
  }

  const std::uint64_t limit_bytes_;
  const std::string name_;
  mutable Mutex mutex_;
  std::uint64_t used_bytes_ WS_GUARDED_BY(mutex_) = 0;
  std::uint64_t peak_bytes_ WS_GUARDED_BY(mutex_) = 0;
  std::uint64_t waiting_bytes_ WS_GUARDED_BY(mutex_) = 0;
  std::uint64_t granted_requests_ WS_GUARDED_BY(mutex_) = 0;
  std::uint64_t waited_requests_ WS_GUARDED_BY(mutex_) = 0;
  std::list<Waiter*> waiters_ WS_GUARDED_BY(mutex_);  // In order of arrival.
};

}  // namespace byte_budget_internal

using byte_budget_internal::State;

Reservation::Reservation(std::shared_ptr<State> state, std::uint64_t bytes)
    : state_(bytes == 0 ? nullptr : std::move(state)), bytes_(bytes) {}

Reservation::Reservation(Reservation&& other) noexcept
    : state_(std::move(other.state_)), bytes_(std::exchange(other.bytes_, 0)) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    state_ = std::move(other.state_);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

Result<Reservation> Reservation::Split(std::uint64_t bytes) {
  if (bytes > bytes_) {
    return Status::InvalidArgument(
        StrCat("Cannot split ", bytes, " bytes off a reservation of ", bytes_));
  }
  Reservation part(state_, bytes);
  bytes_ -= bytes;
  if (bytes_ == 0) state_ = nullptr;
  return part;
}

Status Reservation::ShrinkTo(std::uint64_t bytes) {
  if (bytes > bytes_) {
    return Status::InvalidArgument(
        StrCat("Cannot shrink a reservation of ", bytes_, " bytes to ", bytes));
  }
  return Split(bytes_ - bytes).status();
}

Status Reservation::Merge(Reservation&& other) {
  if (this == &other) {
    return Status::InvalidArgument("Cannot merge a reservation with itself");
  }
  if (bytes_ != 0 && other.bytes_ != 0 && state_ != other.state_) {
    return Status::InvalidArgument("Cannot merge reservations of different byte budgets");
  }
  if (bytes_ == 0) state_ = std::move(other.state_);
  other.state_ = nullptr;
  bytes_ += std::exchange(other.bytes_, 0);
  return Status::Ok();
}

void Reservation::Release() {
  if (bytes_ != 0) state_->Give(bytes_);
  bytes_ = 0;
  state_ = nullptr;
}

ByteBudget::ByteBudget(std::uint64_t limit_bytes, std::string name)
    : state_(std::make_shared<State>(limit_bytes, std::move(name))) {}

Result<Reservation> ByteBudget::Reserve(std::uint64_t bytes, const CancellationToken& token,
                                        Deadline deadline) {
  WS_RETURN_IF_ERROR(state_->CheckSize(bytes));
  if (bytes == 0) return Reservation();
  // Keeps the state while this thread waits, even if the budget is destroyed meanwhile.
  const std::shared_ptr<State> state = state_;
  WS_RETURN_IF_ERROR(state->Take(bytes, token, deadline));
  return Reservation(state, bytes);
}

Result<Reservation> ByteBudget::TryReserve(std::uint64_t bytes) {
  WS_RETURN_IF_ERROR(state_->CheckSize(bytes));
  if (bytes == 0) return Reservation();
  WS_RETURN_IF_ERROR(state_->TryTake(bytes));
  return Reservation(state_, bytes);
}

std::uint64_t ByteBudget::limit_bytes() const { return state_->limit_bytes(); }

ByteBudget::Metrics ByteBudget::GetMetrics() const { return state_->GetMetrics(); }

}  // namespace widestream
