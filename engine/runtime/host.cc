#include "engine/runtime/host.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/construct/constructor.h"

namespace widestream {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRetainedSteps = 64;
constexpr std::uint64_t kMinReadAheadBytes = 256U << 10;
constexpr std::uint64_t kMaxReadAheadBytes = 16U << 20;
// tokens, labels, position_ids int64, segment_ids int32, loss_mask bool
constexpr std::uint64_t kBytesPerToken = 8 + 8 + 8 + 4 + 1;

Clock::time_point After(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// The largest memory of one rank's tensors of a step, cu_seqlens included.
std::uint64_t StepBytes(const BatchSpec& batch) {
  const std::uint64_t tokens = batch.layout == BatchLayout::kThd
                                   ? batch.tokens + batch.sequence_length
                                   : std::uint64_t{batch.rows} * batch.sequence_length;
  return tokens * (kBytesPerToken + 8) + (64U << 10);
}

// After those of the same step: the later one wins.
void InsertByStep(Decision decision, std::vector<Decision>* decisions) {
  const auto after =
      std::upper_bound(decisions->begin(), decisions->end(), decision,
                       [](const Decision& a, const Decision& b) { return a.step < b.step; });
  decisions->insert(after, std::move(decision));
}

}  // namespace

Result<std::unique_ptr<Host>> Host::Make(JobSpec job, HostOptions options) {
  std::unique_ptr<Host> host(new Host(std::move(job), std::move(options)));
  WS_RETURN_IF_ERROR(host->Open());
  return host;
}

Host::Host(JobSpec job, HostOptions options) : job_(std::move(job)), options_(std::move(options)) {}

Host::~Host() { Stop(); }

Status Host::Open() {
  if (options_.rank >= job_.mesh.dp) {
    return Status::InvalidArgument(
        StrCat("rank ", options_.rank, " is not below mesh.dp = ", job_.mesh.dp));
  }
  if (options_.held_out) {
    // The validation stream: the same mixture over the held-out records, once.
    for (SourceSpec& source : job_.sources) {
      source.max_epochs = 1;
      source.on_exhausted = ExhaustedPolicy::kRenormalise;
    }
    StageSpec stage = job_.mixture.stages.front();
    stage.until.reset();
    stage.ramp = 0;
    job_.mixture.stages = {stage};
    job_.batch.last_step = LastStepPolicy::kFill;
    job_.mesh.dp = 1;
    options_.rank = 0;
  }
  if (!options_.run_fs) options_.run_fs = LocalFileSystem();
  if (!job_.tokenizer)
    return Status::InvalidArgument("the job has no `tokenizer`; its sources hold text");
  fs_ = options_.fs ? options_.fs : RestrictToRoots(LocalFileSystem(), job_.data_roots);
  Tokenizer::Options tokenizer_options;
  tokenizer_options.pattern = job_.tokenizer->pattern;
  WS_ASSIGN_OR_RETURN(tokenizer_, Tokenizer::FromFile(job_.tokenizer->file, tokenizer_options));
  for (const std::string& name : job_.tokenizer->append) {
    const std::optional<std::uint32_t> id = tokenizer_->SpecialTokenId(name);
    if (!id) {
      return Status::InvalidArgument(
          StrCat("tokenizer.append: ", job_.tokenizer->file, " has no special token '", name, "'"));
    }
    append_.push_back(*id);
  }
  stream_hash_ = StreamHash(job_, tokenizer_->Digest());
  stream_keys_ = StreamKeys(job_, tokenizer_->Digest());
  WS_ASSIGN_OR_RETURN(planner_, Planner::Make(job_));

  const std::uint64_t step_bytes = StepBytes(job_.batch);
  // A block in use and one ahead, as ids and columns; see the reasoning in engine/README.md.
  std::uint64_t fixed_bytes = 0;
  for (const SourceSpec& source : job_.sources)
    fixed_bytes += source.shuffle.bytes + source.shuffle.bytes / 2;
  const std::uint64_t limit = job_.limits.host_memory_bytes;
  if (limit < fixed_bytes + 2 * step_bytes) {
    return Status::InvalidArgument(
        StrCat("limits.host_memory is ", limit, " bytes; ", job_.sources.size(), " sources need ",
               fixed_bytes, " and two steps ", 2 * step_bytes, ": raise it to at least ",
               fixed_bytes + 2 * step_bytes, ", or lower shuffle.bytes or the batch"));
  }
  const std::uint64_t spare = limit - fixed_bytes - 2 * step_bytes;
  const std::uint64_t slab_bytes =
      2 * step_bytes + std::min(spare / 2, (job_.lookahead_steps + 6) * step_bytes);
  slabs_ = std::make_unique<SlabPool>(slab_bytes);
  read_ahead_bytes_ = std::clamp<std::uint64_t>(
      (limit - fixed_bytes - slab_bytes) / std::max<std::size_t>(1, job_.sources.size()),
      kMinReadAheadBytes, kMaxReadAheadBytes);
  const std::uint32_t threads = job_.limits.threads != 0
                                    ? job_.limits.threads
                                    : std::max(1U, std::thread::hardware_concurrency());
  WS_ASSIGN_OR_RETURN(pool_, TaskPool::Make(threads));

  WS_ASSIGN_OR_RETURN(StateDocument document, InitialDocument());
  WS_RETURN_IF_ERROR(OpenSources(document));
  if (!job_.run_dir.empty() && !options_.held_out) {
    JournalIdentity identity;
    identity.stream_hash = stream_hash_;
    for (const SourceSpec& source : job_.sources) identity.sources.push_back(source.name);
    WS_ASSIGN_OR_RETURN(journal_, RunJournal::Open(options_.run_fs, job_.run_dir, identity,
                                                   document.state.step, new_identity_));
    if (new_identity_) {
      for (const Decision& decision : document.decisions) {
        if (decision.step >= document.state.step)
          WS_RETURN_IF_ERROR(journal_->AppendDecision(decision));
      }
    }
    for (Decision& decision : journal_->DecisionsFrom(document.state.step)) {
      if (std::find(document.decisions.begin(), document.decisions.end(), decision) ==
          document.decisions.end()) {
        InsertByStep(std::move(decision), &document.decisions);
      }
    }
    for (const auto& manifest : manifests_) {
      const std::string& name =
          source_info_[static_cast<std::size_t>(&manifest - manifests_.data())].name;
      const std::string path = job_.run_dir + "/manifests/" + manifest.hash + ".json";
      if (!options_.run_fs->Stat(path).ok()) {
        WS_RETURN_IF_ERROR(options_.run_fs->CreateFolders(job_.run_dir + "/manifests"));
        WS_RETURN_IF_ERROR(options_.run_fs->WriteAtomically(path, ManifestToJson(name, manifest)));
      }
    }
  }
  state_ = document.state;
  {
    MutexLock lock(mutex_);
    decisions_ = std::move(document.decisions);
    delivered_step_ = state_.step;
    retained_[state_.step] = state_;
  }
  WS_RETURN_IF_ERROR(StartLoaders(state_));
  MutexLock control(control_mutex_);
  driver_ = std::thread([this] { Run(); });
  return Status::Ok();
}

Result<StateDocument> Host::InitialDocument() {
  if (options_.state_json.empty()) {
    new_identity_ = options_.fork;
    StateDocument document;
    document.state = planner_->InitialState();
    return document;
  }
  WS_ASSIGN_OR_RETURN(StateDocument document, StateFromJson(job_, options_.state_json));
  bool mixture = false;
  bool order = false;
  std::string refused;
  for (const auto& [key, value] : stream_keys_) {
    const auto stored =
        std::find_if(document.stream_keys.begin(), document.stream_keys.end(),
                     [&key = key](const auto& entry) { return entry.first == key; });
    if (stored != document.stream_keys.end() && stored->second == value) continue;
    new_identity_ = true;
    if (key.starts_with("mixture.")) {
      mixture = true;
    } else if (!key.starts_with("batch.")) {
      order = order || !(key.starts_with("errors.") || key == "validation_fraction");
      refused += StrCat(refused.empty() ? "" : ", ", key, " (",
                        stored == document.stream_keys.end() ? "absent" : stored->second, " then, ",
                        value, " now)");
    }
  }
  // A mixture with fewer stages differs by what it lacks.
  mixture = mixture || (document.stream_hash != stream_hash_ && !new_identity_);
  new_identity_ = new_identity_ || document.stream_hash != stream_hash_;
  if (!refused.empty() && !options_.fork) {
    return Status::InvalidArgument(StrCat("the state belongs to another stream: ", refused,
                                          "; put the job back, or accept the change with --fork"));
  }
  if (mixture) {
    Decision edit;
    edit.step = document.state.step;
    edit.mixture_json = MixtureToJson(job_);
    InsertByStep(std::move(edit), &document.decisions);
  }
  if (order) {
    // Positions have another meaning now: each source begins its next epoch, and what was carried
    // over is dropped.
    document.state.carried.clear();
    document.state.closing.reset();
    document.state.open_source = -1;
    for (SourceState& source : document.state.sources) {
      ++source.epoch;
      source.position = 0;
      source.token = 0;
      source.epoch_tokens = 0;
      source.restart = RestartPoint{};
      source.restart.epoch = source.epoch;
    }
  }
  new_identity_ = new_identity_ || options_.fork;
  return document;
}

Status Host::OpenSources(const StateDocument& document) {
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    Result<Manifest> manifest = BuildManifest(*fs_, job_.sources[i]);
    if (!manifest.ok()) {
      return manifest.status().WithContext(StrCat("source '", job_.sources[i].name, "'"));
    }
    WS_RETURN_IF_ERROR(CheckManifest(i, *manifest, document.state));
    SourceInfo info;
    info.name = job_.sources[i].name;
    info.format = manifest->format == Format::kParquet ? "parquet" : "jsonl";
    info.manifest_hash = manifest->hash;
    for (const ShardEntry& shard : manifest->shards) info.shards.push_back(shard.path);
    source_info_.push_back(std::move(info));
    manifests_.push_back(std::move(manifest).value());
  }
  return Status::Ok();
}

