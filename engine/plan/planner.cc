#include "engine/plan/planner.h"

#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/planner_session.h"
#include "engine/plan/planner_setup.h"

namespace widestream {
namespace {

class PlannerImpl final : public Planner {
 public:
  explicit PlannerImpl(PlannerSetup setup) : setup_(std::move(setup)) {}

  PlannerState InitialState() const override {
    PlannerState state;
    state.sources.resize(setup_.names.size());
    return state;
  }

  Result<Outcome> Plan(const PlannerState& state, const Metadata& metadata,
                       std::span<const Decision> decisions) const override {
    WS_RETURN_IF_ERROR(CheckInputs(setup_, state, metadata, decisions));
    WS_ASSIGN_OR_RETURN(MixtureInForce mixture, FindMixture(setup_, state, decisions));
    PlannerSession session(setup_, state, metadata, decisions, std::move(mixture));
    auto outcome = session.Run();
    if (!outcome.ok()) return outcome.status().WithContext(StrCat("step ", state.step));
    return outcome;
  }

  Status Check(const Decision& decision) const override {
    if (decision.kind != Decision::Kind::kEdit) return Status::Ok();
    return CheckEdit(setup_, decision);
  }

  std::vector<std::uint64_t> Weights(const PlannerState& state,
                                     std::span<const Decision> decisions) const override {
    if (state.sources.size() != setup_.names.size()) return {};
    auto in_force = FindMixture(setup_, state, decisions);
    if (!in_force.ok()) return {};
    MixtureCursor cursor(in_force->Get(setup_), setup_.job.seed, setup_.source_ids,
                         PositionOf(WithMixtureBegun(state, *in_force)));
    return cursor.weights();
  }

 private:
  const PlannerSetup setup_;
};

}  // namespace

Result<std::unique_ptr<Planner>> Planner::Make(const JobSpec& job) {
  WS_ASSIGN_OR_RETURN(PlannerSetup setup, MakeSetup(job));
  return std::unique_ptr<Planner>(new PlannerImpl(std::move(setup)));
}

}  // namespace widestream
