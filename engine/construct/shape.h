// What a microbatch looks like before it is written: its width, its segments, and where each of its
// positions lies when context-parallel ranks share it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"
#include "engine/plan/plan.h"

namespace widestream {

// A run of positions of the flattened microbatch that lies in one slice without a gap.
struct SliceRun {
  std::int64_t begin = 0, end = 0;  // positions in the microbatch
  std::uint32_t slice = 0;          // of a cp rank
  std::int64_t local = 0;           // of `begin`, in the flattened slice
};

struct MicrobatchShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;     // of a row, all slices together
  std::int64_t segments = 0;  // entries of cu_seqlens less one
  std::int64_t longest = 0;   // max_seqlen
  std::uint64_t real_tokens = 0;
  // thd: positions of each piece in memory, its padding included; then of each filler segment.
  std::vector<std::int64_t> padded;
  std::size_t pieces = 0;  // leading entries of `padded` that are pieces
};

// Internal if the plan does not fit its own batch.
Result<MicrobatchShape> MeasureMicrobatch(const BatchSpec& batch, const MeshSpec& mesh,
                                          const StepPlan& plan, const MicrobatchPlan& microbatch);

// All positions in order, cut by MeshSpec::cp_split; one run for cp = 1.
std::vector<SliceRun> CutForContextParallel(const MeshSpec& mesh, BatchLayout layout,
                                            const MicrobatchShape& shape);

}  // namespace widestream