Status Host::CheckManifest(std::size_t source, const Manifest& manifest,
                           const PlannerState& state) {
  if (options_.state_json.empty() || state.sources[source].manifest == manifest.hash ||
      options_.fork)
    return Status::Ok();
  std::string changes = "its manifest differs";
  if (!job_.run_dir.empty()) {
    const Result<std::string> stored = options_.run_fs->ReadAll(
        job_.run_dir + "/manifests/" + state.sources[source].manifest + ".json", 1U << 30);
    if (stored.ok()) {
      const Result<std::string> described = DescribeManifestChange(*stored, manifest);
      if (described.ok() && !described->empty()) changes = *described;
    }
  }
  return Status::DataCorruption(StrCat("source '", job_.sources[source].name,
                                       "' changed since the state was saved: ", changes,
                                       "; put the files back, or accept the change with --fork"));
}

Status Host::StartLoaders(const PlannerState& state) {
  loaders_.clear();
  metadata_.assign(job_.sources.size(), {});
  metadata_view_.assign(job_.sources.size(), {});
  ++incarnation_;
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    SourceLoaderOptions options;
    options.source = static_cast<std::uint32_t>(i);
    options.spec = job_.sources[i];
    options.seed = job_.seed;
    options.record_bytes = job_.errors.record_bytes;
    options.held_out_fraction = job_.validation_fraction;
    options.deliver_held_out = options_.held_out;
    options.tokenizer = tokenizer_;
    options.append = append_;
    options.read_ahead_bytes = read_ahead_bytes_;
    options.incarnation = incarnation_;
    WS_ASSIGN_OR_RETURN(std::unique_ptr<SourceLoader> loader,
                        SourceLoader::Make(fs_, pool_.get(), std::move(options), manifests_[i]));
    source_info_[i].records = loader->records();
    WS_RETURN_IF_ERROR(loader->Start(state.sources[i].restart));
    loaders_.push_back(std::move(loader));
  }
  return Status::Ok();
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
  MutexLock lock(mutex_);
  if (!status.ok() && !stopping_) fault_ = status;
  ended_ = ended;
  doing_ = ended ? "at the end of the stream" : "stopped";
  changed_.NotifyAll();
}

