// For tests: a provider of steps whose bytes say which step and bucket they belong to.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/thread_annotations.h"
#include "engine/deliver/client.h"
#include "engine/deliver/server.h"
#include "engine/deliver/slab_pool.h"
#include "engine/deliver/step_provider.h"

namespace widestream::delivery_testing {

using Clock = std::chrono::steady_clock;

inline Clock::time_point Soon(int seconds = 20) {
  return Clock::now() + std::chrono::seconds(seconds);
}

// Element `i` of the tokens of `bucket` in `step`.
inline std::int64_t TokenAt(std::uint64_t step, std::uint32_t bucket, std::size_t i) {
  return static_cast<std::int64_t>(step * 1000003 + std::uint64_t{bucket} * 7919 + i);
}

struct FakeStream {
  std::uint64_t first_step = 0;
  std::uint64_t steps = 1000;  // then the end
  std::uint32_t buckets = 1;
  std::size_t tokens = 1024;       // a bucket
  std::size_t varying_tokens = 0;  // up to so many more, by step: slabs of several sizes
  std::size_t memory_bytes = 1 << 20;
  std::size_t ahead = 2;  // steps that are ready before they are asked for
};

inline std::size_t TokensOf(const FakeStream& stream, std::uint64_t step) {
  return stream.tokens +
         (stream.varying_tokens == 0 ? 0 : (step * 2654435761U) % stream.varying_tokens);
}

class FakeProvider final : public StepProvider {
 public:
  explicit FakeProvider(FakeStream stream)
      : stream_(stream),
        pool_(stream.memory_bytes),
        built_(stream.first_step),
        builder_([this] { Build(); }) {}
  ~FakeProvider() override {
    Stop();
    builder_.join();
  }

  Result<std::shared_ptr<const Step>> TryNext(bool* ended) override {
    MutexLock lock(mutex_);
    *ended = false;
    if (!fault_.ok()) return fault_;
    if (ready_.empty()) {
      *ended = built_ == stream_.first_step + stream_.steps;
      return std::shared_ptr<const Step>();
    }
    std::shared_ptr<const Step> step = std::move(ready_.front());
    ready_.pop_front();
    taken_ = step->number + 1;
    changed_.NotifyAll();
    return step;
  }
  bool WaitsForMemory() override {
    MutexLock lock(mutex_);
    return ready_.empty() && leasing_;
  }
  void NotifyWhenReady(std::function<void()> wake) override {
    MutexLock lock(mutex_);
    wake_ = std::move(wake);
    wake_();
  }
  Result<std::string> StateJson(std::optional<std::uint64_t> step) override {
    MutexLock lock(mutex_);
    return "{\"step\": " + std::to_string(step.value_or(taken_.value_or(stream_.first_step))) +
           padding_ + "}";
  }
  Result<std::uint64_t> Decide(Decision decision) override {
    MutexLock lock(mutex_);
    if (decision.reason == "refuse") return Status::InvalidArgument("this decision is refused");
    ++decisions_;
    fault_ = Status::Ok();
    return std::max(decision.step, taken_.value_or(stream_.first_step));
  }
  Status CommitJournal() override { return Status::Ok(); }
  std::string StatusJson() override { return "{\"doing\": \"testing\"}"; }
  std::string DescriptionJson() override { return "{\"description\": true}"; }
  void Stop() override {
    pool_.Stop();
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }

  int decisions() const {
    MutexLock lock(mutex_);
    return decisions_;
  }
  void Fail(Status fault) {
    MutexLock lock(mutex_);
    fault_ = std::move(fault);
    if (wake_) wake_();
  }
  // States grow by so much.
  void PadState(std::size_t bytes) {
    MutexLock lock(mutex_);
    padding_.assign(bytes, ' ');
  }
  SlabPool& pool() { return pool_; }

 private:
  void Build() {
    for (;;) {
      {
        MutexLock lock(mutex_);
        while (!stopped_ &&
               (ready_.size() >= stream_.ahead || built_ == stream_.first_step + stream_.steps)) {
          changed_.Wait(mutex_);
        }
        if (stopped_) return;
        leasing_ = true;
      }
      std::shared_ptr<const Step> step = BuildStep();
      MutexLock lock(mutex_);
      leasing_ = false;
      if (step == nullptr) return;  // stopped
      ready_.push_back(std::move(step));
      ++built_;
      if (wake_) wake_();
    }
  }

