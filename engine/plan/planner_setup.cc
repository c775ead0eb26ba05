#include "engine/plan/planner_setup.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/job/validate.h"
#include "engine/plan/source_cursor.h"

namespace widestream {
namespace {

Result<std::optional<Mixture>> ResolveEdit(const PlannerSetup& setup, const Decision* edit) {
  if (edit == nullptr) return std::optional<Mixture>();
  const auto fail = [&](const Status& status) {
    return status.WithContext(StrCat("edit at step ", edit->step));
  };
  auto spec = ParseMixture(edit->mixture_json, setup.names);
  if (!spec.ok()) return fail(spec.status());
  auto mixture = ResolveMixture(*spec, setup.names.size(), /*is_edit=*/true);
  if (!mixture.ok()) return fail(mixture.status());
  return std::optional<Mixture>(std::move(mixture).value());
}

Status CheckBatch(const JobSpec& job) {
  const BatchSpec& batch = job.batch;
  const auto bad = [](auto... parts) { return Status::InvalidArgument(StrCat(parts...)); };
  if (batch.sequence_length == 0 || batch.sequence_length > kMaxSequenceLength) {
    return bad("batch.sequence_length is ", batch.sequence_length, "; give 1 to ",
               kMaxSequenceLength);
  }
  const std::uint32_t limit = PieceLimit(batch);
  if (limit > kMaxSequenceLength) {
    return bad("batch.max_piece_tokens is ", limit, "; give at most ", kMaxSequenceLength);
  }
  if (batch.layout == BatchLayout::kThd) {
    if (batch.tokens < limit || batch.tokens > kMaxStepTokens) {
      return bad("batch.tokens is ", batch.tokens, "; thd needs at least the longest piece, ",
                 limit, ", and at most ", kMaxStepTokens);
    }
    WS_RETURN_IF_ERROR(ValidatePadding(batch, job.mesh));
    return Status::Ok();
  }
  if (batch.rows == 0 || std::uint64_t{batch.rows} * batch.sequence_length > kMaxStepTokens) {
    return bad("batch.rows is ", batch.rows,
               "; give at least 1 and rows * sequence_length at most ", kMaxStepTokens);
  }
  WS_RETURN_IF_ERROR(ValidatePadding(batch, job.mesh));
  if (batch.microbatch_tokens != 0 && batch.microbatch_tokens < batch.sequence_length) {
    return bad("batch.microbatch_tokens is ", batch.microbatch_tokens,
               ", less than a row of sequence_length ", batch.sequence_length, "; raise it");
  }
  return Status::Ok();
}

}  // namespace

MixtureCursor::Position PositionOf(const PlannerState& state) {
  MixtureCursor::Position position;
  position.clock = state.drawn - state.mixture_start;
  position.stage = state.stage;
  position.draws = state.draws;
  position.ended = state.ended;
  position.base_weights = state.base_weights;
  position.credit.reserve(state.sources.size());
  position.exhausted.reserve(state.sources.size());
  for (const SourceState& source : state.sources) {
    position.credit.push_back(source.credit);
    position.exhausted.push_back(source.exhausted ? 1 : 0);
  }
  return position;
}

Status CheckEdit(const PlannerSetup& setup, const Decision& edit) {
  return ResolveEdit(setup, &edit).status();
}

Result<MixtureInForce> FindMixture(const PlannerSetup& setup, const PlannerState& state,
                                   std::span<const Decision> decisions) {
  const Decision* before = nullptr;  // the last edit of an earlier step
  const Decision* now = nullptr;     // the last edit of this step
  for (const Decision& decision : decisions) {
    if (decision.kind != Decision::Kind::kEdit || decision.step > state.step) continue;
    (decision.step == state.step ? now : before) = &decision;
  }
  MixtureInForce result;
  WS_ASSIGN_OR_RETURN(result.edited, ResolveEdit(setup, now != nullptr ? now : before));
  if (now == nullptr) {
    result.base_weights = state.base_weights;
  } else {
    result.begins_now = true;
    if (result.edited->stages.front().ramp > 0) {
      WS_ASSIGN_OR_RETURN(const std::optional<Mixture> old, ResolveEdit(setup, before));
      const Mixture& mixture = old ? *old : setup.mixture;
      if (state.stage >= mixture.stages.size()) {
        return Status::InvalidArgument(StrCat("state: stage ", state.stage, " of a mixture with ",
                                              mixture.stages.size(), " stages"));
      }
      MixtureCursor cursor(mixture, setup.job.seed, setup.source_ids, PositionOf(state));
      result.base_weights = cursor.weights();
      // Nothing to ramp from once every source has ended.
      if (std::all_of(result.base_weights.begin(), result.base_weights.end(),
                      [](std::uint64_t w) { return w == 0; })) {
        result.base_weights.clear();
      }
    }
  }
  const std::size_t stages = result.Get(setup).stages.size();
  if (!result.begins_now && state.stage >= stages) {
    return Status::InvalidArgument(StrCat("state: schedule.stage is ", state.stage,
                                          ", but the mixture in force has ", stages,
                                          " stages; the decisions do not belong to this state"));
  }
  return result;
}

PlannerState WithMixtureBegun(PlannerState state, const MixtureInForce& mixture) {
  state.base_weights = mixture.base_weights;
  if (!mixture.begins_now) return state;
  state.mixture_start = state.drawn;
  state.stage = 0;
  state.ended = false;
  for (SourceState& source : state.sources) {
    source.credit = 0;
    source.exhausted = false;
  }
  return state;
}

Status CheckInputs(const PlannerSetup& setup, const PlannerState& state, const Metadata& metadata,
                   std::span<const Decision> decisions) {
  const std::size_t n = setup.names.size();
  if (state.sources.size() != n || metadata.sources.size() != n) {
    return Status::InvalidArgument(StrCat("the job has ", n, " sources, the state ",
                                          state.sources.size(), " and the metadata ",
                                          metadata.sources.size()));
  }
  if (state.drawn < state.mixture_start || state.open_source >= static_cast<std::int64_t>(n) ||
      (!state.base_weights.empty() && state.base_weights.size() != n)) {
    return Status::InvalidArgument("state: the schedule is inconsistent");
  }
  for (const Piece& piece : state.carried) {
    if (piece.source >= n) return Status::InvalidArgument("state: carried piece of no source");
  }
  if (state.closing && state.closing->source >= n) {
    return Status::InvalidArgument("state: closing piece of no source");
  }
  for (std::size_t s = 0; s < n; ++s) {
    for (const auto& batch : metadata.sources[s]) {
      if (batch == nullptr) {
        return Status::Internal(StrCat("source ", setup.names[s], ": a metadata batch is null"));
      }
    }
  }
  for (std::size_t i = 1; i < decisions.size(); ++i) {
    if (decisions[i].step < decisions[i - 1].step) {
      return Status::InvalidArgument(StrCat("decisions are not sorted by step: ", decisions[i].step,
                                            " follows ", decisions[i - 1].step));
    }
  }
  return Status::Ok();
}

Result<PlannerSetup> MakeSetup(const JobSpec& job) {
  PlannerSetup setup;
  setup.job = job;
  if (job.sources.empty() || job.sources.size() > kMaxSources) {
    return Status::InvalidArgument(
        StrCat("the job has ", job.sources.size(), " sources; give 1 to ", kMaxSources));
  }
  std::unordered_set<std::string_view> seen;
  for (const SourceSpec& source : job.sources) {
    if (!seen.insert(source.name).second) {
      return Status::InvalidArgument(
          StrCat("two sources are called ", source.name, "; names must be unique"));
    }
    if (source.max_epochs && *source.max_epochs == 0) {
      return Status::InvalidArgument(StrCat(
          "source ", source.name, ": max_epochs is 0; give at least 1, or remove the source"));
    }
    setup.names.push_back(source.name);
    setup.source_ids.push_back(Xxh3_64(source.name));
  }
  WS_ASSIGN_OR_RETURN(setup.mixture,
                      ResolveMixture(job.mixture, job.sources.size(), /*is_edit=*/false));
  const MeshSpec& mesh = job.mesh;
  constexpr std::uint64_t kMaxBuckets = std::uint64_t{1} << 22;
  if (mesh.dp == 0 || mesh.cp == 0 || mesh.tp == 0 || mesh.pp == 0 || mesh.vpp == 0 ||
      std::uint64_t{mesh.dp} * mesh.vpp > kMaxBuckets) {
    return Status::InvalidArgument(
        StrCat("mesh is dp ", mesh.dp, ", cp ", mesh.cp, ", tp ", mesh.tp, ", pp ", mesh.pp,
               ", vpp ", mesh.vpp, "; give at least 1 each, and dp * vpp at most ", kMaxBuckets));
  }
  WS_RETURN_IF_ERROR(ValidateBalance(job));
  WS_RETURN_IF_ERROR(CheckBatch(job));
  setup.piece_limit = PieceLimit(job.batch);
  setup.budget_tokens = job.batch.layout == BatchLayout::kThd
                            ? job.batch.tokens
                            : std::uint64_t{job.batch.rows} * job.batch.sequence_length;
  setup.layout = LayoutOptionsOf(job);
  return setup;
}

}  // namespace widestream
