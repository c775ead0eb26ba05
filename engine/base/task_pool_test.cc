#include "engine/base/task_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/thread_annotations.h"

namespace widestream {
namespace {

using ShutdownMode = TaskPool::ShutdownMode;

std::unique_ptr<TaskPool> MakePool(std::size_t threads) {
  Result<std::unique_ptr<TaskPool>> pool = TaskPool::Make(threads);
  EXPECT_TRUE(pool.ok()) << pool.status().ToString();
  return std::move(pool).value();
}

// Holds a worker until it is opened, so that a test can fill the queues behind it.
class Gate {
 public:
  Status Pass() {
    const MutexLock lock(mutex_);
    entered_ = true;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(mutex_);
    return Status::Ok();
  }
  void AwaitEntered() {
    const MutexLock lock(mutex_);
    while (!entered_) changed_.Wait(mutex_);
  }
  void Open() {
    const MutexLock lock(mutex_);
    open_ = true;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool entered_ WS_GUARDED_BY(mutex_) = false;
  bool open_ WS_GUARDED_BY(mutex_) = false;
};

// A pool of one thread that stands at a gate.
struct GatedPool {
  std::unique_ptr<TaskPool> pool = MakePool(1);
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();
  TaskHandle gated = pool->Submit([gate = gate] { return gate->Pass(); }, {.queue = ~0ULL});

