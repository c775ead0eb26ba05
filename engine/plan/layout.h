// A step's atoms to ranks and microbatches; docs/stream.md section 5. Depends on the membership,
// the mesh and the options here, and on nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/padding.h"
#include "engine/job/spec.h"
#include "engine/plan/balance.h"
#include "engine/plan/plan.h"

namespace widestream {

// Keeps every cost and every mixture counter inside 64 bits (with kMaxStepTokens of a job).
inline constexpr std::uint32_t kMaxSequenceLength = 1U << 26;

struct LayoutOptions {
  BatchLayout layout = BatchLayout::kRows;
  std::uint32_t sequence_length = 0;
  std::uint64_t microbatch_tokens = 0;  // 0 = no cap
  BalanceMethod balance = BalanceMethod::kLpt;
  std::uint32_t group_size = 0;  // data-parallel ranks balanced together; 0 = all
  CostSpec cost;
  bool cross_document_attention = false;
  MeshSpec mesh;
  PaddingRule padding;                  // thd: counted in the cap
  std::uint32_t microbatch_pieces = 0;  // thd: most pieces of a microbatch; 0 = no cap
  // rows, padded: lays out at least so many rows, the missing ones as filler; 0 for what there is.
  std::uint32_t rows = 0;
};
LayoutOptions LayoutOptionsOf(const JobSpec& job);

// Each atom (a row of `plan.rows`; in thd a piece) in exactly one microbatch; the same number of
// microbatches on every rank and, but for thd, of rows in every microbatch. Padding and caps never
// change the atoms, only how many microbatches there are. ResourceExhausted if a piece alone
// exceeds the cap.
Result<std::vector<RankPlan>> BuildLayout(const LayoutOptions& options, const StepPlan& plan);

// What balancing had to work with: no layout of these atoms has a dearest rank below this, in the
// unit of RankPlan::cost. With groups, of the worst group, whose atoms are fixed.
std::uint64_t RankCostBound(const LayoutOptions& options, const StepPlan& plan);

}  // namespace widestream
