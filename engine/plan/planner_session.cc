#include "engine/plan/planner_session.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/digest.h"
#include "engine/plan/layout.h"
#include "engine/plan/packing.h"

namespace widestream {

void PlannerSession::OpenCursors() {
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
Status PlannerSession::ApplyQuarantines() {
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

void PlannerSession::FillQueue() {
  queue_ = std::move(next_.carried);
  queue_carried_ = queue_.size();
  if (next_.closing) queue_.push_back(*next_.closing);
  next_.carried.clear();
  next_.closing.reset();
}

// The front of the queue; of a piece longer than the limit (it shrank since) only so much.
Piece PlannerSession::TakeQueued() {
  Piece& front = queue_[queue_at_];
  Piece piece = front;
  if (piece.length <= setup_.piece_limit) {
    ++queue_at_;
    return piece;
  }
  piece.length = setup_.piece_limit;
  piece.last = false;
  front.start += piece.length;
  front.length -= piece.length;
  return piece;
}

Result<PlannerSession::Drawn> PlannerSession::Draw(Taken* taken) {
  if (next_.open_source >= 0) {
    const auto s = static_cast<std::uint32_t>(next_.open_source);
    WS_ASSIGN_OR_RETURN(const SourceCursor::Found found, cursors_[s].Find());
    if (found == SourceCursor::Found::kNeed) {
      blocked_ = s;
      return Drawn::kNeed;
    }
    if (found != SourceCursor::Found::kOpen) {
      return Status::InvalidArgument(StrCat("state: schedule.open_source is ", setup_.names[s],
                                            ", which has no open document"));
    }
    taken->piece = cursors_[s].Take(setup_.piece_limit);
    taken->piece.draw = mixture_.position().draws - 1;  // the draw that opened the sample
    taken->block = cursors_[s].block();
    if (taken->piece.last) next_.open_source = -1;
    return Drawn::kPiece;
  }
  while (const std::optional<std::uint32_t> choice = mixture_.Choose()) {
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
                   source.max_epochs.value_or(0),
                   " epochs; raise max_epochs, add data, or set on_exhausted to renormalise or "
                   "stop"));
      }
      next_.sources[s].exhausted = true;
      mixture_.Exhaust(s);
      if (source.on_exhausted == ExhaustedPolicy::kStop) mixture_.End();
      continue;
    }
    taken->piece = cursors_[s].Take(setup_.piece_limit);
    taken->piece.draw = mixture_.position().draws;
    taken->block = cursors_[s].block();
    const bool samples = in_force_.Get(setup_).unit == MixtureUnit::kSamples;
    mixture_.Account(s, samples ? 1 : taken->piece.length);
    if (samples && !taken->piece.last) next_.open_source = s;
    return Drawn::kPiece;
  }
  return Drawn::kEnded;
}

// The sources that the rest of the step draws if pieces have their mean length. Empty where finding
// out would take longer than it is worth.
std::vector<bool> PlannerSession::PredictDraws(double remaining_units) const {
  constexpr std::size_t kMostSteps = 1U << 20;
  const bool samples = in_force_.Get(setup_).unit == MixtureUnit::kSamples;
  std::vector<bool> drawn(cursors_.size(), false);
  MixtureCursor ahead = mixture_;
  for (std::size_t steps = 0; remaining_units > 0; steps += drawn.size()) {
    if (steps > kMostSteps) return {};
    const std::optional<std::uint32_t> choice = ahead.Choose();
    if (!choice) break;
    drawn[*choice] = true;
    const double mean =
        std::clamp(cursors_[*choice].MeanTokens(), 1.0, double{1.0} * batch().sequence_length);
    const std::uint64_t units = samples ? 1 : static_cast<std::uint64_t>(mean);
    ahead.Account(*choice, units);
    remaining_units -= static_cast<double>(units);
  }
  return drawn;
}

