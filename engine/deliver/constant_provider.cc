#include "engine/deliver/constant_provider.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/format_text.h"
#include "engine/base/thread_annotations.h"
#include "engine/deliver/slab_pool.h"

namespace widestream {
namespace {

class ConstantProvider final : public StepProvider {
 public:
  explicit ConstantProvider(const ConstantSteps& shape)
      : shape_(shape),
        slabs_((shape.bucket_bytes + 4096) * shape.buckets * shape.slabs),
        watcher_([this] { Watch(); }) {}
  ~ConstantProvider() override { Stop(); }

  Result<std::shared_ptr<const Step>> TryNext(bool* ended) override {
    MutexLock lock(mutex_);
    *ended = next_ == shape_.steps;
    if (stopped_) return Status::Cancelled("the provider was stopped");
    if (*ended) return std::shared_ptr<const Step>();
    auto plan = std::make_shared<StepPlan>();
    plan->step = next_;
    plan->ranks.resize(shape_.buckets);
    plan->real_tokens = shape_.buckets * (shape_.bucket_bytes / sizeof(std::int64_t));
    auto step = std::make_shared<Step>();
    step->number = next_;
    step->plan = plan;
    for (std::uint32_t b = 0; b < shape_.buckets; ++b) {
      Result<std::shared_ptr<Slab>> slab =
          slabs_.Lease(shape_.bucket_bytes, std::chrono::steady_clock::now());
      if (!slab.ok()) {
        wanted_ = true;
        changed_.NotifyAll();
        return slab.status().code() == StatusCode::kDeadlineExceeded
                   ? Result<std::shared_ptr<const Step>>(std::shared_ptr<const Step>())
                   : slab.status();
      }
      // Pages that were never touched would be shared zeros of no cost.
      if (std::find(filled_.begin(), filled_.end(), (*slab)->id()) == filled_.end()) {
        std::memset((*slab)->memory().data(), 1, (*slab)->memory().size());
        filled_.push_back((*slab)->id());
      }
      Bucket bucket;
      bucket.view.step = next_;
      bucket.view.rank = b;
      bucket.view.size_bytes = shape_.bucket_bytes;
      bucket.view.plan = plan;
      MicrobatchView microbatch;
      TensorView tokens;
      tokens.name = "tokens";
      tokens.shape = {1, static_cast<std::int64_t>(shape_.bucket_bytes / sizeof(std::int64_t))};
      microbatch.tensors.push_back(std::move(tokens));
      bucket.view.microbatches.push_back(std::move(microbatch));
      bucket.slab = std::move(*slab);
      step->buckets.push_back(std::move(bucket));
    }
    ++next_;
    return std::shared_ptr<const Step>(std::move(step));
  }

  void NotifyWhenReady(std::function<void()> wake) override {
    MutexLock lock(mutex_);
    wake_ = std::move(wake);
  }
  Result<std::string> StateJson(std::optional<std::uint64_t>) override { return std::string("{}"); }
  Result<std::uint64_t> Decide(Decision) override {
    return Status::InvalidArgument("constant steps know no decisions");
  }
  Status CommitJournal() override { return Status::Ok(); }
  std::string StatusJson() override { return R"({"doing":"giving constant steps"})"; }
  std::string DescriptionJson() override { return R"({"sources":[]})"; }
  void Stop() override {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      wake_ = nullptr;
      changed_.NotifyAll();
    }
    slabs_.Stop();
    // Two threads may stop it at once.
    MutexLock join(join_mutex_);
    if (watcher_.joinable()) watcher_.join();
  }

 private:
  // Wakes the server when memory that it asked for in vain is free again.
  void Watch() {
    MutexLock lock(mutex_);
    while (!stopped_) {
      if (!wanted_) {
        changed_.Wait(mutex_);
        continue;
      }
      lock.Unlock();
      const Status room =
          slabs_.WaitForRoom(shape_.bucket_bytes * shape_.buckets,
                             std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
      lock.Lock();
      if (!room.ok()) continue;
      wanted_ = false;
      if (wake_) wake_();
    }
  }

  const ConstantSteps shape_;
  SlabPool slabs_;
  Mutex mutex_;
  CondVar changed_;
  std::uint64_t next_ WS_GUARDED_BY(mutex_) = 0;
  bool wanted_ WS_GUARDED_BY(mutex_) = false;
  bool stopped_ WS_GUARDED_BY(mutex_) = false;
  std::vector<std::uint64_t> filled_ WS_GUARDED_BY(mutex_);
  std::function<void()> wake_ WS_GUARDED_BY(mutex_);
  Mutex join_mutex_;
  std::thread watcher_ WS_GUARDED_BY(join_mutex_);
};

}  // namespace

Result<std::unique_ptr<StepProvider>> MakeConstantProvider(const ConstantSteps& shape) {
  if (shape.bucket_bytes == 0 || shape.bucket_bytes % sizeof(std::int64_t) != 0 ||
      shape.buckets == 0 || shape.slabs == 0) {
    return Status::InvalidArgument(StrCat("constant steps of ", shape.buckets, " buckets of ",
                                          shape.bucket_bytes, " bytes in ", shape.slabs,
                                          " slabs; each must be positive, the bytes in eights"));
  }
  return std::unique_ptr<StepProvider>(std::make_unique<ConstantProvider>(shape));
}

}  // namespace widestream
