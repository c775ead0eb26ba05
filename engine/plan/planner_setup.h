// What the planner resolved from a job, and the mixture in force at a step. Private to engine/plan.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"
#include "engine/plan/layout.h"
#include "engine/plan/mixture.h"
#include "engine/plan/planner.h"

namespace widestream {

// What Make resolved. Immutable.
struct PlannerSetup {
  JobSpec job;
  Mixture mixture;
  std::vector<std::string> names;
  std::vector<std::uint64_t> source_ids;  // xxh3-64 of the names
  std::uint32_t piece_limit = 0;
  std::uint64_t budget_tokens = 0;  // real tokens a step holds at most; padded: no bound but rows
  LayoutOptions layout;
};

// Checks everything that planning relies on, so that Plan fails only for its inputs.
Result<PlannerSetup> MakeSetup(const JobSpec& job);

// The mixture that the decisions put in force at a step, and the state's own part of it.
struct MixtureInForce {
  std::optional<Mixture> edited;  // empty: the job's
  std::vector<std::uint64_t> base_weights;
  bool begins_now = false;  // an edit takes effect at this very step

  const Mixture& Get(const PlannerSetup& setup) const { return edited ? *edited : setup.mixture; }
};

// The mixture's part of a state, as its cursor wants it.
MixtureCursor::Position PositionOf(const PlannerState& state);

// InvalidArgument if the mixture of an edit cannot replace the job's.
Status CheckEdit(const PlannerSetup& setup, const Decision& edit);

// InvalidArgument if an edit cannot be parsed, or the decisions do not belong to the state.
Result<MixtureInForce> FindMixture(const PlannerSetup& setup, const PlannerState& state,
                                   std::span<const Decision> decisions);

// The state with a mixture that begins at this step begun: its clock at 0, no counters, and every
// source may be tried again.
PlannerState WithMixtureBegun(PlannerState state, const MixtureInForce& mixture);

// Inputs of Plan that would otherwise be used as indices.
Status CheckInputs(const PlannerSetup& setup, const PlannerState& state, const Metadata& metadata,
                   std::span<const Decision> decisions);

}  // namespace widestream