  std::shared_ptr<const Step> BuildStep() {
    std::uint64_t number = 0;
    {
      MutexLock lock(mutex_);
      number = built_;
    }
    auto step = std::make_shared<Step>();
    step->number = number;
    auto plan = std::make_shared<StepPlan>();
    plan->step = number;
    plan->digest = std::string(32, 'd');
    const std::size_t tokens = TokensOf(stream_, number);
    plan->real_tokens = tokens * stream_.buckets;
    plan->supervised_tokens = plan->real_tokens - stream_.buckets;
    for (std::uint32_t b = 0; b < stream_.buckets; ++b) {
      Piece piece;
      piece.length = static_cast<std::uint32_t>(tokens);
      piece.position = b;
      piece.draw = b;
      piece.last = true;
      plan->pieces.push_back(piece);
      RankPlan rank;
      rank.microbatches.resize(1);
      rank.microbatches[0].rows = {{b}};
      plan->ranks.push_back(std::move(rank));
    }
    step->plan = plan;
    step->weights = {1ULL << 32};
    for (std::uint32_t b = 0; b < stream_.buckets; ++b) {
      Bucket bucket;
      TensorView view;
      view.name = "tokens";
      view.shape = {1, static_cast<std::int64_t>(tokens)};
      bucket.view.step = number;
      bucket.view.rank = b;
      bucket.view.size_bytes = view.size_bytes();
      auto slab = pool_.Lease(view.size_bytes(), Clock::time_point::max());
      if (!slab.ok()) return nullptr;
      bucket.slab = *slab;
      auto* values = reinterpret_cast<std::int64_t*>(bucket.slab->memory().data());
      for (std::size_t i = 0; i < tokens; ++i) values[i] = TokenAt(number, b, i);
      bucket.view.microbatches.resize(1);
      bucket.view.microbatches[0].max_seqlen = static_cast<std::int64_t>(tokens);
      bucket.view.microbatches[0].real_tokens = tokens;
      bucket.view.microbatches[0].tensors.push_back(std::move(view));
      step->buckets.push_back(std::move(bucket));
    }
    return step;
  }

  const FakeStream stream_;
  SlabPool pool_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::shared_ptr<const Step>> ready_ WS_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> taken_ WS_GUARDED_BY(mutex_);
  std::uint64_t built_ WS_GUARDED_BY(mutex_);
  std::function<void()> wake_ WS_GUARDED_BY(mutex_);
  std::string padding_ WS_GUARDED_BY(mutex_);
  Status fault_ WS_GUARDED_BY(mutex_);
  int decisions_ WS_GUARDED_BY(mutex_) = 0;
  bool leasing_ WS_GUARDED_BY(mutex_) = false;
  bool stopped_ WS_GUARDED_BY(mutex_) = false;
  std::thread builder_;
};

// Remembers the last provider; a state that is not empty is the number of the first step.
class FakeFactory final : public SessionFactory {
 public:
  struct Log {
    Mutex mutex;
    FakeProvider* last WS_GUARDED_BY(mutex) = nullptr;  // owned by the server
    int opened WS_GUARDED_BY(mutex) = 0;
    Status refuse WS_GUARDED_BY(mutex);
  };
  FakeFactory(FakeStream stream, std::shared_ptr<Log> log)
      : stream_(stream), log_(std::move(log)) {}
  Result<std::unique_ptr<StepProvider>> Open(const std::string& state_json,
                                             bool /*fork*/) override {
    MutexLock lock(log_->mutex);
    if (!log_->refuse.ok()) return log_->refuse;
    FakeStream stream = stream_;
    if (!state_json.empty()) {
      const std::uint64_t first = std::stoull(state_json);
      stream.steps -= first - stream.first_step;
      stream.first_step = first;
    }
    auto provider = std::make_unique<FakeProvider>(stream);
    log_->last = provider.get();
    ++log_->opened;
    return std::unique_ptr<StepProvider>(std::move(provider));
  }

 private:
  const FakeStream stream_;
  const std::shared_ptr<Log> log_;
};

// `ranks` places, `sharing` of which use one bucket.
inline ServerOptions OptionsFor(const std::string& folder, std::uint32_t ranks,
                                std::uint32_t sharing = 1) {
  ServerOptions options;
  options.folder = folder;
  options.log_path = folder + "/host.log";
  options.job_hash = "job";
  options.job_keys = {{"seed", "1"}, {"name", "test"}};
  options.world = ranks;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    ServedPlace place;
    place.rank = rank;
    place.bucket = rank / sharing;
    place.dp = rank / sharing;
    place.tp = rank % sharing;
    place.leader = rank;
    options.places.push_back(place);
  }
  return options;
}

inline ClientOptions ClientFor(const ServerOptions& server, std::uint32_t rank) {
  ClientOptions options;
  options.socket_path = server.folder + "/" + server.socket_name;
  options.rank = rank;
  options.world = server.world;
  options.job_hash = server.job_hash;
  options.job_keys = server.job_keys;
  options.launcher_id = "start-1";
  return options;
}

// Whether every byte is what the provider wrote for this step and bucket.
inline bool BytesAreRight(const ClientBatch& batch) {
  const TensorView& tokens = batch.view.microbatches.at(0).tensors.at(0);
  const auto* values = reinterpret_cast<const std::int64_t*>(batch.memory + tokens.offset_bytes);
  const auto count = static_cast<std::size_t>(tokens.shape.at(1));
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] != TokenAt(batch.view.step, batch.view.rank, i)) return false;
  }
  return true;
}

}  // namespace widestream::delivery_testing
