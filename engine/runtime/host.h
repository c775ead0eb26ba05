// Host: all roles of the data plane on threads of one process. It moves messages between them;
// every decision about data is the Planner's.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/task_pool.h"
#include "engine/base/thread_annotations.h"
#include "engine/deliver/slab_pool.h"
#include "engine/deliver/step.h"
#include "engine/deliver/step_provider.h"
#include "engine/job/spec.h"
#include "engine/plan/planner.h"
#include "engine/runtime/run_journal.h"
#include "engine/source/loader.h"
#include "engine/storage/file_system.h"
#include "engine/transform/tokenizer.h"

namespace widestream {

struct HostOptions {
  std::vector<std::uint32_t> dp_ranks;  // whose tensors are built; empty = all of mesh.dp
  bool journal = true;    // false: another host of the same stream keeps the run folder's journal
  bool held_out = false;  // the stream of the held-out records, one epoch; never journalled
  bool fork = false;  // a state of another stream is accepted; later journal records are dropped
  std::shared_ptr<FileSystem>
      fs;  // of the data; null: local files, restricted to the job's data_roots
  std::shared_ptr<FileSystem> run_fs;  // of the run folder; null: local files
  std::string state_json;              // "" = from the beginning
};

// Where the pipeline is, for the watchdog and reports.
struct HostStatus {
  std::string doing;  // e.g. "planning step 12: waiting for source 'code'"
  double doing_seconds = 0;
  std::uint64_t planned_steps = 0;
  std::uint64_t delivered_steps = 0;
  std::uint64_t ready_batches = 0;
  std::uint64_t leased_batches = 0;
  std::uint64_t left_tokens = 0;  // not delivered at the end of the stream (last_step: drop)
};

struct SourceInfo {
  std::string name;
  std::string format;
  std::string manifest_hash;
  std::vector<std::string> shards;  // absolute paths, in manifest order
  std::optional<std::uint64_t> records;
};

// Thread-safe. The destructor stops all threads. Errors of the pipeline are returned by every later
// Next, until a decision lets the stream be planned again.
class Host final : public StepProvider {
 public:
  // Opens tokenizer and sources, checks the state against them, opens the journal, and begins to
  // work.
  static Result<std::unique_ptr<Host>> Make(JobSpec job, HostOptions options);
  ~Host() override;

