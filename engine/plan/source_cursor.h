// Walks one source's metadata in order: examines records, opens documents, cuts pieces.
// docs/stream.md sections 1 (examined, then delivered) and 2.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/base/status.h"
#include "engine/job/spec.h"
#include "engine/plan/plan.h"
#include "engine/plan/planner.h"
#include "engine/source/messages.h"

namespace widestream {

// A record of a source by (epoch, position); orders as the source delivers.
using RecordPlace = std::pair<std::uint32_t, std::uint64_t>;

// Not thread-safe. Refers to the job, the state (which it advances) and the metadata; all must
// outlive it. Invariant: after each call the state is one that planning could be resumed from.
class SourceCursor {
 public:
  // `quarantined` is sorted.
  SourceCursor(const JobSpec& job, std::uint32_t source, SourceState* state,
               std::span<const std::shared_ptr<const MetadataBatch>> batches,
               std::span<const RecordPlace> quarantined);

  enum class Found : std::uint8_t {
    kOpen,       // a document with unread tokens is at the cursor: Take may follow
    kNeed,       // metadata is missing at the cursor
    kExhausted,  // no epoch follows
  };
  // Passes and counts records until one yields tokens, over an epoch boundary if need be. Errors: a
  // bad record or more than the budget allows, overflow: error, an epoch without a token, and
  // metadata that contradicts the state.
  Result<Found> Find();
  // The next piece of the document that Find opened, at most `tokens` long. Its draw is not set.
  Piece Take(std::uint32_t tokens);
  // A quarantine that takes effect now hit the open document or a queued piece's record.
  Status Quarantine(const RecordPlace& place);

  // Where metadata is missing: just after the run that is held, or at the cursor.
  RecordPlace NextMissing() const;
  // Nothing follows the held run: its last record is the last of the last epoch.
  bool RunIsComplete() const;
  // Records held from the cursor on, and the tokens they yield (not counting overflow).
  std::uint64_t HeldRecords() const;
  // Estimated tokens per examined record.
  double MeanTokens() const;
  // Block of the record examined or read last, nullptr if none was since construction.
  const RestartPoint* block() const { return block_; }

 private:
  // The record at the cursor in the held metadata.
  enum class Place : std::uint8_t { kRecord, kEndOfEpoch, kMissing };
  Result<Place> Locate();
  Status Check(std::size_t index) const;
  // Counts the record at the cursor; true if it is delivered and opens.
  Result<bool> Examine(const MetadataBatch& batch, std::size_t record);
  Status CountBad(const std::string& what, const std::string& problem);
  std::string Where(const MetadataBatch& batch, std::size_t record) const;
  // ", such as ...": why the first bad record of those held is bad, or nothing if none is.
  std::string HeldProblem() const;
  bool IsLastEpoch(std::uint32_t epoch) const;

  const JobSpec& job_;
  const SourceSpec& spec_;
  std::uint32_t source_;
  SourceState& state_;
  std::span<const std::shared_ptr<const MetadataBatch>> batches_;
  std::span<const RecordPlace> quarantined_;
  std::size_t index_ = 0;    // batch at or before the cursor
  std::size_t checked_ = 0;  // batches before this one were checked
  const RestartPoint* block_ = nullptr;
  std::uint32_t open_length_ = 0;  // tokens of the open document, after truncation
};

// Most tokens in a piece: sequence_length, or in thd max_piece_tokens.
std::uint32_t PieceLimit(const BatchSpec& batch);

}  // namespace widestream
