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

  std::size_t size_bytes() const;
};

// rows, padded: tokens, labels, position_ids int64 [B, S]; loss_mask bool [B, S]; segment_ids int32
// [B, S] (0 = padding); cu_seqlens int32 [segments + 1] over the flattened B * S, a row's tail
// padding its own segment. thd: the same with [1, T], and cu_seqlens_padded int32 [pieces + 1].
// position_ids and segments restart at each piece. padding: token 0, label kIgnoreLabel, mask 0.
struct MicrobatchView {
  std::vector<TensorView> tensors;
  std::int64_t max_seqlen = 0;    // longest segment
  std::uint64_t real_tokens = 0;  // not padding
};

struct BatchView {
  std::uint64_t step = 0;
  std::uint32_t rank = 0;  // along dp
  std::vector<MicrobatchView> microbatches;
  std::size_t size_bytes = 0;  // of the memory
  std::shared_ptr<const StepPlan> plan;
};

}  // namespace widestream
