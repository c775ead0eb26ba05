// Opening a Host: tokenizer, sources, state and journal, before the first step is planned.
#include <algorithm>
#include <numeric>
#include <thread>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/construct/constructor.h"
#include "engine/runtime/host.h"

namespace widestream {
namespace {

// Of all sources together, and of one. More makes nothing faster.
constexpr std::uint64_t kMaxReadAheadBytes = 128U << 20;
constexpr std::uint64_t kMaxSourceReadAheadBytes = 16U << 20;
constexpr std::uint64_t kPageBytes = 4096;

// The largest memory of a step's tensors for `ranks` data-parallel ranks, as slabs are leased.
std::uint64_t StepBytes(const JobSpec& job, std::uint64_t ranks) {
  const std::uint64_t one = ReservedBytes(job.batch, job.mesh);
  const bool equal = job.batch.layout != BatchLayout::kThd || job.batch.fixed_shapes;
  // In thd one rank may have nearly all tokens of a step, but not several: only their padding and
  // rounding grow.
  const std::uint64_t bytes = equal || ranks == 1 ? ranks * one : 2 * one;
  return (bytes / kPageBytes + ranks) * kPageBytes;
}

}  // namespace

Result<std::unique_ptr<Host>> Host::Make(JobSpec job, HostOptions options) {
  std::unique_ptr<Host> host(new Host(std::move(job), std::move(options)));
  WS_RETURN_IF_ERROR(host->Open());
  return host;
}

Status Host::Open() {
  if (options_.dp_ranks.empty()) {
    options_.dp_ranks.resize(job_.mesh.dp);
    std::iota(options_.dp_ranks.begin(), options_.dp_ranks.end(), 0U);
  }
  for (const std::uint32_t rank : options_.dp_ranks) {
    if (rank >= job_.mesh.dp) {
      return Status::InvalidArgument(
          StrCat("data-parallel rank ", rank, " is not below mesh.dp = ", job_.mesh.dp));
    }
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
    job_.mesh = MeshSpec{};
    job_.held_out_stream = true;
    options_.dp_ranks = {0};
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

  step_bytes_ = StepBytes(job_, options_.dp_ranks.size());
  const std::uint64_t step_bytes = step_bytes_;
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
  // The engine itself never has more than lookahead_steps + 1 of them out; the rest is for a
  // trainer that holds some.
  const std::uint64_t slab_bytes = 2 * step_bytes + spare / 2;
  slabs_ = std::make_unique<SlabPool>(slab_bytes);
  read_ahead_bytes_ = std::min(kMaxSourceReadAheadBytes,
                               std::min(kMaxReadAheadBytes, limit - fixed_bytes - slab_bytes) /
                                   std::max<std::size_t>(1, job_.sources.size()));
  const std::uint32_t threads = job_.limits.threads != 0
                                    ? job_.limits.threads
                                    : std::max(1U, std::thread::hardware_concurrency());
  WS_ASSIGN_OR_RETURN(pool_, TaskPool::Make(threads));

  WS_ASSIGN_OR_RETURN(StateDocument document, InitialDocument());
  WS_RETURN_IF_ERROR(OpenSources(&document));
  if (!job_.run_dir.empty() && !options_.held_out && options_.journal) {
    if (new_identity_ && !options_.fork) {
      // The journal goes on as that of the edited stream; what was decided for later steps still
      // holds.
      const auto reader = JournalReader::Open(options_.run_fs, job_.run_dir + "/journal.bin");
      if (reader.ok()) {
        for (const Decision& decision : (*reader)->contents().decisions) {
          const auto& known = document.decisions;
          if (decision.step >= document.state.step &&
              std::find(known.begin(), known.end(), decision) == known.end()) {
            InsertByStep(decision, &document.decisions);
          }
        }
      }
    }
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
  const auto value_of = [](const std::vector<std::pair<std::string, std::string>>& keys,
                           const std::string& wanted) -> const std::string* {
    const auto found = std::find_if(keys.begin(), keys.end(),
                                    [&](const auto& entry) { return entry.first == wanted; });
    return found == keys.end() ? nullptr : &found->second;
  };
  std::vector<std::string> different;
  for (const auto& [key, value] : stream_keys_) {
    const std::string* stored = value_of(document.stream_keys, key);
    if (stored == nullptr || *stored != value) different.push_back(key);
  }
  for (const auto& [key, value] : document.stream_keys) {
    if (value_of(stream_keys_, key) == nullptr) different.push_back(key);
  }
  bool mixture = false;
  std::string refused;
  for (const std::string& key : different) {
    if (key.starts_with("mixture.")) {
      mixture = true;
    } else if (!key.starts_with("batch.")) {
      const std::string* stored = value_of(document.stream_keys, key);
      const std::string* now = value_of(stream_keys_, key);
      refused +=
          StrCat(refused.empty() ? "" : ", ", key, " (", stored != nullptr ? *stored : "absent",
                 " then, ", now != nullptr ? *now : "absent", " now)");
    }
  }
  if (!refused.empty() && !options_.fork) {
    return Status::InvalidArgument(StrCat("the state belongs to another stream: ", refused,
                                          "; put the job back, or accept the change with --fork"));
  }
  new_identity_ = options_.fork || !different.empty();
  if (options_.fork) {
    std::erase_if(document.decisions,
                  [&](const Decision& decision) { return decision.step >= document.state.step; });
  }
  if (mixture) {
    Decision edit;
    edit.step = document.state.step;
    edit.mixture_json = MixtureToJson(job_);
    InsertByStep(std::move(edit), &document.decisions);
  }
  for (const std::string& key : different) {
    if (key == "seed" || key == "order_version" || key.starts_with("tokenizer.")) {
      for (std::size_t i = 0; i < job_.sources.size(); ++i) BeginNextEpoch(i, &document.state);
      break;
    }
    for (std::size_t i = 0; i < job_.sources.size(); ++i) {
      const std::string prefix = StrCat("sources.", job_.sources[i].name);
      if (key == prefix + ".text" || key == prefix + ".shuffle") BeginNextEpoch(i, &document.state);
    }
  }
  return document;
}

void Host::BeginNextEpoch(std::size_t index, PlannerState* state) {
  const auto of_source = [index](const Piece& piece) { return piece.source == index; };
  std::erase_if(state->carried, of_source);
  if (state->closing && of_source(*state->closing)) state->closing.reset();
  if (state->open_source == static_cast<std::int64_t>(index)) state->open_source = -1;
  SourceState& source = state->sources[index];
  ++source.epoch;
  source.position = 0;
  source.token = 0;
  source.epoch_tokens = 0;
  source.restart = RestartPoint{};
  source.restart.epoch = source.epoch;
}

Status Host::OpenSources(StateDocument* document) {
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    Result<Manifest> manifest = BuildManifest(*fs_, job_.sources[i]);
    if (!manifest.ok()) {
      return manifest.status().WithContext(StrCat("source '", job_.sources[i].name, "'"));
    }
    WS_RETURN_IF_ERROR(CheckManifest(i, *manifest, document->state));
    if (!options_.state_json.empty() && document->state.sources[i].manifest != manifest->hash) {
      BeginNextEpoch(i, &document->state);  // accepted by --fork
    }
    SourceInfo info;
    info.name = job_.sources[i].name;
    info.format = FormatName(manifest->format);
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
    options.lean = read_ahead_bytes_ < 2 * options.spec.shuffle.bytes;
    options.incarnation = incarnation_;
    WS_ASSIGN_OR_RETURN(std::unique_ptr<SourceLoader> loader,
                        SourceLoader::Make(fs_, pool_.get(), std::move(options), manifests_[i]));
    source_info_[i].records = loader->records();
    WS_RETURN_IF_ERROR(loader->Start(state.sources[i].restart));
    loaders_.push_back(std::move(loader));
  }
  return Status::Ok();
}

}  // namespace widestream
