// RunJournal: the journal of one run folder as the Host needs it. The bytes are plan/journal's;
// this adds the lock on the folder and the group commit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/status.h"
#include "engine/base/thread_annotations.h"
#include "engine/plan/journal.h"
#include "engine/plan/plan.h"
#include "engine/plan/planner.h"
#include "engine/storage/file_system.h"

namespace widestream {

// Thread-safe. One writer a folder: a second one, in any process, is refused. What is appended
// becomes durable within a second; a failure to do so is returned by the next call.
class RunJournal {
 public:
  // Opens RUN_DIR/journal.bin, cutting a torn tail. A journal of another stream is InvalidArgument
  // unless `fork`; `fork` voids what is recorded from `step` on.
  static Result<std::unique_ptr<RunJournal>> Open(const std::shared_ptr<FileSystem>& fs,
                                                  const std::string& run_dir,
                                                  const JournalIdentity& identity,
                                                  std::uint64_t step, bool fork);
  ~RunJournal();

  // Decisions recorded for `step` or later: they are replayed at their steps.
  std::vector<Decision> DecisionsFrom(std::uint64_t step) const;
  // A step that the journal holds must have the same digest: DataCorruption names the step.
  Status AppendStep(const StepPlan& plan);
  // Durable when it returns.
  Status AppendDecision(const Decision& decision);
  Status AppendManifest(const JournalManifest& manifest);
  Status Commit();

 private:
  class FolderLock;
  RunJournal(std::unique_ptr<FolderLock> lock, std::unique_ptr<JournalWriter> writer);
  void CommitLoop();

  const std::unique_ptr<FolderLock> lock_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<JournalWriter> writer_ WS_GUARDED_BY(mutex_);
  bool dirty_ WS_GUARDED_BY(mutex_) = false;
  bool stopping_ WS_GUARDED_BY(mutex_) = false;
  Status fault_ WS_GUARDED_BY(mutex_);
  std::thread committer_;
};

}  // namespace widestream
