// How much a layout pads, by the mesh and the wishes of a job: the rules that the planner counts
// with and the constructor writes by. docs/batch.md. Layout only: never part of the stream.
#pragma once

#include <cstdint>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// The split of `mesh`, or the default of the layout: zigzag by document in thd, else by row.
ContextSplit SplitOf(const MeshSpec& mesh, BatchLayout layout);

// Multiples that a thd microbatch is padded to; 1 = none. `microbatch` is a multiple of `document`.
struct PaddingRule {
  std::uint64_t document = 1;    // tokens of a piece in memory
  std::uint64_t microbatch = 1;  // tokens of the whole microbatch, over all context ranks

  // What a piece of `length` tokens takes.
  std::uint64_t Piece(std::uint64_t length) const;
  // What a microbatch whose pieces take `tokens` is; never empty.
  std::uint64_t Microbatch(std::uint64_t tokens) const;
  // The most that pieces may take in a microbatch of at most `cap` tokens; 0 stays 0.
  std::uint64_t CapForPieces(std::uint64_t cap) const { return cap - cap % microbatch; }
};

// rows and padded are never padded beyond their rows: 1 and 1.
PaddingRule PaddingOf(const BatchSpec& batch, const MeshSpec& mesh);

// The longest piece of the job.
std::uint64_t LongestPiece(const BatchSpec& batch);

// What fixed_shapes promises of every microbatch.
struct FixedShape {
  std::uint64_t tokens = 0;      // thd: T over all context ranks; rows, padded: 0
  std::uint64_t segments = 0;    // length of cu_seqlens less one; 0 for rows and padded: B * S
  std::uint64_t max_seqlen = 0;  // tokens
};
FixedShape FixedShapeOf(const BatchSpec& batch, const MeshSpec& mesh);

// Microbatches come in multiples of this: with virtual stages, of both vpp and pp.
std::uint64_t MicrobatchMultiple(const MeshSpec& mesh);

// InvalidArgument naming the key if the padding, the split and the batch contradict each other.
Status ValidatePadding(const BatchSpec& batch, const MeshSpec& mesh);

}  // namespace widestream
