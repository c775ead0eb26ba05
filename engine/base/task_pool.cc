#include "engine/base/task_pool.h"

#include <pthread.h>

#include <atomic>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <system_error>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "engine/base/format_text.h"
#include "engine/base/thread_annotations.h"

namespace widestream {
namespace {

// The state of the pool that this thread works for.
thread_local const void* current_pool = nullptr;

}  // namespace

namespace task_pool_internal {

// Counts that items update; they may outlive the pool in a handle.
struct Counters {
  std::atomic<std::uint64_t> queued = 0;
  std::atomic<std::uint64_t> running = 0;
  std::atomic<std::uint64_t> succeeded = 0;
  std::atomic<std::uint64_t> failed = 0;
  std::atomic<std::uint64_t> cancelled = 0;
  std::atomic<std::uint64_t> callback_exceptions = 0;
};

// One submitted task. Whoever wins Claim() - a worker, a canceller or a shutdown - alone ends it,
// which is why each ends exactly once.
class Item : public std::enable_shared_from_this<Item> {
 public:
  Item(Task task, TaskOptions options, std::shared_ptr<Counters> counters)
      : counters_(std::move(counters)), task_(std::move(task)), options_(std::move(options)) {
    ++counters_->queued;
  }

  std::uint64_t queue() const { return options_.queue; }
  int priority() const { return options_.priority; }

  // Called once, before the item is shared with a worker.
  void WatchToken() {
    registration_ = options_.token.OnCancel([weak = weak_from_this()] {
      if (const std::shared_ptr<Item> item = weak.lock()) {
        item->Cancel(item->options_.token.Check());
      }
    });
  }

  [[nodiscard]] bool Claim() WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (phase_ != Phase::kQueued) return false;
    phase_ = Phase::kClaimed;
    --counters_->queued;
    return true;
  }

  // Ends the task unrun if nobody has claimed it.
  void Cancel(const Status& reason) {
    if (Claim()) EndUnrun(reason);
  }

  // Requires a won Claim().
  void EndUnrun(Status reason) {
    DestroyTask();
    ++counters_->cancelled;
    Complete(std::move(reason));
  }

  // Requires a won Claim(), by a worker.
  void Run() {
    registration_.Reset();
    if (Status stop = options_.token.Check(); !stop.ok()) {
      EndUnrun(std::move(stop));
      return;
    }
    ++counters_->running;
    Status status = Call();
    DestroyTask();
    --counters_->running;
    ++(status.ok() ? counters_->succeeded : counters_->failed);
    Complete(std::move(status));
  }

  Status Wait(const CancellationToken& token, Deadline deadline) WS_EXCLUDES(mutex_) {
    const CancellationRegistration registration = token.OnCancel([this] {
      // The lock orders this after the waiter's test of its condition, so that no wake-up is lost.
      const MutexLock lock(mutex_);
      changed_.NotifyAll();
    });
    deadline = Deadline::Earlier(deadline, token.deadline());
    const MutexLock lock(mutex_);
    while (phase_ != Phase::kDone) {
      if (token.IsCancelled()) return token.Check();
      if (deadline.HasPassed()) {
        return Status::DeadlineExceeded(
            StrCat(options_.name, " did not end before the deadline of the wait for it"));
      }
      changed_.WaitUntil(mutex_, deadline.time());
    }
    return status_;
  }

  bool IsDone() const WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return phase_ == Phase::kDone;
  }

  Status CancelledByHandle() const {
    return Status::Cancelled(StrCat(options_.name, " was cancelled before it started"));
  }
  Status CancelledByShutdown() const {
    return Status::Cancelled(StrCat(options_.name, " did not run: the task pool was shut down"));
  }

 private:
  enum class Phase : std::uint8_t { kQueued, kClaimed, kDone };

  // Its captures may hold a budget that others wait for.
  void DestroyTask() { const Task ended = std::move(task_); }

  Status Call() {
    try {
      return task_();
    } catch (const std::bad_alloc&) {
      return Status::ResourceExhausted(StrCat(options_.name, " ran out of memory"));
    } catch (const std::exception& error) {
      return Status::Internal(StrCat(options_.name, " threw an exception: ", error.what()));
    } catch (...) {
      return Status::Internal(StrCat(options_.name, " threw an exception of an unknown type"));
    }
  }

  void Complete(Status status) WS_EXCLUDES(mutex_) {
    if (options_.on_done) {
      try {
        options_.on_done(status);
      } catch (...) {
        ++counters_->callback_exceptions;
      }
      options_.on_done = nullptr;
    }
    const MutexLock lock(mutex_);
    status_ = std::move(status);
    phase_ = Phase::kDone;
    changed_.NotifyAll();
  }