  GatedPool() { gate->AwaitEntered(); }
  ~GatedPool() { gate->Open(); }
};

// What one thread ran, in order; read after the pool is joined.
using Log = std::shared_ptr<std::string>;

void SubmitLetter(TaskPool& pool, const Log& log, std::uint64_t queue, char letter,
                  int priority = 0) {
  pool.Submit(
      [log, letter] {
        log->push_back(letter);
        return Status::Ok();
      },
      {.queue = queue, .priority = priority});
}

TEST(TaskPoolTest, RunsEveryTaskAndReportsItsStatus) {
  const std::unique_ptr<TaskPool> pool = MakePool(3);
  std::atomic<int> ran = 0;
  std::vector<TaskHandle> handles;
  handles.reserve(200);
  for (int i = 0; i < 200; ++i) {
    handles.push_back(pool->Submit(
        [&ran, i] {
          ++ran;
          return i % 10 == 0 ? Status::DataCorruption("record " + std::to_string(i)) : Status();
        },
        {.queue = static_cast<std::uint64_t>(i % 7)}));
  }
  for (int i = 0; i < 200; ++i) {
    const Status status = handles[i].Wait();
    EXPECT_EQ(status.ok(), i % 10 != 0);
    EXPECT_EQ(status.message(), status.ok() ? "" : "record " + std::to_string(i));
    EXPECT_TRUE(handles[i].IsDone());
  }
  EXPECT_EQ(ran.load(), 200);
  const TaskPool::Metrics metrics = pool->GetMetrics();
  EXPECT_EQ(metrics.threads, 3U);
  EXPECT_EQ(metrics.succeeded, 180U);
  EXPECT_EQ(metrics.failed, 20U);
  EXPECT_EQ(metrics.queued + metrics.running + metrics.cancelled, 0U);
}

TEST(TaskPoolTest, QueuesTakeTurnsSoThatALongOneDoesNotStarveOthers) {
  const Log log = std::make_shared<std::string>();
  {
    const GatedPool gated;
    for (int i = 0; i < 6; ++i) SubmitLetter(*gated.pool, log, 1, 'a');
    for (int i = 0; i < 2; ++i) SubmitLetter(*gated.pool, log, 2, 'b');
    SubmitLetter(*gated.pool, log, 3, 'c');
    gated.gate->Open();
    EXPECT_TRUE(gated.pool->Shutdown(ShutdownMode::kRunQueued).ok());
  }
  EXPECT_EQ(*log, "abcabaaaa");
}

TEST(TaskPoolTest, PriorityOrdersAQueueAndEqualOnesKeepTheirOrder) {
  const Log log = std::make_shared<std::string>();
  {
    const GatedPool gated;
    SubmitLetter(*gated.pool, log, 1, 'd', -1);
    SubmitLetter(*gated.pool, log, 1, 'b');
    SubmitLetter(*gated.pool, log, 1, 'c');
    SubmitLetter(*gated.pool, log, 1, 'a', 5);
    gated.gate->Open();
    EXPECT_TRUE(gated.pool->Shutdown(ShutdownMode::kRunQueued).ok());
  }
  EXPECT_EQ(*log, "abcd");
}

TEST(TaskPoolTest, TheMostUrgentQueueIsServedFirst) {
  const Log log = std::make_shared<std::string>();
  {
    const GatedPool gated;
    for (const char* letters = "acegbdfh"; *letters != '\0'; ++letters) {
      SubmitLetter(*gated.pool, log, static_cast<std::uint64_t>((*letters - 'a') / 2), *letters);
    }
    gated.pool->SetUrgency(2, 2);
    gated.pool->SetUrgency(3, 1);
    gated.pool->SetUrgency(1, 1);
    gated.pool->SetUrgency(1, 0);
    gated.gate->Open();
    EXPECT_TRUE(gated.pool->Shutdown(ShutdownMode::kRunQueued).ok());
  }
  EXPECT_EQ(*log, "efghacbd");
}

TEST(TaskPoolTest, ExceptionsBecomeStatuses) {
  const std::unique_ptr<TaskPool> pool = MakePool(1);
  const Status error =
      pool->Submit([]() -> Status { throw std::runtime_error("bad tile"); }, {.name = "decode 7"})
          .Wait();
  EXPECT_EQ(error.code(), StatusCode::kInternal);
  EXPECT_EQ(error.message(), "decode 7 threw an exception: bad tile");
  EXPECT_EQ(pool->Submit([]() -> Status { throw 7; }).Wait().code(), StatusCode::kInternal);
  EXPECT_EQ(pool->Submit([]() -> Status { throw std::bad_alloc(); }).Wait().code(),
            StatusCode::kResourceExhausted);
  EXPECT_TRUE(pool->Submit([] { return Status::Ok(); }).Wait().ok());
  EXPECT_EQ(pool->GetMetrics().failed, 3U);
}

TEST(TaskPoolTest, MoveOnlyCapturesAreDestroyedBeforeTheTaskCountsAsEnded) {
  const std::unique_ptr<TaskPool> pool = MakePool(1);
  auto value = std::make_shared<int>(5);
  const std::weak_ptr<int> weak = value;
  auto owner = std::make_unique<std::shared_ptr<int>>(std::move(value));
  bool gone_at_callback = false;
  const TaskHandle handle = pool->Submit(
      [owner = std::move(owner)] {
        return **owner == 5 ? Status::Ok() : Status::Internal("wrong value");
      },
      {.on_done = [&](const Status&) { gone_at_callback = weak.expired(); }});
  EXPECT_TRUE(handle.Wait().ok());
  EXPECT_TRUE(gone_at_callback);
}

TEST(TaskPoolTest, CancellingATokenEndsQueuedTasksAtOnceAndRunsNone) {
  const Log log = std::make_shared<std::string>();
  CancellationSource source;
  std::vector<Status> seen;
  {
    const GatedPool gated;
    std::vector<TaskHandle> handles;
    handles.reserve(3);
    for (int i = 0; i < 3; ++i) {
      handles.push_back(gated.pool->Submit(
          [log] {
            log->push_back('x');
            return Status::Ok();
          },
          {.queue = 1, .token = source.token(), .on_done = [&seen](const Status& status) {
             seen.push_back(status);
           }}));
    }
    SubmitLetter(*gated.pool, log, 1, 'a');
    SubmitLetter(*gated.pool, log, 2, 'b');
    source.Cancel("the source was removed");
    // The worker still stands at the gate.
    for (const TaskHandle& handle : handles) {
      EXPECT_TRUE(handle.IsDone());
      EXPECT_EQ(handle.Wait().message(), "the source was removed");
    }
    EXPECT_EQ(gated.pool->GetMetrics().cancelled, 3U);
    EXPECT_EQ(gated.pool->GetMetrics().queued, 2U);
    const TaskHandle late =
        gated.pool->Submit([] { return Status::Ok(); }, {.token = source.token()});
    EXPECT_EQ(late.Wait().code(), StatusCode::kCancelled);
    gated.gate->Open();
    EXPECT_TRUE(gated.pool->Shutdown(ShutdownMode::kRunQueued).ok());
  }
  EXPECT_EQ(*log, "ab");
  EXPECT_EQ(seen.size(), 3U);
}

TEST(TaskPoolTest, AHandleCancelsItsQueuedTaskOnly) {
  const GatedPool gated;
  const TaskHandle queued =
      gated.pool->Submit([] { return Status::Internal("ran"); }, {.name = "read shard 2"});
  queued.Cancel();
  EXPECT_EQ(queued.Wait().message(), "read shard 2 was cancelled before it started");
  gated.gated.Cancel();
  EXPECT_FALSE(gated.gated.IsDone());
  gated.gate->Open();
  EXPECT_TRUE(gated.gated.Wait().ok());
}

TEST(TaskPoolTest, ATaskWhoseDeadlineHasPassedDoesNotRun) {
  const std::unique_ptr<TaskPool> pool = MakePool(1);
  const CancellationSource source(Deadline::After(std::chrono::seconds(-1)));
  bool ran = false;
  const Status status = pool->Submit(
                                [&ran] {
                                  ran = true;
                                  return Status::Ok();
                                },
                                {.token = source.token()})
                            .Wait();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(ran);
  EXPECT_EQ(pool->GetMetrics().cancelled, 1U);
}

TEST(TaskPoolTest, AWaitCanBeCancelledOrTimeOutWithoutHarmToTheTask) {
  const GatedPool gated;
  CancellationSource source;
  Status waited;
  std::thread waiter([&] { waited = gated.gated.Wait(source.token()); });
  source.Cancel("enough");
  waiter.join();
  EXPECT_EQ(waited.message(), "enough");
  EXPECT_EQ(gated.gated.Wait({}, Deadline::After(std::chrono::milliseconds(2))).code(),
            StatusCode::kDeadlineExceeded);
  gated.gate->Open();
  EXPECT_TRUE(gated.gated.Wait().ok());
}

TEST(TaskPoolTest, ShutdownCanDropWhatIsQueuedAndTellsEveryTask) {
  std::optional<TaskHandle> dropped;
  std::atomic<int> callbacks = 0;
  const GatedPool gated;
  dropped = gated.pool->Submit([] { return Status::Internal("ran"); },
                               {.name = "tokenize", .on_done = [&callbacks](const Status& status) {
                                  if (status.code() == StatusCode::kCancelled) ++callbacks;
                                }});
  std::thread closer([&] { EXPECT_TRUE(gated.pool->Shutdown(ShutdownMode::kDropQueued).ok()); });
  EXPECT_EQ(dropped->Wait().message(), "tokenize did not run: the task pool was shut down");
  EXPECT_FALSE(gated.gated.IsDone());
  gated.gate->Open();
  closer.join();
  EXPECT_TRUE(gated.gated.Wait().ok());
  EXPECT_EQ(callbacks.load(), 1);
  EXPECT_TRUE(gated.pool->Shutdown(ShutdownMode::kRunQueued).ok());
  const TaskHandle late = gated.pool->Submit([] { return Status::Internal("ran"); });
  EXPECT_EQ(late.Wait().code(), StatusCode::kCancelled);
}

TEST(TaskPoolTest, ATaskCannotShutDownItsPoolButMayOwnIt) {
  auto pool = std::shared_ptr<TaskPool>(MakePool(1));
  TaskPool& borrowed = *pool;
  Gate gate;
  const TaskHandle handle = borrowed.Submit([&gate, pool]() mutable {
    WS_RETURN_IF_ERROR(gate.Pass());
    const Status status = pool->Shutdown(ShutdownMode::kDropQueued);
    pool.reset();
    return status;
  });
  pool.reset();
  gate.Open();
  EXPECT_EQ(handle.Wait().code(), StatusCode::kInvalidArgument);
}

TEST(TaskPoolTest, ACallbackThatThrowsIsCountedAndHarmless) {
  const std::unique_ptr<TaskPool> pool = MakePool(1);
  const TaskHandle handle =
      pool->Submit([] { return Status::Ok(); },
                   {.on_done = [](const Status&) { throw std::runtime_error("no"); }});
  EXPECT_TRUE(handle.Wait().ok());
  EXPECT_EQ(pool->GetMetrics().callback_exceptions, 1U);
  EXPECT_TRUE(pool->Submit([] { return Status::Ok(); }).Wait().ok());
}

TEST(TaskPoolTest, TheNumberOfThreadsIsChecked) {
  for (const std::size_t threads : {std::size_t{0}, TaskPool::kMaxThreads + 1}) {
    EXPECT_EQ(TaskPool::Make(threads).status().code(), StatusCode::kInvalidArgument);
  }
}

// Every task ends exactly once however submission, cancellation and shutdown fall together.
TEST(TaskPoolTest, NoTaskIsLostOrEndedTwice) {
  constexpr std::size_t kThreads = 3;
  constexpr std::size_t kTasks = 200;
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<TaskPool> pool = MakePool(2);
    CancellationSource source;
    std::atomic<int> ran = 0;
    std::vector<std::atomic<int>> ended(kThreads * kTasks);
    std::vector<std::vector<TaskHandle>> handles(kThreads);
    std::vector<std::thread> threads;
    threads.reserve(kThreads);
    for (std::size_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (std::size_t i = 0; i < kTasks; ++i) {
          std::atomic<int>& count = ended[t * kTasks + i];
          handles[t].push_back(pool->Submit(
              [&ran] {
                ++ran;
                return Status::Ok();
              },
              {.queue = i % 5,
               .priority = static_cast<int>(i % 3),
               .token = i % 2 == 0 ? source.token() : CancellationToken(),
               .on_done = [&count](const Status&) { ++count; }}));
          if (t == 0 && i == kTasks / 2) source.Cancel();
          if (t == 1 && i == 3 * kTasks / 4) {
            EXPECT_TRUE(pool->Shutdown(round % 2 == 0 ? ShutdownMode::kDropQueued
                                                      : ShutdownMode::kRunQueued)
                            .ok());
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    int succeeded = 0;
    for (const std::vector<TaskHandle>& list : handles) {
      for (const TaskHandle& handle : list) succeeded += handle.Wait().ok() ? 1 : 0;
    }
    EXPECT_EQ(succeeded, ran.load());
    for (const std::atomic<int>& count : ended) ASSERT_EQ(count.load(), 1);
    const TaskPool::Metrics metrics = pool->GetMetrics();
    EXPECT_EQ(metrics.queued + metrics.running, 0U);
    EXPECT_EQ(metrics.succeeded + metrics.cancelled, kThreads * kTasks);
  }
}

}  // namespace
}  // namespace widestream
