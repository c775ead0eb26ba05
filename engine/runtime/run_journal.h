// RunJournal: the journal of one run folder as the Host needs it. The bytes are plan/journal's;
// this adds the folder, the group commit, and the comparison of re-planned steps with recorded
// ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/plan.h"
#include "engine/plan/planner.h"
#include "engine/storage/file_system.h"

namespace widestream {

// Thread-safe. One writer a folder: a second one in any process is refused.
class RunJournal {
 public:
  // Opens run_dir/journal, cutting a torn tail. A journal of another stream is InvalidArgument
  // unless `fork`. With `fork`, or when there is no state, records at or after `step` are moved
  // aside, never deleted.
  static Result<std::unique_ptr<RunJournal>> Open(std::shared_ptr<FileSystem> fs,
                                                  const std::string& run_dir,
                                                  const std::string& stream_hash,
                                                  std::uint64_t step, bool fork);
  virtual ~RunJournal() = default;

  // Decisions recorded at or after `step`: they are replayed at their steps.
  virtual std::vector<Decision> DecisionsFrom(std::uint64_t step) const = 0;
  // Appends; a step that the journal already holds must have the same digest (DataCorruption names
  // the step). Becomes durable within a second, or at Commit.
  virtual Status AppendStep(const StepPlan& plan) = 0;
  // Durable when it returns.
  virtual Status AppendDecision(const Decision& decision) = 0;
  virtual Status Commit() = 0;
};

}  // namespace widestream
