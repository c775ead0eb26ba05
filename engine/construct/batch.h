// Batch: the tensors of one step for one rank, laid out in one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/construct/slices.h"
#include "engine/job/padding.h"
#include "engine/plan/place_tree.h"
#include "engine/plan/plan.h"

namespace widestream {

// The label of a position that is no target.
inline constexpr std::int64_t kIgnoreLabel = -100;

enum class DataType : std::uint8_t { kInt64, kInt32, kBool };
std::size_t SizeOf(DataType type);

// Which pipeline stages use a tensor.
enum class Stages : std::uint8_t { kEvery, kFirst, kLast };

// A named, typed, C-contiguous tensor at `offset_bytes` (a multiple of 64) of the memory. In a
// bucket of cp > 1 it stands for `slices` tensors of this shape, one a context rank, each
// `stride_bytes` (a multiple of 64) after the one before.
struct TensorView {
  std::string name;
  DataType type = DataType::kInt64;
  std::vector<std::int64_t> shape;  // of one slice
  std::size_t offset_bytes = 0;
  std::uint32_t slices = 1;
  std::size_t stride_bytes = 0;  // 0 with one slice
  Stages stages = Stages::kEvery;

  std::size_t size_bytes() const;  // of one slice
};

// rows, padded: tokens, labels, position_ids int64 [B, S]; loss_mask bool [B, S]; segment_ids int32
// [B, S] (0 = padding); cu_seqlens int32 [segments + 1] over the flattened B * S, a row's tail
// padding its own segment. thd: the same with [1, T], and cu_seqlens_padded int32 [segments + 1].
// position_ids and segments restart at each piece. padding: token 0, label kIgnoreLabel, mask 0.
// With cp > 1 the matrices are cut (S / cp, T / cp), cu_seqlens and max_seqlen stay global.
struct MicrobatchView {
  std::vector<TensorView> tensors;
  std::int64_t max_seqlen = 0;      // longest segment, padding included
  std::uint64_t real_tokens = 0;    // not padding; of all context ranks together
  std::vector<std::int64_t> shape;  // [B, S] of tokens, for stages that do not get them
};

// How the tensors of a bucket are written: what Construct takes from the mesh.
struct ConstructRule {
  SliceRule slices;
  bool by_piece = false;  // thd: each padded piece is cut on its own, else the whole microbatch
  PaddingRule padding;
  std::uint64_t longest_segment = 1;  // thd: the longest padded piece; filler is cut at it
  FixedShape fixed;                   // zeros where shapes are not fixed
};

// The tensors of a step for one data-parallel rank (a bucket), or what one place has of them.
struct BatchView {
  std::uint64_t step = 0;
  std::uint32_t rank = 0;  // along dp
  std::vector<MicrobatchView> microbatches;
  std::size_t size_bytes = 0;  // of the memory
  ConstructRule rule;
  std::shared_ptr<const StepPlan> plan;
};

// The tensors of one place: its slice, and what its stage needs; offsets into the bucket's memory,
// one slice each. A mesh of cp = pp = 1 gives the bucket itself. A place that leads along pp gets
// the tensors of every stage; one that leads along cp gets every slice, those of context rank c > 0
// by the name "tokens@c". A place that does not fetch gets what its leader has to send it. Pure.
BatchView SelectFor(const BatchView& bucket, const Place& place);

}  // namespace widestream
