#include "engine/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/plan/digest.h"
#include "engine/plan/layout.h"
#include "engine/plan/mixture.h"
#include "engine/plan/packing.h"
#include "engine/plan/source_cursor.h"

namespace widestream {
namespace {

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

// The mixture that the decisions put in force at a step, and the state's own part of it.
struct MixtureInForce {
  std::optional<Mixture> edited;  // empty: the job's
  std::vector<std::uint64_t> base_weights;
  bool begins_now = false;  // an edit takes effect at this very step

  const Mixture& Get(const PlannerSetup& setup) const { return edited ? *edited : setup.mixture; }
};

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

// Lets a mixture that begins at this step begin: its clock at 0, no counters, and every source may
// be tried again.
void BeginMixture(const MixtureInForce& mixture, PlannerState& state) {
  state.base_weights = mixture.base_weights;
  if (!mixture.begins_now) return;
  state.mixture_start = state.drawn;
  state.stage = 0;
  state.ended = false;
  for (SourceState& source : state.sources) {
    source.credit = 0;
    source.exhausted = false;
  }
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

// One call of Plan: works on a copy of the state and throws it away if metadata is missing.
class Session {
 public:
  Session(const PlannerSetup& setup, const PlannerState& state, const Metadata& metadata,
          std::span<const Decision> decisions, MixtureInForce mixture)
      : setup_(setup),
        state_(state),
        decisions_(decisions),
        in_force_(std::move(mixture)),
        next_(state),
        metadata_(metadata) {
    BeginMixture(in_force_, next_);
  }

  Result<Planner::Outcome> Run();

 private:
  enum class Drawn : std::uint8_t { kPiece, kNeed, kEnded };
  struct Taken {
    Piece piece;
    const RestartPoint* block = nullptr;  // nullptr: the piece was queued by an earlier step
  };

  void OpenCursors();
  Status ApplyQuarantines();
  void FillQueue();
  Result<Drawn> Draw(Taken* taken);
  Need BuildNeed(double remaining_tokens);
  Result<Planner::Outcome> Finish(std::vector<Taken> taken, std::size_t carried,
                                  std::optional<Taken> over);
  void MoveRestarts(std::span<const Taken> pending);
  const BatchSpec& batch() const { return setup_.job.batch; }

  const PlannerSetup& setup_;
  const PlannerState& state_;
  std::span<const Decision> decisions_;
  const MixtureInForce in_force_;
  PlannerState next_;
  const Metadata& metadata_;
  std::map<std::uint32_t, std::vector<RecordPlace>> quarantined_;
  std::vector<SourceCursor> cursors_;
  std::optional<MixtureCursor> mixture_;
  std::vector<Piece> queue_;       // carried, then closing
  std::size_t queue_carried_ = 0;  // how many of them were carried
  std::uint32_t blocked_ = 0;      // the source whose metadata is missing
};

void Session::OpenCursors() {
  for (const Decision& decision : decisions_) {
    if (decision.kind == Decision::Kind::kQuarantine && decision.step <= state_.step) {
      quarantined_[decision.source].emplace_back(decision.epoch, decision.position);
    }
  }
  for (auto& [source, places] : quarantined_) std::sort(places.begin(), places.end());
  cursors_.reserve(next_.sources.size());
  for (std::uint32_t s = 0; s < next_.sources.size(); ++s) {
    const auto places = quarantined_.find(s);
    cursors_.emplace_back(
        setup_.job, s, &next_.sources[s], metadata_.sources[s],
        places == quarantined_.end() ? std::span<const RecordPlace>() : places->second);
  }
}

// A record that was already examined when its quarantine takes effect loses what is queued or open.
Status Session::ApplyQuarantines() {
  for (const Decision& decision : decisions_) {
    if (decision.kind != Decision::Kind::kQuarantine || decision.step != state_.step) continue;
    if (decision.source >= next_.sources.size()) {
      return Status::InvalidArgument(StrCat("quarantine at step ", decision.step, " names source ",
                                            decision.source, " of ", next_.sources.size()));
    }
    const SourceState& source = next_.sources[decision.source];
    const RecordPlace place{decision.epoch, decision.position};
    const RecordPlace cursor{source.epoch, source.position};
    const bool open = place == cursor && source.token > 0;
    if (place > cursor || (place == cursor && !open)) continue;  // counted when it is examined
    const auto hit = [&](const Piece& piece) {
      return piece.source == decision.source && piece.epoch == decision.epoch &&
             piece.position == decision.position;
    };
    const auto removed = std::erase_if(next_.carried, hit);
    bool any = open || removed > 0;
    if (next_.closing && hit(*next_.closing)) {
      next_.closing.reset();
      any = true;
    }
    if (!any) continue;  // delivered long ago
    if (open && next_.open_source == decision.source) next_.open_source = -1;
    WS_RETURN_IF_ERROR(cursors_[decision.source].Quarantine(place));
  }
  return Status::Ok();
}

// The queue of the last step; pieces longer than the limit (it shrank since) are cut again.
void Session::FillQueue() {
  const auto add = [&](const Piece& piece) {
    Piece rest = piece;
    while (rest.length > setup_.piece_limit) {
      Piece head = rest;
      head.length = setup_.piece_limit;
      head.last = false;
      queue_.push_back(head);
      rest.start += head.length;
      rest.length -= head.length;
    }
    queue_.push_back(rest);
  };
  for (const Piece& piece : next_.carried) add(piece);
  queue_carried_ = queue_.size();
  if (next_.closing) add(*next_.closing);
  next_.carried.clear();
  next_.closing.reset();
}

Result<Session::Drawn> Session::Draw(Taken* taken) {
  if (next_.open_source >= 0) {
    const auto s = static_cast<std::uint32_t>(next_.open_source);
    WS_ASSIGN_OR_RETURN(const SourceCursor::Found found, cursors_[s].Find());
    if (found == SourceCursor::Found::kNeed) {
      blocked_ = s;
      return Drawn::kNeed;
    }
    taken->piece = cursors_[s].Take(setup_.piece_limit);
    taken->piece.draw = mixture_->position().draws - 1;  // the draw that opened the sample
    taken->block = cursors_[s].block();
    if (taken->piece.last) next_.open_source = -1;
    return Drawn::kPiece;
  }
  while (const std::optional<std::uint32_t> choice = mixture_->Choose()) {
    const std::uint32_t s = *choice;
    WS_ASSIGN_OR_RETURN(const SourceCursor::Found found, cursors_[s].Find());
    if (found == SourceCursor::Found::kNeed) {
      blocked_ = s;
      return Drawn::kNeed;
    }
    if (found == SourceCursor::Found::kExhausted) {
      const SourceSpec& source = setup_.job.sources[s];
      if (source.on_exhausted == ExhaustedPolicy::kError) {
        return Status::InvalidArgument(
            StrCat("source ", source.name, " is exhausted at step ", state_.step, " after ",
                   *source.max_epochs,
                   " epochs; raise max_epochs, add data, or set on_exhausted to renormalise or "
                   "stop"));
      }
      next_.sources[s].exhausted = true;
      mixture_->Exhaust(s);
      if (source.on_exhausted == ExhaustedPolicy::kStop) mixture_->End();
      continue;
    }
    taken->piece = cursors_[s].Take(setup_.piece_limit);
    taken->piece.draw = mixture_->position().draws;
    taken->block = cursors_[s].block();
    const bool samples = in_force_.Get(setup_).unit == MixtureUnit::kSamples;
    mixture_->Account(s, samples ? 1 : taken->piece.length);
    if (samples && !taken->piece.last) next_.open_source = s;
    return Drawn::kPiece;
  }
  return Drawn::kEnded;
}

// Asks at once for what every source will probably give to the rest of the step. Only an estimate:
// asking for more or less changes how often Plan is called, never what it returns.
Need Session::BuildNeed(double remaining_tokens) {
  constexpr double kOne = 4294967296.0;
  constexpr std::uint64_t kMaxRecords = 65'536;
  constexpr std::uint64_t kLeastRecords = 16;
  const std::vector<std::uint64_t> weights = mixture_->weights();
  const std::vector<std::int64_t>& credit = mixture_->position().credit;
  const bool samples = in_force_.Get(setup_).unit == MixtureUnit::kSamples;
  double remaining_units = std::max(remaining_tokens, 1.0);
  if (samples) {
    double mean = 0;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      if (weights[s] > 0) {
        mean += static_cast<double>(weights[s]) / kOne * cursors_[s].MeanTokens();
      }
    }
    remaining_units /= std::max(mean, 1.0);
  }
  Need need;
  for (std::uint32_t s = 0; s < weights.size(); ++s) {
    if (s != blocked_ && (weights[s] == 0 || cursors_[s].RunIsComplete())) continue;
    const double units = static_cast<double>(credit[s]) / kOne +
                         remaining_units * static_cast<double>(weights[s]) / kOne;
    if (units <= 0 && s != blocked_) continue;
    const double records = samples ? units : units / std::max(cursors_[s].MeanTokens(), 1.0);
    const double wanted = std::ceil(std::clamp(records, 0.0, 1e9) * 1.125) + 2;
    const std::uint64_t held = cursors_[s].HeldRecords();
    const auto target = static_cast<std::uint64_t>(wanted);
    std::uint64_t ask = target > held ? target - held : 0;
    if (s == blocked_) {
      ask = std::max(ask, kLeastRecords);
    } else if (static_cast<double>(held) >= std::ceil(records)) {
      continue;
    }
    ReadRequest request;
    request.source = s;
    std::tie(request.epoch, request.position) = cursors_[s].NextMissing();
    request.records = std::min(ask, kMaxRecords);
    need.requests.push_back(request);
  }
  return need;
}

Result<Planner::Outcome> Session::Run() {
  OpenCursors();
  WS_RETURN_IF_ERROR(ApplyQuarantines());
  FillQueue();
  mixture_.emplace(in_force_.Get(setup_), setup_.job.seed, setup_.source_ids, PositionOf(next_));

  const bool padded = batch().layout == BatchLayout::kPadded;
  std::vector<Taken> taken;
  std::size_t from_queue = 0;
  std::uint64_t tokens = 0;
  std::optional<Taken> over;  // closes the step
  bool ended = false;
  while (!padded || taken.size() < batch().rows) {
    Taken piece;
    if (from_queue < queue_.size()) {
      piece.piece = queue_[from_queue++];
    } else {
      WS_ASSIGN_OR_RETURN(const Drawn drawn, Draw(&piece));
      if (drawn == Drawn::kNeed) {
        const double left =
            padded ? static_cast<double>(batch().rows - taken.size()) * setup_.piece_limit
                   : static_cast<double>(setup_.budget_tokens - tokens);
        return Planner::Outcome(BuildNeed(left));
      }
      if (drawn == Drawn::kEnded) {
        ended = true;
        break;
      }
    }
    if (!padded && tokens + piece.piece.length > setup_.budget_tokens) {
      over = piece;
      break;
    }
    tokens += piece.piece.length;
    taken.push_back(piece);
  }
  const bool full = padded ? taken.size() == batch().rows : tokens == setup_.budget_tokens;
  if (taken.empty()) return Planner::Outcome(EndOfStream{});
  if (ended && !full && batch().last_step == LastStepPolicy::kDrop) {
    return Planner::Outcome(EndOfStream{tokens});
  }
  const std::size_t carried = std::min(queue_carried_, taken.size());
  // A queue longer than a step (the job's batch shrank) waits for the next one.
  if (from_queue < queue_.size()) {
    if (over) next_.carried.push_back(over->piece);
    over.reset();
    next_.carried.insert(next_.carried.end(),
                         queue_.begin() + static_cast<std::ptrdiff_t>(from_queue), queue_.end());
  }
  return Finish(std::move(taken), carried, std::move(over));
}

Result<Planner::Outcome> Session::Finish(std::vector<Taken> taken, std::size_t carried,
                                         std::optional<Taken> over) {
  Planned planned;
  StepPlan& plan = planned.plan;
  plan.step = state_.step;
  std::vector<Taken> pending;
  for (const Piece& piece : next_.carried) pending.push_back({piece, nullptr});

  if (batch().layout == BatchLayout::kRows) {
    std::vector<std::uint32_t> lengths;
    lengths.reserve(taken.size());
    for (const Taken& piece : taken) lengths.push_back(piece.piece.length);
    Packing packing = PackRows(lengths, carried, batch().rows, batch().sequence_length);
    // Members keep their order; their numbers close up over those that found no room.
    std::vector<std::uint32_t> number(taken.size());
    std::size_t left = 0;
    for (std::uint32_t i = 0; i < taken.size(); ++i) {
      if (left < packing.left.size() && packing.left[left] == i) {
        pending.push_back(taken[i]);
        ++left;
        continue;
      }
      number[i] = static_cast<std::uint32_t>(plan.pieces.size());
      plan.pieces.push_back(taken[i].piece);
    }
    for (std::vector<std::uint32_t>& row : packing.rows) {
      for (std::uint32_t& piece : row) piece = number[piece];
    }
    plan.rows = std::move(packing.rows);
  } else {
    for (const Taken& piece : taken) plan.pieces.push_back(piece.piece);
    if (batch().layout == BatchLayout::kPadded) {
      plan.rows.resize(batch().rows);
      for (std::uint32_t i = 0; i < plan.pieces.size(); ++i) plan.rows[i] = {i};
    }
  }
  const auto in_order = [](const Taken& a, const Taken& b) {
    return std::pair(a.piece.draw, a.piece.start) < std::pair(b.piece.draw, b.piece.start);
  };
  std::sort(pending.begin(), pending.end(), in_order);
  next_.carried.clear();
  for (const Taken& piece : pending) next_.carried.push_back(piece.piece);
  if (over) {
    next_.closing = over->piece;
    pending.push_back(*over);
  }
  MoveRestarts(pending);

  for (const Piece& piece : plan.pieces) {
    plan.real_tokens += piece.length;
    plan.supervised_tokens += piece.length - (piece.last ? 1 : 0);
  }
  for (const Decision& decision : decisions_) {
    if (decision.kind == Decision::Kind::kSkip && decision.step <= plan.step &&
        plan.step - decision.step < decision.steps) {
      plan.skipped = true;
    }
  }
  plan.digest = StepDigest(plan, setup_.source_ids);
  WS_ASSIGN_OR_RETURN(plan.ranks, BuildLayout(setup_.layout, plan));

  const MixtureCursor::Position& position = mixture_->position();
  next_.step = state_.step + 1;
  next_.draws = position.draws;
  next_.drawn = next_.mixture_start + position.clock;
  next_.stage = position.stage;
  next_.ended = position.ended;
  if (!plan.skipped) next_.real_tokens += plan.real_tokens;
  for (std::size_t s = 0; s < next_.sources.size(); ++s) {
    next_.sources[s].credit = position.credit[s];
  }
  planned.next = std::move(next_);
  return Planner::Outcome(std::move(planned));
}

// Reading must be able to begin at the block of the oldest record that is still needed. A piece of
// an earlier step keeps the old restart point; otherwise it is the block of the oldest pending
// piece, or else of the record examined last. None of this depends on how far ahead metadata is
// held.
void Session::MoveRestarts(std::span<const Taken> pending) {
  std::vector<const RestartPoint*> blocks;
  blocks.reserve(cursors_.size());
  for (const SourceCursor& cursor : cursors_) blocks.push_back(cursor.block());
  std::vector<std::uint8_t> decided(cursors_.size(), 0);
  for (const Taken& piece : pending) {  // oldest first
    const std::uint32_t s = piece.piece.source;
    if (decided[s] != 0) continue;
    decided[s] = 1;
    blocks[s] = piece.block;
  }
  for (std::size_t s = 0; s < blocks.size(); ++s) {
    if (blocks[s] != nullptr) next_.sources[s].restart = *blocks[s];
  }
}

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
    Session session(setup_, state, metadata, decisions, std::move(mixture));
    auto outcome = session.Run();
    if (!outcome.ok()) return outcome.status().WithContext(StrCat("step ", state.step));
    return outcome;
  }

