#include "engine/construct/shape.h"

#include <algorithm>

#include "engine/base/format_text.h"
#include "engine/plan/layout.h"

namespace widestream {
namespace {

std::uint64_t LongestPiece(const BatchSpec& batch) {
  return batch.max_piece_tokens != 0 ? batch.max_piece_tokens : batch.sequence_length;
}

Result<MicrobatchShape> MeasureThd(const BatchSpec& batch, const MeshSpec& mesh,
                                   const StepPlan& plan, const std::vector<std::uint32_t>& row) {
  const Padding padding = PaddingOf(mesh, batch);
  MicrobatchShape shape;
  shape.rows = 1;
  std::int64_t used = 0;
  for (const std::uint32_t index : row) {
    if (index >= plan.pieces.size())
      return Status::Internal("a row names a piece that the plan does not have");
    const std::uint64_t length = plan.pieces[index].length;
    shape.real_tokens += length;
    shape.padded.push_back(static_cast<std::int64_t>(PaddedTokens(length, padding.document)));
    used += shape.padded.back();
  }
  shape.pieces = row.size();
  // A rank without pieces gets zero-loss filler: no empty tensor reaches a trainer.
  shape.width =
      batch.fixed_shapes
          ? static_cast<std::int64_t>(batch.microbatch_tokens)
          : static_cast<std::int64_t>(PaddedTokens(
                static_cast<std::uint64_t>(std::max<std::int64_t>(used, 1)), padding.microbatch));
  if (used > shape.width) {
    return Status::Internal(StrCat("a microbatch of ", used, " tokens exceeds microbatch_tokens ",
                                   batch.microbatch_tokens));
  }
  // Filler attends to itself: no longer than a document, or it would cost more than all of them.
  const auto longest =
      static_cast<std::int64_t>(PaddedTokens(LongestPiece(batch), padding.document));
  for (std::int64_t left = shape.width - used; left > 0; left -= longest)
    shape.padded.push_back(std::min(left, longest));
  shape.segments = static_cast<std::int64_t>(shape.padded.size());
  shape.longest = *std::max_element(shape.padded.begin(), shape.padded.end());
  if (batch.fixed_shapes) {
    const std::uint64_t most =
        batch.max_documents != 0 ? batch.max_documents : batch.microbatch_tokens / padding.document;
    const std::int64_t fillers = (shape.width + longest - 1) / longest;
    shape.segments = static_cast<std::int64_t>(most) + fillers;
    shape.longest = longest;
  }
  return shape;
}

void Cut(std::int64_t begin, std::int64_t length, std::uint32_t cp, bool zigzag,
         std::vector<std::int64_t>* filled, std::vector<SliceRun>* runs) {
  const std::uint32_t chunks = zigzag ? 2 * cp : cp;
  const std::int64_t size = length / chunks;
  for (std::uint32_t c = 0; c < chunks; ++c) {
    const std::uint32_t slice = c < cp ? c : 2 * cp - 1 - c;
    const std::int64_t at = begin + c * size;
    runs->push_back({at, at + size, slice, (*filled)[slice]});
    (*filled)[slice] += size;
  }
}

}  // namespace

Result<MicrobatchShape> MeasureMicrobatch(const BatchSpec& batch, const MeshSpec& mesh,
                                          const StepPlan& plan, const MicrobatchPlan& microbatch) {
  const bool thd = batch.layout == BatchLayout::kThd;
  if (microbatch.rows.empty() || (thd && microbatch.rows.size() != 1)) {
    return Status::Internal(
        StrCat("a microbatch of ", microbatch.rows.size(), " rows reached the constructor"));
  }
  if (thd) return MeasureThd(batch, mesh, plan, microbatch.rows.front());
  MicrobatchShape shape;
  shape.rows = static_cast<std::int64_t>(microbatch.rows.size());
  shape.width = batch.sequence_length;
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
    if (used > shape.width) {
      return Status::Internal(
          StrCat("a row of ", used, " tokens exceeds sequence_length ", shape.width));
    }
    if (used < shape.width) {
      ++shape.segments;
      shape.longest = std::max(shape.longest, shape.width - used);
    }
  }
  if (batch.cross_document_attention) {
    shape.segments = shape.rows;
    shape.longest = shape.width;
  }
  return shape;
}

std::vector<SliceRun> CutForContextParallel(const MeshSpec& mesh, BatchLayout layout,
                                            const MicrobatchShape& shape) {
  if (mesh.cp == 1) return {{0, shape.rows * shape.width, 0, 0}};
  const CpSplit split = SplitOf(mesh, layout);
  std::vector<SliceRun> runs;
  std::vector<std::int64_t> filled(mesh.cp, 0);
  std::int64_t at = 0;
  if (split == CpSplit::kZigzagDocument) {
    for (const std::int64_t length : shape.padded) {
      Cut(at, length, mesh.cp, true, &filled, &runs);
      at += length;
    }
    return runs;
  }
  for (std::int64_t row = 0; row < shape.rows; ++row, at += shape.width)
    Cut(at, shape.width, mesh.cp, split == CpSplit::kZigzagRow, &filled, &runs);
  return runs;
}

}  // namespace widestream
