// A step's plan: which pieces, in which rows, for which ranks. A versioned, serialisable value; no
// payload bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

// Part of a sample, at most `sequence_length` tokens.
struct Piece {
  std::uint32_t source = 0;  // index in JobSpec::sources
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;  // of the record in its source's order
  std::uint32_t start = 0;     // first token inside the document
  std::uint32_t length = 0;    // tokens
  std::uint64_t draw = 0;      // number of the mixture draw that took it
  std::uint32_t shard = 0;
  std::uint64_t record = 0;
  std::uint64_t ids_hash = 0;  // of the whole record
  bool last = false;  // the document (or its truncation) ends here: no label for the last token

  friend bool operator==(const Piece&, const Piece&) = default;
};

// A microbatch of one rank. Indices point into StepPlan::pieces.
struct MicrobatchPlan {
  // rows, padded: one entry a row, pieces in order; an empty row is zero-loss filler. thd: exactly
  // one entry.
  std::vector<std::vector<std::uint32_t>> rows;

  friend bool operator==(const MicrobatchPlan&, const MicrobatchPlan&) = default;
};

struct RankPlan {
  std::vector<MicrobatchPlan> microbatches;
  double cost = 0;  // of its atoms, in the cost model's unit

  friend bool operator==(const RankPlan&, const RankPlan&) = default;
};

struct StepPlan {
  std::uint64_t step = 0;
  bool skipped = false;       // by a decision: planned, journalled, not delivered
  std::vector<Piece> pieces;  // the membership, in draw order (then by start)
  std::vector<std::vector<std::uint32_t>>
      rows;                     // rows/padded: the frozen content of each row, before layout
  std::vector<RankPlan> ranks;  // one a DP rank; every rank has the same number of microbatches
  std::uint64_t real_tokens = 0;
  std::uint64_t supervised_tokens =
      0;  // global count of targets: real tokens less the last position of each last piece
  std::string digest;  // 32 hex digits, over (source, epoch, position, start, length, ids_hash) of
                       // pieces and rows

  friend bool operator==(const StepPlan&, const StepPlan&) = default;
};

// Real tokens by source, for `sources` sources.
std::vector<std::uint64_t> TokensBySource(const StepPlan& plan, std::size_t sources);

std::string Encode(const StepPlan& plan);
Result<StepPlan> DecodeStepPlan(std::string_view bytes);

}  // namespace widestream