  const std::shared_ptr<Counters> counters_;
  // Belong to whoever claimed the item; options_'s plain fields are constant.
  Task task_;
  TaskOptions options_;
  CancellationRegistration registration_;

  mutable Mutex mutex_;
  CondVar changed_;
  Phase phase_ WS_GUARDED_BY(mutex_) = Phase::kQueued;
  Status status_ WS_GUARDED_BY(mutex_);
};

// The queues and the threads. Lock order: the state's mutex, then an item's. No user code runs
// under either.
class State {
 public:
  explicit State(std::size_t threads) : thread_count_(threads) {}

  const std::shared_ptr<Counters>& counters() const { return counters_; }
  std::size_t thread_count() const { return thread_count_; }

  // Throws std::system_error if the system refuses a thread; those that started go on.
  static void Start(const std::shared_ptr<State>& state) WS_EXCLUDES(state->mutex_) {
    {
      const MutexLock lock(state->mutex_);
      state->threads_.reserve(state->thread_count_);
    }
    for (std::size_t i = 0; i < state->thread_count_; ++i) {
      std::thread thread([state, i] {
        pthread_setname_np(pthread_self(), StrCat("ws-pool-", i).c_str());
        state->Work();
      });
      const MutexLock lock(state->mutex_);
      state->threads_.push_back(std::move(thread));
    }
  }

  // False once a shutdown has begun.
  bool Push(const std::shared_ptr<Item>& item) WS_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (stopping_) return false;
      Queue& queue = queues_[item->queue()];
      if (queue.empty()) turns_.push_back(item->queue());
      queue.emplace(Position(-std::int64_t{item->priority()}, next_sequence_++), item);
    }
    work_available_.NotifyOne();
    return true;
  }

  void SetUrgency(std::uint64_t queue, int urgency) WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (urgency == 0) {
      urgencies_.erase(queue);
    } else {
      urgencies_[queue] = urgency;
    }
  }

  bool IsCurrentThreadAWorker() const { return current_pool == this; }

  void Stop(TaskPool::ShutdownMode mode) WS_EXCLUDES(mutex_) {
    std::unordered_map<std::uint64_t, Queue> dropped;
    {
      const MutexLock lock(mutex_);
      stopping_ = true;
      if (mode == TaskPool::ShutdownMode::kDropQueued) {
        dropped.swap(queues_);
        turns_.clear();
      }
    }
    work_available_.NotifyAll();
    for (const auto& [id, queue] : dropped) {
      for (const auto& [position, item] : queue) item->Cancel(item->CancelledByShutdown());
    }
  }

  void Join() WS_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (joining_) {
      while (!joined_) all_joined_.Wait(mutex_);
      return;
    }
    joining_ = true;
    std::vector<std::thread> threads = std::move(threads_);
    lock.Unlock();
    for (std::thread& thread : threads) thread.join();
    lock.Lock();
    joined_ = true;
    all_joined_.NotifyAll();
  }

  // Lets the threads end on their own; each keeps this state until then.
  void Detach() WS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    for (std::thread& thread : threads_) thread.detach();
    threads_.clear();
  }

 private:
  using Position = std::tuple<std::int64_t, std::uint64_t>;  // Negated priority, sequence number.
  using Queue = std::map<Position, std::shared_ptr<Item>>;

  void Work() WS_EXCLUDES(mutex_) {
    current_pool = this;
    while (const std::shared_ptr<Item> item = AwaitItem()) item->Run();
    current_pool = nullptr;
  }

  // The next claimed item; null once the pool stops and nothing is queued.
  std::shared_ptr<Item> AwaitItem() WS_EXCLUDES(mutex_) {
    // Cancelled items stay in their queue until they come up; they are destroyed after the lock is
    // released.
    std::vector<std::shared_ptr<Item>> cancelled;
    MutexLock lock(mutex_);
    while (true) {
      if (std::shared_ptr<Item> item = PopItem(cancelled)) return item;
      if (!cancelled.empty()) {
        lock.Unlock();
        cancelled.clear();
        lock.Lock();
      } else if (stopping_) {
        return nullptr;
      } else {
        work_available_.Wait(mutex_);
      }
    }
  }

  // The first of the most urgent queues. Linear in the queues, of which a task is worth many.
  std::deque<std::uint64_t>::iterator NextTurn() WS_REQUIRES(mutex_) {
    auto next = turns_.begin();
    if (urgencies_.empty()) return next;
    int most = std::numeric_limits<int>::min();
    for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
      const auto found = urgencies_.find(*turn);
      const int urgency = found == urgencies_.end() ? 0 : found->second;
      if (urgency <= most) continue;
      most = urgency;
      next = turn;
    }
    return next;
  }

  std::shared_ptr<Item> PopItem(std::vector<std::shared_ptr<Item>>& cancelled) WS_REQUIRES(mutex_) {
    while (!turns_.empty()) {
      const auto turn = NextTurn();
      const std::uint64_t id = *turn;
      turns_.erase(turn);
      const auto found = queues_.find(id);
      Queue& queue = found->second;
      std::shared_ptr<Item> claimed;
      while (claimed == nullptr && !queue.empty()) {
        std::shared_ptr<Item> first = std::move(queue.begin()->second);
        queue.erase(queue.begin());
        if (first->Claim()) {
          claimed = std::move(first);
        } else {
          cancelled.push_back(std::move(first));
        }
      }
      if (queue.empty()) {
        queues_.erase(found);
      } else {
        turns_.push_back(id);
      }
      if (claimed != nullptr) return claimed;
    }
    return nullptr;
  }

  const std::size_t thread_count_;
  const std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  Mutex mutex_;
  CondVar work_available_;
  CondVar all_joined_;
  // Invariant: turns_ holds the id of each queue exactly once, and no queue is empty.
  std::unordered_map<std::uint64_t, Queue> queues_ WS_GUARDED_BY(mutex_);
  std::deque<std::uint64_t> turns_ WS_GUARDED_BY(mutex_);
  std::unordered_map<std::uint64_t, int> urgencies_ WS_GUARDED_BY(mutex_);  // those other than 0
  std::uint64_t next_sequence_ WS_GUARDED_BY(mutex_) = 0;
  bool stopping_ WS_GUARDED_BY(mutex_) = false;
  bool joining_ WS_GUARDED_BY(mutex_) = false;
  bool joined_ WS_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ WS_GUARDED_BY(mutex_);
};

}  // namespace task_pool_internal

