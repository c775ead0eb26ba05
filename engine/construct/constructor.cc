#include "engine/construct/constructor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace widestream {
namespace {

constexpr std::size_t kAlignment = 64;

// One microbatch as rows of segments: what both layouts are written from.
struct RowShape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t segments = 0;
  std::int64_t longest = 0;
  std::uint64_t real_tokens = 0;
};

bool WholeRowSegments(const BatchSpec& batch) {
  return batch.cross_document_attention && batch.layout != BatchLayout::kThd;
}

Result<RowShape> Measure(const BatchSpec& batch, const StepPlan& plan,
                         const MicrobatchPlan& microbatch) {
  RowShape shape;
  const bool thd = batch.layout == BatchLayout::kThd;
  shape.rows = static_cast<std::int64_t>(microbatch.rows.size());
  shape.width = batch.sequence_length;
  if (shape.rows == 0 || (thd && shape.rows != 1)) {
    return Status::Internal("a microbatch of " + std::to_string(shape.rows) +
                            " rows reached the constructor");
  }
  if (thd) shape.width = 0;
  for (const std::vector<std::uint32_t>& row : microbatch.rows) {
    std::int64_t used = 0;
    for (const std::uint32_t index : row) {
      if (index >= plan.pieces.size())
        return Status::Internal("a row names a piece that the plan does not have");
      const std::int64_t length = plan.pieces[index].length;
      used += length;
      ++shape.segments;
      shape.longest = std::max(shape.longest, length);
    }
    shape.real_tokens += static_cast<std::uint64_t>(used);
    if (thd) {
      // A rank without pieces gets one token of zero-loss filler: no empty tensor reaches a
      // trainer.
      shape.width = std::max<std::int64_t>(used, 1);
      if (used == 0) shape.segments = shape.longest = 1;
    } else if (used > shape.width) {
      return Status::Internal("a row of " + std::to_string(used) +
                              " tokens exceeds sequence_length " + std::to_string(shape.width));
    } else if (used < shape.width) {
      ++shape.segments;
      shape.longest = std::max(shape.longest, shape.width - used);
    }
  }
  if (WholeRowSegments(batch)) {
    shape.segments = shape.rows;
    shape.longest = shape.width;
  }
  return shape;
}

template <typename T>
T* TensorData(const MicrobatchView& view, std::size_t index, std::span<std::byte> memory) {
  return reinterpret_cast<T*>(memory.data() + view.tensors[index].offset_bytes);
}

enum TensorIndex : std::uint8_t {
  kTokens,
  kLabels,
  kLossMask,
  kPositionIds,
  kSegmentIds,
  kCuSeqlens,
  kCuSeqlensPadded
};

struct RowWriter {
  std::int64_t* tokens;
  std::int64_t* labels;
  bool* loss_mask;
  std::int64_t* position_ids;
  std::int32_t* segment_ids;
  std::int32_t* cu_seqlens;

  std::int64_t at = 0;        // in the flattened microbatch
  std::int64_t segments = 0;  // written to cu_seqlens

  void Boundary() { cu_seqlens[++segments] = static_cast<std::int32_t>(at); }

  template <typename Id>
  void Piece(const Id* ids, const widestream::Piece& piece, std::int64_t first_position,
             std::int32_t segment) {
    const std::int64_t length = piece.length;
    for (std::int64_t i = 0; i < length; ++i) tokens[at + i] = ids[i];
    for (std::int64_t i = 0; i + 1 < length; ++i) labels[at + i] = ids[i + 1];
    labels[at + length - 1] = piece.last ? kIgnoreLabel : ids[length];
    std::memset(loss_mask + at, 1, static_cast<std::size_t>(length));
    loss_mask[at + length - 1] = !piece.last;
    for (std::int64_t i = 0; i < length; ++i) position_ids[at + i] = first_position + i;
    std::fill_n(segment_ids + at, length, segment);
    at += length;
  }

  void Padding(std::int64_t count, std::int64_t first_position) {
    std::fill_n(tokens + at, count, 0);
    std::fill_n(labels + at, count, kIgnoreLabel);
    std::memset(loss_mask + at, 0, static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) position_ids[at + i] = first_position + i;
    std::fill_n(segment_ids + at, count, 0);
    at += count;
  }
};