  // The next step in order; null at the end of the stream. Waits until `deadline`:
  // DeadlineExceeded says what the pipeline is waiting for, and nothing is lost by calling again.
  Result<std::shared_ptr<const Step>> Next(std::chrono::steady_clock::time_point deadline);
  Result<std::shared_ptr<const Step>> TryNext(bool* ended) override;
  void NotifyWhenReady(std::function<void()> wake) override;
  // The state after the last step that Next returned, or before step `step` if it is retained (the
  // last 64 delivered steps and those in flight).
  Result<std::string> StateJson(std::optional<std::uint64_t> step = std::nullopt) override;
  // A decision that takes effect at the first step not yet delivered, or later if it says so; plans
  // past it are thrown away, errors of planning ahead too. Returns that step. A decision that
  // cannot be carried out is refused and changes nothing.
  Result<std::uint64_t> Decide(Decision decision) override;
  // Makes the journal durable up to the last delivered step.
  Status CommitJournal() override;
  HostStatus status() const;
  std::string StatusJson() override;
  std::string DescriptionJson() override;
  const std::vector<SourceInfo>& sources() const { return source_info_; }
  const JobSpec& job() const { return job_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::vector<std::uint32_t>& append() const { return append_; }  // ids after each text
  const std::string& stream_hash() const { return stream_hash_; }
  void Stop() override;

 private:
  struct Ready {
    std::shared_ptr<const Step> step;
    PlannerState after;
  };

  Host(JobSpec job, HostOptions options);
  // After those of the same step: the later one wins.
  static void InsertByStep(Decision decision, std::vector<Decision>* decisions);
  Status Open();
  Status OpenSources(StateDocument* document);
  // What a fork does to a source whose positions have another meaning now: the rest of its epoch is
  // given up, and what is carried over of it dropped.
  static void BeginNextEpoch(std::size_t source, PlannerState* state);
  Status StartLoaders(const PlannerState& state);
  Status CheckManifest(std::size_t source, const Manifest& manifest, const PlannerState& state);
  // The state to begin from. Differences from the job become an edit, an error, or with `fork` a
  // new beginning of what they touch; sets `new_identity_`.
  Result<StateDocument> InitialDocument();

  void Run();
  Status RunStep(bool* ended);
  // Plans `state_`'s step, waiting for metadata as needed.
  Result<Planner::Outcome> PlanStep(const std::vector<Decision>& decisions);
  Status Fetch(const ReadRequest& request, std::chrono::steady_clock::time_point deadline);
  Status Deliver(Planned planned, const std::vector<Decision>& decisions);
  Result<Bucket> Build(const std::shared_ptr<const StepPlan>& plan, std::uint32_t dp_rank);
  // Waits until `size_bytes` can be leased. The trainer may hold its batches as long as it likes,
  // unless it waits for another one: then, after the read deadline, ResourceExhausted says what it
  // holds.
  Status WaitForMemory(std::size_t size_bytes);
  // The next step if there is one, an error or the end; what a caller that waits looks at.
  std::optional<Result<std::shared_ptr<const Step>>> Take() WS_REQUIRES(mutex_);
  // After a change that Next or the server may wait for.
  void Wake() WS_EXCLUDES(mutex_, wake_mutex_);
  void ReleaseBefore(const PlannerState& state);
  void SetDoing(std::string doing) WS_EXCLUDES(mutex_);

  JobSpec job_;
  HostOptions options_;
  std::shared_ptr<FileSystem> fs_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<std::uint32_t> append_;
  std::string stream_hash_;
  std::vector<std::pair<std::string, std::string>> stream_keys_;
  std::vector<SourceInfo> source_info_;
  std::vector<Manifest> manifests_;
  std::unique_ptr<Planner> planner_;
  std::unique_ptr<RunJournal> journal_;
  std::unique_ptr<TaskPool> pool_;
  std::unique_ptr<SlabPool> slabs_;
  std::uint64_t read_ahead_bytes_ = 0;
  std::uint64_t step_bytes_ = 0;  // the most that one step's tensors can need, of all ranks
  bool new_identity_ = false;     // the journal goes on as that of another stream

  // Used by the driving thread only (and by Decide while that thread is stopped).
  std::vector<std::unique_ptr<SourceLoader>> loaders_;
  std::vector<std::deque<std::shared_ptr<const MetadataBatch>>> metadata_;
  std::vector<std::vector<std::shared_ptr<const MetadataBatch>>> metadata_view_;
  PlannerState state_;
  std::uint64_t incarnation_ = 0;

  Mutex wake_mutex_;
  std::function<void()> wake_ WS_GUARDED_BY(wake_mutex_);

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Decision> decisions_ WS_GUARDED_BY(mutex_);
  std::deque<Ready> ready_ WS_GUARDED_BY(mutex_);
  std::map<std::uint64_t, PlannerState> retained_ WS_GUARDED_BY(mutex_);  // by PlannerState::step
  std::uint64_t delivered_step_ WS_GUARDED_BY(mutex_) =
      0;  // state.step after the last delivered batch
  std::uint64_t delivered_count_ WS_GUARDED_BY(mutex_) = 0;
  std::uint64_t planned_count_ WS_GUARDED_BY(mutex_) = 0;
  // Since when Next has been asked for a batch in vain.
  std::optional<std::chrono::steady_clock::time_point> starved_since_ WS_GUARDED_BY(mutex_);
  std::uint64_t left_tokens_ WS_GUARDED_BY(mutex_) = 0;
  bool ended_ WS_GUARDED_BY(mutex_) = false;
  bool stopping_ WS_GUARDED_BY(mutex_) = false;
  bool deciding_ WS_GUARDED_BY(mutex_) = false;  // Decide has stopped the driver for a moment
  Status fault_ WS_GUARDED_BY(mutex_);
  std::string doing_ WS_GUARDED_BY(mutex_);
  std::chrono::steady_clock::time_point doing_since_ WS_GUARDED_BY(mutex_);
  Mutex control_mutex_;  // one Decide or Stop at a time; held while the driving thread is joined
  std::thread driver_ WS_GUARDED_BY(control_mutex_);
};

}  // namespace widestream
