// Batch: the tensors of one step for one rank, laid out in one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace widestream {

// The label of a position that is no target.
inline constexpr std::int64_t kIgnoreLabel = -100;

enum class DataType : std::uint8_t { kInt64, kInt32, kBool };
std::size_t SizeOf(DataType type);

// A named, typed, C-contiguous tensor at `offset_bytes` (a multiple of 64) of the batch's memory.
struct TensorView {
  std::string name;
  DataType type = DataType::kInt64;
  std::vector<std::int64_t> shape;
  std::size_t offset_bytes = 0;
  // Of the bucket of several cp ranks: the first dimension is the slice, one a cp rank.
  bool sliced = false;

  std::size_t size_bytes() const;
};

// rows, padded: tokens, labels, position_ids int64 [B, S]; loss_mask bool [B, S]; segment_ids int32
// [B, S] (0 = padding); cu_seqlens int32 [segments + 1] over the flattened B * S, a row's tail
// padding its own segment. thd: the same with [1, T], cu_seqlens over the real lengths of its
// documents and cu_seqlens_padded over their lengths in memory; what is left of T is filler, cut in
// segments of its own. position_ids and segments restart at each piece. padding: token 0, label
// kIgnoreLabel, mask 0. Of a mesh with cp > 1, S and T are the local ones, in every tensor but
// cu_seqlens*. docs/batch.md is the contract.
struct MicrobatchView {
  std::vector<TensorView> tensors;
  std::vector<std::int64_t> shape;  // [B, S] of tokens, also where a place gets none
  std::int64_t max_seqlen = 0;      // longest segment in memory, over all cp ranks
  std::uint64_t real_tokens = 0;    // not padding
};

// Of a data-parallel rank (a bucket), or what one place needs of it.
struct BatchView {
  std::uint64_t step = 0;
  std::uint32_t rank = 0;  // along dp
  std::vector<MicrobatchView> microbatches;
  std::size_t size_bytes = 0;  // of the memory
  std::shared_ptr<const StepPlan> plan;
};

}  // namespace widestream
