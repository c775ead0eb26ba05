// ByteBudget: one bound in bytes that everything which buffers data shares.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/base/cancellation.h"
#include "engine/base/status.h"

namespace widestream {

namespace byte_budget_internal {
class State;
}  // namespace byte_budget_internal

// Bytes taken from a ByteBudget; gives them back when destroyed. It may outlive the budget object.
// Move-only; one thread at a time. An empty reservation (the default) holds nothing and belongs to
// no budget.
class Reservation {
 public:
  Reservation() = default;
  ~Reservation() { Release(); }
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  // Moves `bytes` of these into a reservation of its own. InvalidArgument if there are fewer.
  [[nodiscard]] Result<Reservation> Split(std::uint64_t bytes);
  // Gives back what exceeds `bytes`, for instance when a worst case becomes known. InvalidArgument
  // if it holds fewer: growing would wait while holding, which can deadlock.
  [[nodiscard]] Status ShrinkTo(std::uint64_t bytes);
  // Takes over the bytes of `other`, which becomes empty. InvalidArgument, and nothing changes, if
  // both hold bytes of different budgets, or for itself.
  [[nodiscard]] Status Merge(Reservation&& other);
  // Gives everything back.
  void Release();

 private:
  friend class ByteBudget;
  Reservation(std::shared_ptr<byte_budget_internal::State> state, std::uint64_t bytes);

  std::shared_ptr<byte_budget_internal::State> state_;  // Null when empty.
  std::uint64_t bytes_ = 0;
};

// Thread-safe. Reservations are granted strictly in the order in which they were asked for: a large
// one at the head holds back small ones behind it, so that nobody starves. A reservation is granted
// whole or not at all; whoever needs several buffers at once (a step) reserves their sum and splits
// it. Waiting for a second reservation while holding a first can deadlock; set a deadline where
// that may happen.
//
// Invariant: used bytes <= limit, and the head waiter does not fit.
class ByteBudget {
 public:
  struct Metrics {
    std::uint64_t limit_bytes = 0;
    std::uint64_t used_bytes = 0;
    std::uint64_t peak_bytes = 0;  // The highest `used_bytes` so far.
    std::uint64_t waiting_requests = 0;
    std::uint64_t waiting_bytes = 0;
    std::uint64_t granted_requests = 0;  // So far, those that did not wait included.
    std::uint64_t waited_requests = 0;   // Requests that had to wait, however they ended.
  };

  // `name` is used in error messages: "host memory".
  ByteBudget(std::uint64_t limit_bytes, std::string name);
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Waits until `bytes` are free and its turn has come. InvalidArgument at once if it exceeds the
  // limit; the token's reason if it is cancelled; DeadlineExceeded, with who uses how much, once
  // `deadline` or the token's has passed. A request that can be granted at once is granted even if
  // the deadline has passed, but not if it is cancelled. Zero bytes never wait.
  [[nodiscard]] Result<Reservation> Reserve(std::uint64_t bytes,
                                            const CancellationToken& token = {},
                                            Deadline deadline = Deadline::Infinite());
  // Never waits: Unavailable if the bytes are not free or others wait for theirs; InvalidArgument
  // if it exceeds the limit.
  [[nodiscard]] Result<Reservation> TryReserve(std::uint64_t bytes);

  [[nodiscard]] std::uint64_t limit_bytes() const;
  [[nodiscard]] Metrics GetMetrics() const;

 private:
  std::shared_ptr<byte_budget_internal::State> state_;
};

}  // namespace widestream
