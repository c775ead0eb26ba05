#include "engine/plan/source_cursor.h"

#include <algorithm>

#include "engine/base/format_text.h"

namespace widestream {

std::uint32_t PieceLimit(const BatchSpec& batch) {
  return batch.layout == BatchLayout::kThd && batch.max_piece_tokens != 0 ? batch.max_piece_tokens
                                                                          : batch.sequence_length;
}

SourceCursor::SourceCursor(const JobSpec& job, std::uint32_t source, SourceState* state,
                           std::span<const std::shared_ptr<const MetadataBatch>> batches,
                           std::span<const RecordPlace> quarantined)
    : job_(job),
      spec_(job.sources[source]),
      source_(source),
      state_(*state),
      batches_(batches),
      quarantined_(quarantined) {}

namespace {

// ": why" of a corrupt record, or nothing where the loader did not say.
std::string ProblemOf(const MetadataBatch& batch, std::size_t record) {
  for (const auto& [index, text] : batch.problems) {
    if (index == record) return StrCat(": ", text);
  }
  return "";
}

}  // namespace

std::string SourceCursor::Where(const MetadataBatch& batch, std::size_t record) const {
  return StrCat("source ", spec_.name, ", shard ", batch.shard[record], ", record ",
                batch.record[record], " (epoch ", state_.epoch, ", position ", state_.position,
                ")");
}

std::string SourceCursor::HeldProblem() const {
  for (const auto& batch : batches_.first(std::min(index_ + 1, batches_.size()))) {
    if (!batch->problems.empty()) return StrCat(", such as ", batch->problems.front().second);
  }
  return "";
}

bool SourceCursor::IsLastEpoch(std::uint32_t epoch) const {
  return spec_.max_epochs && std::uint64_t{epoch} + 1 >= *spec_.max_epochs;
}

Status SourceCursor::Check(std::size_t index) const {
  if (batches_[index] == nullptr) {
    return Status::Internal(StrCat("source ", spec_.name, ": a metadata batch is null"));
  }
  const MetadataBatch& batch = *batches_[index];
  const std::size_t n = batch.size();
  if (batch.tokens.size() != n || batch.bytes.size() != n || batch.ids_hash.size() != n ||
      batch.shard.size() != n || batch.record.size() != n || batch.source != source_ ||
      batch.position + n < batch.position) {
    return Status::Internal(StrCat("source ", spec_.name, ": metadata of epoch ", batch.epoch,
                                   ", position ", batch.position, " is malformed (source ",
                                   batch.source, ", ", n, " records)"));
  }
  if (index == 0) return Status::Ok();
  const MetadataBatch& before = *batches_[index - 1];
  const bool follows = before.end_of_epoch ? batch.epoch == before.epoch + 1 && batch.position == 0
                                           : batch.epoch == before.epoch &&
                                                 batch.position == before.position + before.size();
  if (!follows) {
    return Status::Internal(StrCat("source ", spec_.name, ": metadata of epoch ", batch.epoch,
                                   ", position ", batch.position, " does not follow epoch ",
                                   before.epoch, ", position ", before.position, " + ",
                                   before.size()));
  }
  return Status::Ok();
}

Result<SourceCursor::Place> SourceCursor::Locate() {
  for (; index_ < batches_.size(); ++index_) {
    if (index_ >= checked_) {
      WS_RETURN_IF_ERROR(Check(index_));
      checked_ = index_ + 1;
    }
    const MetadataBatch& batch = *batches_[index_];
    if (batch.epoch < state_.epoch) continue;
    if (batch.epoch > state_.epoch || batch.position > state_.position) return Place::kMissing;
    const std::uint64_t end = batch.position + batch.size();
    if (state_.position < end) return Place::kRecord;
    if (!batch.end_of_epoch) continue;
    if (state_.position == end) return Place::kEndOfEpoch;
    return Status::DataCorruption(
        StrCat("source ", spec_.name, ": epoch ", state_.epoch, " ends after ", end,
               " records, but the stream stands at record ", state_.position,
               "; its files changed since: restore them, or start a new run"));
  }
  return Place::kMissing;
}

Status SourceCursor::CountBad(const std::string& what, const std::string& problem) {
  ++state_.corrupt;
  if (!job_.errors.skip_bad_records) {
    return Status::DataCorruption(what + " is bad" + problem +
                                  "; mend it, or set errors.bad_record to skip");
  }
  const double limit = 10 + job_.errors.budget * static_cast<double>(state_.examined);
  if (static_cast<double>(state_.corrupt) > limit) {
    return Status::DataCorruption(StrCat(what, " is bad, the ", state_.corrupt, "th of ",
                                         state_.examined, " examined, and errors.budget allows ",
                                         limit, problem, "; mend the source or raise the budget"));
  }
  return Status::Ok();
}

Result<bool> SourceCursor::Examine(const MetadataBatch& batch, std::size_t record) {
  ++state_.examined;
  block_ = &batch.restart;
  RecordOutcome outcome = batch.outcome[record];
  const RecordPlace here{state_.epoch, state_.position};
  if (std::binary_search(quarantined_.begin(), quarantined_.end(), here)) {
    outcome = RecordOutcome::kQuarantined;
  }
  switch (outcome) {
    case RecordOutcome::kDelivered:
      break;
    case RecordOutcome::kHeldOut:
      ++state_.held_out;
      return false;
    case RecordOutcome::kFiltered:
    case RecordOutcome::kDropped:
      ++state_.rejected;
      return false;
    case RecordOutcome::kCorrupt:
    case RecordOutcome::kQuarantined:
      WS_RETURN_IF_ERROR(CountBad(Where(batch, record), ProblemOf(batch, record)));
      return false;
  }
  open_length_ = batch.tokens[record];
  if (open_length_ == 0) return false;
  const std::uint32_t limit = PieceLimit(job_.batch);
  if (open_length_ > limit) {
    switch (job_.batch.overflow) {
      case OverflowPolicy::kSplit:
        break;
      case OverflowPolicy::kTruncate:
        open_length_ = limit;
        break;
      case OverflowPolicy::kDrop:
        ++state_.rejected;
        return false;
      case OverflowPolicy::kError:
        return Status::InvalidArgument(
            StrCat(Where(batch, record), " has ", open_length_, " tokens, more than ", limit,
                   "; shorten it, raise sequence_length, or choose another `overflow`"));
    }
  }
  return true;
}

Result<SourceCursor::Found> SourceCursor::Find() {
  if (state_.exhausted) return Found::kExhausted;
  while (true) {
    WS_ASSIGN_OR_RETURN(const Place place, Locate());
    if (place == Place::kMissing) return Found::kNeed;
    if (place == Place::kEndOfEpoch) {
      if (state_.epoch_tokens == 0 && !job_.held_out_stream) {
        return Status::InvalidArgument(
            StrCat("source ", spec_.name, ": epoch ", state_.epoch, " has ", state_.position,
                   " records and delivered no token (in all: ", state_.examined, " examined, ",
                   state_.held_out, " held out, ", state_.rejected, " filtered or dropped, ",
                   state_.corrupt, " bad", HeldProblem(),
                   "); remove the source or mend its files or filters"));
      }
      if (IsLastEpoch(state_.epoch)) return Found::kExhausted;
      ++state_.epoch;
      state_.position = 0;
      state_.epoch_tokens = 0;
      continue;
    }
    const MetadataBatch& batch = *batches_[index_];
    const std::size_t record = state_.position - batch.position;
    if (state_.token > 0) {
      // The policy on overflow was applied when the document was opened.
      block_ = &batch.restart;
      open_length_ = batch.tokens[record];
      if (batch.outcome[record] != RecordOutcome::kDelivered || open_length_ <= state_.token) {
        return Status::DataCorruption(
            StrCat(Where(batch, record), " has ", open_length_, " tokens, but ", state_.token,
                   " of them were delivered and more must follow; the file or a transform changed: "
                   "restore it, or start a new run"));
      }
      return Found::kOpen;
    }
    WS_ASSIGN_OR_RETURN(const bool opens, Examine(batch, record));
    if (opens) return Found::kOpen;
    ++state_.position;
  }
}

Piece SourceCursor::Take(std::uint32_t tokens) {
  const MetadataBatch& batch = *batches_[index_];
  const std::size_t record = state_.position - batch.position;
  Piece piece;
  piece.source = source_;
  piece.epoch = state_.epoch;
  piece.position = state_.position;
  piece.start = state_.token;
  piece.length = std::min(tokens, open_length_ - state_.token);
  piece.shard = batch.shard[record];
  piece.record = batch.record[record];
  piece.ids_hash = batch.ids_hash[record];
  state_.token += piece.length;
  state_.tokens += piece.length;
  state_.epoch_tokens += piece.length;
  if (state_.token == open_length_) {
    piece.last = true;
    state_.token = 0;
    ++state_.position;
  }
  return piece;
}

Status SourceCursor::Quarantine(const RecordPlace& place) {
  if (place == RecordPlace{state_.epoch, state_.position} && state_.token > 0) {
    state_.token = 0;
    ++state_.position;
  }
  return CountBad(StrCat("source ", spec_.name, ", epoch ", place.first, ", position ",
                         place.second, " (quarantined)"),
                  "");
}

RecordPlace SourceCursor::NextMissing() const {
  const RecordPlace here{state_.epoch, state_.position};
  if (batches_.empty()) return here;
  const MetadataBatch& first = *batches_.front();
  const MetadataBatch& last = *batches_.back();
  if (RecordPlace{first.epoch, first.position} > here) return here;
  const RecordPlace end = last.end_of_epoch && !IsLastEpoch(last.epoch)
                              ? RecordPlace{last.epoch + 1, 0}
                              : RecordPlace{last.epoch, last.position + last.size()};
  return std::max(here, end);
}

bool SourceCursor::RunIsComplete() const {
  return state_.exhausted || (!batches_.empty() && batches_.back()->end_of_epoch &&
                              IsLastEpoch(batches_.back()->epoch));
}

std::uint64_t SourceCursor::HeldRecords() const {
  std::uint64_t held = 0;
  for (std::size_t i = index_; i < batches_.size(); ++i) {
    const MetadataBatch& batch = *batches_[i];
    if (batch.epoch < state_.epoch) continue;
    const std::uint64_t end = batch.position + batch.size();
    if (batch.epoch > state_.epoch) {
      held += batch.size();
    } else if (end > state_.position) {
      held += std::min<std::uint64_t>(end - state_.position, batch.size());
    }
  }
  return held;
}

double SourceCursor::MeanTokens() const {
  constexpr double kUnknown = 512;
  constexpr std::uint64_t kEnough = 64;
  if (state_.examined >= kEnough && state_.tokens > 0) {
    return static_cast<double>(state_.tokens) / static_cast<double>(state_.examined);
  }
  std::uint64_t records = 0;
  std::uint64_t tokens = 0;
  for (const auto& batch : batches_) {
    for (const std::uint32_t n : batch->tokens) tokens += n;
    records += batch->size();
    if (records >= kEnough) break;
  }
  return tokens == 0 ? kUnknown : static_cast<double>(tokens) / static_cast<double>(records);
}

}  // namespace widestream