using task_pool_internal::Counters;
using task_pool_internal::Item;
using task_pool_internal::State;

Status TaskHandle::Wait(const CancellationToken& token, Deadline deadline) const {
  return item_->Wait(token, deadline);
}

bool TaskHandle::IsDone() const { return item_->IsDone(); }

void TaskHandle::Cancel() const { item_->Cancel(item_->CancelledByHandle()); }

Result<std::unique_ptr<TaskPool>> TaskPool::Make(std::size_t threads) {
  if (threads == 0 || threads > kMaxThreads) {
    return Status::InvalidArgument(StrCat(
        "A task pool of ", threads, " threads was asked for; it must have 1 to ", kMaxThreads));
  }
  std::unique_ptr<TaskPool> pool(new TaskPool(std::make_shared<State>(threads)));
  try {
    State::Start(pool->state_);
  } catch (const std::system_error& error) {
    return Status::ResourceExhausted(StrCat("A task pool could not start its ", threads,
                                            " threads: ", error.what(),
                                            ". Ask for fewer or raise the limit on threads"));
  }
  return pool;
}

TaskPool::TaskPool(std::shared_ptr<State> state) : state_(std::move(state)) {}

TaskPool::~TaskPool() {
  state_->Stop(ShutdownMode::kDropQueued);
  if (state_->IsCurrentThreadAWorker()) {
    state_->Detach();
  } else {
    state_->Join();
  }
}

TaskHandle TaskPool::Submit(Task task, TaskOptions options) {
  auto item = std::make_shared<Item>(std::move(task), std::move(options), state_->counters());
  item->WatchToken();
  if (!state_->Push(item)) item->Cancel(item->CancelledByShutdown());
  return TaskHandle(std::move(item));
}

void TaskPool::SetUrgency(std::uint64_t queue, int urgency) { state_->SetUrgency(queue, urgency); }

Status TaskPool::Shutdown(ShutdownMode mode) {
  if (state_->IsCurrentThreadAWorker()) {
    return Status::InvalidArgument("A task cannot shut down the task pool that runs it");
  }
  state_->Stop(mode);
  state_->Join();
  return Status::Ok();
}

TaskPool::Metrics TaskPool::GetMetrics() const {
  const Counters& counters = *state_->counters();
  return {.threads = state_->thread_count(),
          .queued = counters.queued,
          .running = counters.running,
          .succeeded = counters.succeeded,
          .failed = counters.failed,
          .cancelled = counters.cancelled,
          .callback_exceptions = counters.callback_exceptions};
}

}  // namespace widestream