Status Host::RunStep(bool* ended) {
  SetDoing(StrCat("planning step ", state_.step));
  std::vector<Decision> decisions;
  {
    MutexLock lock(mutex_);
    decisions = decisions_;
  }
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
    WS_ASSIGN_OR_RETURN(BatchView view, LayOut(job_.batch, plan, options_.rank));
    SetDoing(
        StrCat("building step ", plan->step, ": waiting for memory that the trainer still holds"));
    WS_ASSIGN_OR_RETURN(std::shared_ptr<Slab> slab, LeaseSlab(view.size_bytes));
    SetDoing(StrCat("building step ", plan->step));
    const IdsProvider ids = [this](std::uint32_t source, std::uint32_t epoch,
                                   std::uint64_t position) {
      return loaders_[source]->IdsOf(epoch, position, After(job_.limits.read_deadline_seconds));
    };
    const PieceNamer name = [this](const Piece& piece) {
      return StrCat("source '", source_info_[piece.source].name, "', ",
                    source_info_[piece.source].shards[piece.shard], ", record ", piece.record);
    };
    WS_RETURN_IF_ERROR(Construct(job_.batch, view, ids, name, slab->memory()));
    ready.batch = std::make_shared<const Batch>(
        Batch{std::move(view), std::move(slab), planner_->Weights(state_, decisions)});
  }
  state_ = std::move(planned.next);
  ReleaseBefore(state_);
  MutexLock lock(mutex_);
  ++planned_count_;
  retained_[state_.step] = state_;
  if (ready.batch) {
    ready.after = state_;
    ready_.push_back(std::move(ready));
  }
  changed_.NotifyAll();
  return Status::Ok();
}