  std::vector<std::uint64_t> Weights(const PlannerState& state,
                                     std::span<const Decision> decisions) const override {
    auto in_force = FindMixture(setup_, state, decisions);
    if (!in_force.ok() || state.sources.size() != setup_.names.size()) return {};
    PlannerState now = state;
    BeginMixture(*in_force, now);
    MixtureCursor cursor(in_force->Get(setup_), setup_.job.seed, setup_.source_ids,
                         PositionOf(now));
    return cursor.weights();
  }

 private:
  const PlannerSetup setup_;
};

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
    const std::uint64_t padded = PaddedTokens(limit, job.mesh.cp);
    if (batch.microbatch_tokens != 0 && batch.microbatch_tokens < padded) {
      return bad("batch.microbatch_tokens is ", batch.microbatch_tokens,
                 ", less than the longest piece, ", padded,
                 " tokens with padding; raise it or lower max_piece_tokens");
    }
    return Status::Ok();
  }
  if (batch.rows == 0 || std::uint64_t{batch.rows} * batch.sequence_length > kMaxStepTokens) {
    return bad("batch.rows is ", batch.rows,
               "; give at least 1 and rows * sequence_length at most ", kMaxStepTokens);
  }
  if (batch.microbatch_tokens != 0 && batch.microbatch_tokens < batch.sequence_length) {
    return bad("batch.microbatch_tokens is ", batch.microbatch_tokens,
               ", less than a row of sequence_length ", batch.sequence_length, "; raise it");
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<Planner>> Planner::Make(const JobSpec& job) {
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
  if (job.balance != "lpt" && job.balance != "none") {
    return Status::InvalidArgument(
        StrCat("balance is ", Quoted(job.balance), "; this engine knows lpt and none"));
  }
  WS_RETURN_IF_ERROR(CheckBatch(job));
  setup.piece_limit = PieceLimit(job.batch);
  setup.budget_tokens = job.batch.layout == BatchLayout::kThd
                            ? job.batch.tokens
                            : std::uint64_t{job.batch.rows} * job.batch.sequence_length;
  setup.layout = {
      job.batch.layout,     job.batch.sequence_length,          job.batch.microbatch_tokens,
      job.balance == "lpt", job.batch.cross_document_attention, mesh};
  return std::unique_ptr<Planner>(new PlannerImpl(std::move(setup)));
}

}  // namespace widestream