// Asks at once for what every source will probably give to the rest of the step. Only an estimate:
// asking for more or less changes how often Plan is called, never what it returns.
Need PlannerSession::BuildNeed(double remaining_tokens) {
  constexpr double kOne = 4294967296.0;
  constexpr std::uint64_t kMaxRecords = 65'536;
  constexpr std::uint64_t kLeastRecords = 16;
  const std::vector<std::uint64_t> weights = mixture_.weights();
  const std::vector<std::int64_t>& credit = mixture_.position().credit;
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
  const std::vector<bool> drawn = PredictDraws(remaining_units);
  Need need;
  for (std::uint32_t s = 0; s < weights.size(); ++s) {
    if (s != blocked_ && (weights[s] == 0 || cursors_[s].RunIsComplete())) continue;
    const double units = static_cast<double>(credit[s]) / kOne +
                         remaining_units * static_cast<double>(weights[s]) / kOne;
    const double mean = samples ? 1.0 : std::max(cursors_[s].MeanTokens(), 1.0);
    // A source that is owed nothing until the end of the step may still be drawn once.
    if (units <= -mean && s != blocked_) continue;
    // A share of less than a document: with many sources most give nothing to the step, and what
    // they are owed decides which.
    const bool unsure =
        remaining_units * static_cast<double>(weights[s]) / kOne < mean && s != blocked_;
    if (unsure && !drawn.empty() && !drawn[s]) continue;
    const double records = std::clamp(units / mean, 1.0, 1e9);
    // With many sources one of them always needs more than its mean, hence the margins.
    const auto enough = static_cast<std::uint64_t>(records + 3 * std::sqrt(records)) + 2;
    const std::uint64_t held = cursors_[s].HeldRecords();
    if (held >= enough && s != blocked_) continue;
    std::uint64_t ask = enough + enough / 4 - std::min(held, enough);
    if (s == blocked_) ask = std::max(ask, kLeastRecords);
    ReadRequest request;
    request.source = s;
    std::tie(request.epoch, request.position) = cursors_[s].NextMissing();
    request.records = std::min(ask, kMaxRecords);
    (unsure ? need.likely : need.requests).push_back(request);
  }
  return need;
}

Result<Planner::Outcome> PlannerSession::Run() {
  OpenCursors();
  WS_RETURN_IF_ERROR(ApplyQuarantines());
  FillQueue();

  const bool padded = batch().layout == BatchLayout::kPadded;
  std::vector<Taken> taken;
  std::size_t carried = 0;  // how many of the taken pieces were
  std::uint64_t tokens = 0;
  std::optional<Taken> over;  // closes the step
  bool ended = false;
  while (!padded || taken.size() < batch().rows) {
    Taken piece;
    const bool was_carried = queue_at_ < queue_carried_;
    if (queue_at_ < queue_.size()) {
      piece.piece = TakeQueued();
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
    if (was_carried) ++carried;
  }
  const bool full = padded ? taken.size() == batch().rows : tokens == setup_.budget_tokens;
  if (taken.empty()) return Planner::Outcome(EndOfStream{});
  if (ended && !full && batch().last_step == LastStepPolicy::kDrop) {
    return Planner::Outcome(EndOfStream{tokens});
  }
  // A queue longer than a step (the job's batch shrank) waits for the next one.
  if (queue_at_ < queue_.size()) {
    if (over) next_.carried.push_back(over->piece);
    over.reset();
    next_.carried.insert(next_.carried.end(),
                         queue_.begin() + static_cast<std::ptrdiff_t>(queue_at_), queue_.end());
  }
  return Finish(std::move(taken), carried, over);
}

Result<Planner::Outcome> PlannerSession::Finish(std::vector<Taken> taken, std::size_t carried,
                                                std::optional<Taken> over) {
  Planned planned;
  StepPlan& plan = planned.plan;
  plan.step = state_.step;
  std::vector<Taken> pending;
  pending.reserve(next_.carried.size());
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

  const MixtureCursor::Position& position = mixture_.position();
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
void PlannerSession::MoveRestarts(std::span<const Taken> pending) {
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

}  // namespace widestream