Result<std::shared_ptr<Slab>> Host::LeaseSlab(std::size_t size_bytes) {
  for (;;) {
    Result<std::shared_ptr<Slab>> slab =
        slabs_->Lease(size_bytes, Clock::now() + std::chrono::milliseconds(100));
    if (slab.ok() || slab.status().code() != StatusCode::kDeadlineExceeded) return slab;
    MutexLock lock(mutex_);
    if (stopping_) return Status::Cancelled("the host was stopped");
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

Result<std::shared_ptr<const Batch>> Host::Next(Clock::time_point deadline) {
  MutexLock lock(mutex_);
  while (ready_.empty() && !ended_ && fault_.ok() && !stopping_) {
    if (!changed_.WaitUntil(mutex_, deadline) && Clock::now() >= deadline) {
      return Status::DeadlineExceeded(StrCat("no batch yet; the pipeline is ", doing_));
    }
  }
  if (stopping_) return Status::Cancelled("the host was stopped");
  if (!ready_.empty()) {
    Ready ready = std::move(ready_.front());
    ready_.pop_front();
    delivered_step_ = ready.after.step;
    ++delivered_count_;
    while (retained_.size() > 1 && retained_.begin()->first + kRetainedSteps < delivered_step_)
      retained_.erase(retained_.begin());
    changed_.NotifyAll();
    return ready.batch;
  }
  if (!fault_.ok()) return fault_;
  return std::shared_ptr<const Batch>();
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
  return out;
}

std::uint64_t Host::left_tokens() const {
  MutexLock lock(mutex_);
  return left_tokens_;
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
