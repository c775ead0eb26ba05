// TaskPool: the one set of worker threads of a process, shared fairly by all sources.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "engine/base/cancellation.h"
#include "engine/base/status.h"

namespace widestream {

// A callable Status() that is called at most once. Unlike std::function it can hold move-only
// captures, for instance a Reservation. Move-only.
class Task {
 public:
  template <typename Function>
    requires(!std::same_as<std::decay_t<Function>, Task> &&
             std::is_invocable_r_v<Status, std::decay_t<Function>&>)
  Task(Function&&
           function)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload)
      : body_(std::make_unique<Body<std::decay_t<Function>>>(std::forward<Function>(function))) {}

  // Requires a task that was not moved from.
  Status operator()() { return body_->Call(); }

 private:
  struct BodyBase {
    virtual ~BodyBase() = default;
    virtual Status Call() = 0;
  };
  template <typename Function>
  struct Body final : BodyBase {
    explicit Body(Function f) : function(std::move(f)) {}
    Status Call() override { return function(); }
    Function function;
  };

  std::unique_ptr<BodyBase> body_;
};

namespace task_pool_internal {
class Item;
class State;
}  // namespace task_pool_internal

// Follows one submitted task. Cheap to copy; thread-safe; may outlive the pool.
class TaskHandle {
 public:
  // Waits until the task has ended and returns its status: what it returned; Internal if it threw
  // (ResourceExhausted for std::bad_alloc); the reason why it did not run. If `token` is cancelled
  // or the deadline passes first, returns that instead, and the task goes on. Inside a task of the
  // same pool this can deadlock: the awaited task may be queued behind the waiting one.
  [[nodiscard]] Status Wait(const CancellationToken& token = {},
                            Deadline deadline = Deadline::Infinite()) const;
  [[nodiscard]] bool IsDone() const;
  // Ends a task that has not started with status Cancelled; no effect on one that has.
  void Cancel() const;

 private:
  friend class TaskPool;
  explicit TaskHandle(std::shared_ptr<task_pool_internal::Item> item) : item_(std::move(item)) {}

  std::shared_ptr<task_pool_internal::Item> item_;
};

struct TaskOptions {
  // Whose task this is: workers serve the queues that hold tasks in turn, one task each, the most
  // urgent first.
  std::uint64_t queue = 0;
  // Within a queue, higher first; equal ones in the order of submission.
  int priority = 0;
  // If it is cancelled before the task starts, the task ends at once with that reason. A running
  // task must look at it itself.
  CancellationToken token = {};
  // What the task does, for error messages: "decode shard 3".
  std::string name = "task";
  // Called exactly once with the task's final status, before Wait returns, without any lock held:
  // in the worker, or in the thread that cancels, shuts down, or submits too late. Must not throw.
  std::function<void(const Status&)> on_done = {};
};

// Thread-safe. Every submitted task ends exactly once, with a status that its handle and its
// `on_done` see: it returns, it throws, it is cancelled before it starts, or the pool shuts down. A
// task's captures are destroyed before it counts as ended. Exceptions never leave a worker.
class TaskPool {
 public:
  enum class ShutdownMode : std::uint8_t {
    kRunQueued,   // Run what is queued.
    kDropQueued,  // End what is queued with status Cancelled, without running it.
  };
  struct Metrics {
    std::size_t threads = 0;
    std::uint64_t queued = 0;
    std::uint64_t running = 0;
    std::uint64_t succeeded = 0;
    std::uint64_t failed = 0;               // Ran and returned an error, or threw.
    std::uint64_t cancelled = 0;            // Never ran.
    std::uint64_t callback_exceptions = 0;  // on_done threw, against its contract.
  };

  static constexpr std::size_t kMaxThreads = 1024;

  // InvalidArgument unless 1 <= threads <= kMaxThreads; ResourceExhausted if the system refuses a
  // thread.
  [[nodiscard]] static Result<std::unique_ptr<TaskPool>> Make(std::size_t threads);
  // Shutdown(kDropQueued). Inside a task of this pool, drops what is queued and returns without
  // waiting for the running tasks.
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // Never waits: bound what you submit with a ByteBudget. Once a shutdown has begun the task ends
  // with status Cancelled, also if it is submitted by a running task.
  TaskHandle Submit(Task task, TaskOptions options = {});

  // Queues of a higher urgency are served before those of a lower one, those of the same in turn.
  // 0 at first; holds until it is set again.
  void SetUrgency(std::uint64_t queue, int urgency);

  // Refuses new tasks, runs or drops the queued ones, and waits for the running ones and the
  // threads. Repeated calls wait too; a kDropQueued during a kRunQueued drops what is still queued.
  // InvalidArgument inside a task of this pool, which cannot wait for itself.
  Status Shutdown(ShutdownMode mode);

  [[nodiscard]] Metrics GetMetrics() const;

 private:
  explicit TaskPool(std::shared_ptr<task_pool_internal::State> state);

  std::shared_ptr<task_pool_internal::State> state_;
};

}  // namespace widestream
