#include "engine/runtime/host.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/construct/constructor.h"

namespace widestream {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRetainedSteps = 64;

Clock::time_point After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

Host::Host(JobSpec job, HostOptions options) : job_(std::move(job)), options_(std::move(options)) {}

Host::~Host() { Stop(); }

void Host::InsertByStep(Decision decision, std::vector<Decision>* decisions) {
  const auto after =
      std::upper_bound(decisions->begin(), decisions->end(), decision,
                       [](const Decision& a, const Decision& b) { return a.step < b.step; });
  decisions->insert(after, std::move(decision));
}

void Host::SetDoing(std::string doing) {
  MutexLock lock(mutex_);
  doing_ = std::move(doing);
  doing_since_ = Clock::now();
}

void Host::Run() {
  bool ended = false;
  Status status;
  while (status.ok() && !ended) {
    {
      MutexLock lock(mutex_);
      doing_ = "waiting for the trainer to take a batch";
      doing_since_ = Clock::now();
      while (!stopping_ && ready_.size() >= job_.lookahead_steps) changed_.Wait(mutex_);
      if (stopping_) return;
    }
    status = RunStep(&ended);
  }
  {
    MutexLock lock(mutex_);
    if (!status.ok() && !stopping_) fault_ = status;
    ended_ = ended;
    doing_ = ended ? "at the end of the stream" : "stopped";
    changed_.NotifyAll();
  }
  Wake();
}

void Host::Wake() {
  MutexLock lock(wake_mutex_);
  if (wake_) wake_();
}

void Host::NotifyWhenReady(std::function<void()> wake) {
  MutexLock lock(wake_mutex_);
  wake_ = std::move(wake);
}

Status Host::RunStep(bool* ended) {
  std::vector<Decision> decisions;
  {
    MutexLock lock(mutex_);
    decisions = decisions_;
  }
  // The step's memory is reserved as a unit before it is planned: what is planned can be delivered.
  SetDoing(
      StrCat("before step ", state_.step, ": waiting for memory that the trainer still holds"));
  WS_RETURN_IF_ERROR(WaitForMemory(step_bytes_));
  SetDoing(StrCat("planning step ", state_.step));
  WS_ASSIGN_OR_RETURN(Planner::Outcome outcome, PlanStep(decisions));
  if (const auto* end = std::get_if<EndOfStream>(&outcome)) {
    MutexLock lock(mutex_);
    left_tokens_ = end->left_tokens;
    *ended = true;
    return Status::Ok();
  }
  return Deliver(std::move(std::get<Planned>(outcome)), decisions);
}

Result<Planner::Outcome> Host::PlanStep(const std::vector<Decision>& decisions) {
  for (;;) {
    Metadata metadata;
    for (const auto& batches : metadata_view_) metadata.sources.emplace_back(batches);
    Result<Planner::Outcome> outcome = planner_->Plan(state_, metadata, decisions);
    if (!outcome.ok()) return outcome;
    const auto* need = std::get_if<Need>(&*outcome);
    if (need == nullptr) return outcome;
    if (need->requests.empty()) return Status::Internal("the planner needs records of no source");
    for (ReadRequest request : need->requests) loaders_[request.source]->Prepare(request);
    for (const ReadRequest& request : need->requests) WS_RETURN_IF_ERROR(Fetch(request));
    SetDoing(StrCat("planning step ", state_.step));
  }
}

Status Host::Fetch(const ReadRequest& request) {
  SetDoing(StrCat("planning step ", state_.step, ": waiting for source '",
                  job_.sources[request.source].name, "'"));
  ReadRequest next = request;
  next.incarnation = incarnation_;
  const std::uint64_t end = request.position + std::max<std::uint64_t>(1, request.records);
  std::deque<std::shared_ptr<const MetadataBatch>>& held = metadata_[request.source];
  while (next.position < end) {
    WS_ASSIGN_OR_RETURN(
        std::shared_ptr<const MetadataBatch> batch,
        loaders_[request.source]->Metadata(next, After(job_.limits.read_deadline_seconds)));
    next.position = batch->position + batch->size();
    const bool end_of_epoch = batch->end_of_epoch;
    if (held.empty() || std::make_pair(held.back()->epoch, held.back()->position) <
                            std::make_pair(batch->epoch, batch->position)) {
      held.push_back(std::move(batch));
    }
    if (end_of_epoch) break;
  }
  metadata_view_[request.source].assign(held.begin(), held.end());
  return Status::Ok();
}

Status Host::Deliver(Planned planned, const std::vector<Decision>& decisions) {
  for (std::size_t i = 0; i < manifests_.size(); ++i)
    planned.next.sources[i].manifest = manifests_[i].hash;
  auto plan = std::make_shared<const StepPlan>(std::move(planned.plan));
  if (journal_) {
    SetDoing(StrCat("writing step ", plan->step, " to the journal"));
    WS_RETURN_IF_ERROR(journal_->AppendStep(*plan));
  }
  Ready ready;
  if (!plan->skipped) {
    auto step = std::make_shared<Step>();
    step->number = plan->step;
    step->plan = plan;
    step->weights = planner_->Weights(state_, decisions);
    SetDoing(StrCat("building step ", plan->step));
    for (const std::uint32_t dp_rank : options_.dp_ranks) {
      WS_ASSIGN_OR_RETURN(Bucket bucket, Build(plan, dp_rank));
      step->buckets.push_back(std::move(bucket));
    }
    ready.step = std::move(step);
  }
  state_ = std::move(planned.next);
  ReleaseBefore(state_);
  {
    MutexLock lock(mutex_);
    ++planned_count_;
    retained_[state_.step] = state_;
    if (ready.step) {
      ready.after = state_;
      ready_.push_back(std::move(ready));
    }
    changed_.NotifyAll();
  }
  Wake();
  return Status::Ok();
}

Result<Bucket> Host::Build(const std::shared_ptr<const StepPlan>& plan, std::uint32_t dp_rank) {
  Bucket bucket;
  WS_ASSIGN_OR_RETURN(bucket.view, LayOut(job_.batch, plan, dp_rank, job_.mesh));
  // The room was waited for as a whole, so this waits only where a thd layout of very many
  // microbatches needs more: the rounding of their tensors is not foreseen.
  WS_RETURN_IF_ERROR(WaitForMemory(bucket.view.size_bytes));
  WS_ASSIGN_OR_RETURN(bucket.slab, slabs_->Lease(bucket.view.size_bytes, Clock::now()));
  const IdsProvider ids = [this](std::uint32_t source, std::uint32_t epoch,
                                 std::uint64_t position) {
    return loaders_[source]->IdsOf(epoch, position, After(job_.limits.read_deadline_seconds));
  };
  const PieceNamer name = [this](const Piece& piece) {
    return StrCat("source '", source_info_[piece.source].name, "', ",
                  source_info_[piece.source].shards[piece.shard], ", record ", piece.record);
  };
  WS_RETURN_IF_ERROR(Construct(job_.batch, bucket.view, ids, name, bucket.slab->memory()));
  return bucket;
}

Status Host::WaitForMemory(std::size_t size_bytes) {
  for (;;) {
    Status room = slabs_->WaitForRoom(size_bytes, Clock::now() + std::chrono::milliseconds(100));
    if (room.ok() || room.code() != StatusCode::kDeadlineExceeded) return room;
    MutexLock lock(mutex_);
    if (stopping_) return Status::Cancelled("the host was stopped");
    if (starved_since_ &&
        *starved_since_ <
            Clock::now() - (After(job_.limits.read_deadline_seconds) - Clock::now())) {
      return Status::ResourceExhausted(
          StrCat("a rank waits for step ", state_.step, " and the trainer holds ", slabs_->leases(),
                 " batches, ", slabs_->leased_bytes(),
                 " bytes, all that limits.host_memory leaves for them; drop old batches and "
                 "their tensors (list(loader) keeps all), or raise the limit"));
    }
  }
}

void Host::ReleaseBefore(const PlannerState& state) {
  for (std::size_t i = 0; i < loaders_.size(); ++i) {
    const RestartPoint& restart = state.sources[i].restart;
    std::deque<std::shared_ptr<const MetadataBatch>>& held = metadata_[i];
    const std::size_t before = held.size();
    while (!held.empty() && std::make_pair(held.front()->epoch, held.front()->position) <
                                std::make_pair(restart.epoch, restart.position)) {
      held.pop_front();
    }
    if (held.size() != before) {
      metadata_view_[i].assign(held.begin(), held.end());
      loaders_[i]->Release(restart.epoch, restart.position);
    }
  }
}

std::optional<Result<std::shared_ptr<const Step>>> Host::Take() {
  if (stopping_) return Status::Cancelled("the host was stopped");
  if (!ready_.empty()) {
    Ready ready = std::move(ready_.front());
    ready_.pop_front();
    starved_since_.reset();
    delivered_step_ = ready.after.step;
    ++delivered_count_;
    while (retained_.size() > 1 && retained_.begin()->first + kRetainedSteps < delivered_step_)
      retained_.erase(retained_.begin());
    changed_.NotifyAll();
    return ready.step;
  }
  if (!fault_.ok()) return fault_;
  if (ended_) return std::shared_ptr<const Step>();
  if (!starved_since_) starved_since_ = Clock::now();
  return std::nullopt;
}

Result<std::shared_ptr<const Step>> Host::Next(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  for (;;) {
    if (auto taken = Take()) return *std::move(taken);
    if (!changed_.WaitUntil(mutex_, deadline) && Clock::now() >= deadline) {
      if (auto taken = Take()) return *std::move(taken);
      return Status::DeadlineExceeded(StrCat("no batch yet; the pipeline is ", doing_));
    }
  }
}

Result<std::shared_ptr<const Step>> Host::TryNext(bool* ended) {
  MutexLock lock(mutex_);
  *ended = false;
  std::optional<Result<std::shared_ptr<const Step>>> taken = Take();
  if (!taken) return std::shared_ptr<const Step>();
  *ended = taken->ok() && **taken == nullptr;
  return *std::move(taken);
}

Result<std::string> Host::StateJson(std::optional<std::uint64_t> step) {
  StateDocument document;
  {
    MutexLock lock(mutex_);
    const std::uint64_t wanted = step.value_or(delivered_step_);
    const auto found = retained_.find(wanted);
    if (found == retained_.end()) {
      return Status::NotFound(StrCat("the state before step ", wanted,
                                     " is not retained; held are ", retained_.begin()->first,
                                     " to ", retained_.rbegin()->first));
    }
    document.state = found->second;
    document.decisions = decisions_;
  }
  for (std::size_t i = 0; i < manifests_.size(); ++i)
    document.state.sources[i].manifest = manifests_[i].hash;
  document.stream_hash = stream_hash_;
  document.stream_keys = stream_keys_;
  return StateToJson(job_, document);
}

Result<std::uint64_t> Host::Decide(Decision decision) {
  MutexLock control(control_mutex_);
  {
    MutexLock lock(mutex_);
    decision.step = std::max(decision.step, delivered_step_);
  }
  // Before it is in the journal: there it would stop every later start of the run.
  WS_RETURN_IF_ERROR(planner_->Check(decision));
  // Stop the driver, go back to the last delivered step, and begin again from there with the
  // decision in force.
  {
    MutexLock lock(mutex_);
    if (stopping_) return Status::Cancelled("the host was stopped");
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (const auto& loader : loaders_) loader->Stop();
  if (driver_.joinable()) driver_.join();
  {
    MutexLock lock(mutex_);
    ready_.clear();
    retained_.erase(retained_.upper_bound(delivered_step_), retained_.end());
    state_ = retained_.at(delivered_step_);
    decision.step = std::max(decision.step, delivered_step_);
    InsertByStep(decision, &decisions_);
    stopping_ = ended_ = false;
    // Of a step that was planned ahead without the decision: whether it had failed already is a
    // matter of timing. If the reason is still there it is found again.
    fault_ = Status::Ok();
  }
  Status status = journal_ ? journal_->AppendDecision(decision) : Status::Ok();
  if (status.ok()) status = StartLoaders(state_);
  if (!status.ok()) {
    // No driver runs, so Next must not wait for one.
    MutexLock lock(mutex_);
    fault_ = status;
    doing_ = "stopped";
    return status;
  }
  driver_ = std::thread([this] { Run(); });
  return decision.step;
}

Status Host::CommitJournal() {
  MutexLock control(control_mutex_);
  return journal_ ? journal_->Commit() : Status::Ok();
}

HostStatus Host::status() const {
  HostStatus out;
  out.leased_batches = slabs_ ? slabs_->leases() : 0;
  MutexLock lock(mutex_);
  out.doing = doing_;
  out.doing_seconds = std::chrono::duration<double>(Clock::now() - doing_since_).count();
  out.planned_steps = planned_count_;
  out.delivered_steps = delivered_count_;
  out.ready_batches = ready_.size();
  out.left_tokens = left_tokens_;
  return out;
}

void Host::Stop() {
  MutexLock control(control_mutex_);
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  if (slabs_) slabs_->Stop();
  for (const auto& loader : loaders_) loader->Stop();
  if (driver_.joinable()) driver_.join();
  journal_.reset();  // commits, and frees the run folder for another loader
  loaders_.clear();
}

}  // namespace widestream