Status WriteRow(const BatchSpec& batch, const StepPlan& plan, const std::vector<std::uint32_t>& row,
                std::int64_t width, const IdsProvider& provider, const PieceNamer& name,
                RowWriter* writer) {
  const bool whole = WholeRowSegments(batch);
  const std::int64_t begin = writer->at;
  std::int32_t segment = 0;
  for (const std::uint32_t index : row) {
    const Piece& piece = plan.pieces[index];
    WS_ASSIGN_OR_RETURN(const Ids ids, provider(piece.source, piece.epoch, piece.position));
    const std::uint64_t needed = std::uint64_t{piece.start} + piece.length + (piece.last ? 0 : 1);
    const MetadataBatch& metadata = ids.block->metadata;
    if (ids.size < needed ||
        metadata.ids_hash[piece.position - metadata.position] != piece.ids_hash) {
      return Status::DataCorruption(
          name(piece) +
          " gives other tokens than when it was planned; its text or the tokenizer changed. Put it "
          "back, or start a new run");
    }
    const std::int64_t first_position = whole ? writer->at - begin : 0;
    segment = whole ? 1 : segment + 1;
    if (ids.ids16 != nullptr) {
      writer->Piece(ids.ids16 + piece.start, piece, first_position, segment);
    } else {
      writer->Piece(ids.ids32 + piece.start, piece, first_position, segment);
    }
    if (!whole) writer->Boundary();
  }
  const std::int64_t padding = begin + width - writer->at;
  if (padding > 0) {
    writer->Padding(padding, whole ? writer->at - begin : 0);
    if (!whole) writer->Boundary();
  }
  if (whole) writer->Boundary();
  return Status::Ok();
}

}  // namespace

std::size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kInt64:
      return 8;
    case DataType::kInt32:
      return 4;
    case DataType::kBool:
      return 1;
  }
  return 0;
}

std::size_t TensorView::size_bytes() const {
  std::size_t size = SizeOf(type);
  for (const std::int64_t extent : shape) size *= static_cast<std::size_t>(extent);
  return size;
}

Result<BatchView> LayOut(const BatchSpec& batch, std::shared_ptr<const StepPlan> plan,
                         std::uint32_t rank) {
  if (rank >= plan->ranks.size()) {
    return Status::InvalidArgument("rank " + std::to_string(rank) + " is not in a plan for " +
                                   std::to_string(plan->ranks.size()) +
                                   " data-parallel ranks; set mesh.dp to the number of ranks");
  }
  BatchView view;
  view.step = plan->step;
  view.rank = rank;
  for (const MicrobatchPlan& microbatch : plan->ranks[rank].microbatches) {
    WS_ASSIGN_OR_RETURN(const RowShape shape, Measure(batch, *plan, microbatch));
    MicrobatchView out;
    out.max_seqlen = shape.longest;
    out.real_tokens = shape.real_tokens;
    const std::vector<std::int64_t> matrix = {shape.rows, shape.width};
    const std::vector<std::int64_t> boundaries = {shape.segments + 1};
    out.tensors = {
        {"tokens", DataType::kInt64, matrix},      {"labels", DataType::kInt64, matrix},
        {"loss_mask", DataType::kBool, matrix},    {"position_ids", DataType::kInt64, matrix},
        {"segment_ids", DataType::kInt32, matrix}, {"cu_seqlens", DataType::kInt32, boundaries}};
    if (batch.layout == BatchLayout::kThd)
      out.tensors.push_back({"cu_seqlens_padded", DataType::kInt32, boundaries});
    for (TensorView& tensor : out.tensors) {
      tensor.offset_bytes = view.size_bytes;
      view.size_bytes += (tensor.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    view.microbatches.push_back(std::move(out));
  }
  view.plan = std::move(plan);
  return view;
}

Status Construct(const BatchSpec& batch, const BatchView& view, const IdsProvider& ids,
                 const PieceNamer& name, std::span<std::byte> memory) {
  if (memory.size() < view.size_bytes)
    return Status::Internal("the memory given to a batch is too small");
  const StepPlan& plan = *view.plan;
  const RankPlan& rank = plan.ranks[view.rank];
  for (std::size_t m = 0; m < view.microbatches.size(); ++m) {
    const MicrobatchView& out = view.microbatches[m];
    RowWriter writer{TensorData<std::int64_t>(out, kTokens, memory),
                     TensorData<std::int64_t>(out, kLabels, memory),
                     TensorData<bool>(out, kLossMask, memory),
                     TensorData<std::int64_t>(out, kPositionIds, memory),
                     TensorData<std::int32_t>(out, kSegmentIds, memory),
                     TensorData<std::int32_t>(out, kCuSeqlens, memory)};
    writer.cu_seqlens[0] = 0;
    const std::int64_t width = out.tensors[kTokens].shape[1];
    for (const std::vector<std::uint32_t>& row : rank.microbatches[m].rows) {
      WS_RETURN_IF_ERROR(WriteRow(batch, plan, row, width, ids, name, &writer));
    }
    if (batch.layout == BatchLayout::kThd) {
      std::memcpy(TensorData<std::int32_t>(out, kCuSeqlensPadded, memory), writer.cu_seqlens,
                  out.tensors[kCuSeqlensPadded].size_bytes());
    }
  }
  return Status::Ok();
}

}  // namespace widestream
