#include "engine/construct/constructor.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/format_text.h"
#include "engine/construct/microbatch_writer.h"
#include "engine/job/validate.h"

namespace widestream {
namespace {

using construct_internal::Boundaries;
using construct_internal::kCuSeqlens;
using construct_internal::kCuSeqlensPadded;
using construct_internal::MicrobatchWriter;

constexpr std::size_t kAlignment = 64;

std::size_t Align(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The shapes of one microbatch, over all context ranks.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  std::int64_t segments = 0;
  std::int64_t longest = 0;
  std::uint64_t real_tokens = 0;
};

bool IsThd(const BatchSpec& batch) { return batch.layout == BatchLayout::kThd; }

bool WholeRowSegments(const BatchSpec& batch) {
  return batch.cross_document_attention && !IsThd(batch);
}

Status TooLong(const char* what, std::uint64_t tokens, const char* limit, std::int64_t most) {
  return Status::Internal(StrCat(what, " of ", tokens, " tokens exceeds ", limit, " ", most));
}

Result<Shape> MeasureThd(const BatchSpec& batch, const ConstructRule& rule, const StepPlan& plan,
                         const std::vector<std::uint32_t>& row) {
  Shape shape;
  shape.rows = 1;
  std::uint64_t used = 0;
  std::uint64_t longest = 0;
  for (const std::uint32_t index : row) {
    const std::uint64_t padded = rule.padding.Piece(plan.pieces[index].length);
    longest = std::max(longest, padded);
    used += padded;
    shape.real_tokens += plan.pieces[index].length;
  }
  const std::uint64_t width =
      rule.fixed.tokens != 0 ? rule.fixed.tokens : rule.padding.Microbatch(used);
  if (used > width || width > std::numeric_limits<std::int32_t>::max())
    return TooLong("a microbatch", used, "its width", static_cast<std::int64_t>(width));
  // Filler is segments of its own, none longer than a piece may be.
  const std::uint64_t filler = width - used;
  shape.width = static_cast<std::int64_t>(width);
  shape.segments = static_cast<std::int64_t>(row.size() + (filler + rule.longest_segment - 1) /
                                                              rule.longest_segment);
  shape.longest =
      static_cast<std::int64_t>(std::max(longest, std::min(filler, rule.longest_segment)));
  if (batch.fixed_shapes) {
    const auto capacity = static_cast<std::int64_t>(rule.fixed.segments);
    if (shape.segments > capacity)
      return Status::Internal(StrCat("a microbatch of ", shape.segments,
                                     " segments reached the constructor, more than ", capacity));
    shape.segments = capacity;
    shape.longest = static_cast<std::int64_t>(rule.fixed.max_seqlen);
  }
  return shape;
}

Result<Shape> MeasureRows(const BatchSpec& batch, const StepPlan& plan,
                          const MicrobatchPlan& microbatch) {
  Shape shape;
  shape.rows = static_cast<std::int64_t>(microbatch.rows.size());
  shape.width = batch.sequence_length;
  for (const std::vector<std::uint32_t>& row : microbatch.rows) {
    std::int64_t used = 0;
    for (const std::uint32_t index : row) {
      const std::int64_t length = plan.pieces[index].length;
      used += length;
      shape.longest = std::max(shape.longest, length);
    }
    shape.segments += static_cast<std::int64_t>(row.size()) + (used < shape.width ? 1 : 0);
    shape.longest = std::max(shape.longest, shape.width - used);
    shape.real_tokens += static_cast<std::uint64_t>(used);
    if (used > shape.width) {
      return TooLong("a row", static_cast<std::uint64_t>(used), "sequence_length", shape.width);
    }
  }
  if (WholeRowSegments(batch)) shape.segments = shape.rows;
  if (batch.fixed_shapes && !WholeRowSegments(batch)) shape.segments = shape.rows * shape.width;
  if (WholeRowSegments(batch) || batch.fixed_shapes) shape.longest = shape.width;
  return shape;
}

Result<Shape> Measure(const BatchSpec& batch, const ConstructRule& rule, const StepPlan& plan,
                      const MicrobatchPlan& microbatch) {
  const bool thd = IsThd(batch);
  if (microbatch.rows.empty() || (thd && microbatch.rows.size() != 1)) {
    return Status::Internal(
        StrCat("a microbatch of ", microbatch.rows.size(), " rows reached the constructor"));
  }
  for (const std::vector<std::uint32_t>& row : microbatch.rows) {
    for (const std::uint32_t index : row) {
      if (index >= plan.pieces.size())
        return Status::Internal("a row names a piece that the plan does not have");
    }
  }
  return thd ? MeasureThd(batch, rule, plan, microbatch.rows[0])
             : MeasureRows(batch, plan, microbatch);
}

ConstructRule RuleOf(const BatchSpec& batch, const MeshSpec& mesh) {
  ConstructRule rule;
  const ContextSplit split = SplitOf(mesh, batch.layout);
  rule.slices.cp = mesh.cp;
  rule.slices.zigzag = split == ContextSplit::kZigzagDocument || split == ContextSplit::kZigzagRow;
  rule.by_piece = mesh.cp > 1 && IsThd(batch) && split == ContextSplit::kZigzagDocument;
  rule.padding = PaddingOf(batch, mesh);
  rule.longest_segment = rule.padding.Piece(LongestPiece(batch));
  if (batch.fixed_shapes) rule.fixed = FixedShapeOf(batch, mesh);
  return rule;
}

Stages StagesOf(const MeshSpec& mesh, std::string_view name) {
  if (std::find(mesh.every_stage.begin(), mesh.every_stage.end(), name) != mesh.every_stage.end())
    return Stages::kEvery;
  if (name == "labels" || name == "loss_mask") return Stages::kLast;
  return name.starts_with("cu_seqlens") ? Stages::kEvery : Stages::kFirst;
}

// The record of a piece must still read as it was planned.
Status CheckIds(const Piece& piece, const Ids& ids, const PieceNamer& name) {
  const std::uint64_t needed = std::uint64_t{piece.start} + piece.length + (piece.last ? 0 : 1);
  const MetadataBatch& metadata = ids.block->metadata;
  if (ids.size < needed ||
      metadata.ids_hash[piece.position - metadata.position] != piece.ids_hash) {
    return Status::DataCorruption(
        name(piece) +
        " gives other tokens than when it was planned; its text or the tokenizer changed. Put it "
        "back, or start a new run");
  }
  return Status::Ok();
}

void WritePiece(const Ids& ids, const Piece& piece, std::int64_t first_position,
                std::int32_t segment, MicrobatchWriter* writer) {
  if (ids.ids16 != nullptr) {
    writer->Piece(ids.ids16 + piece.start, piece.length, piece.last, first_position, segment);
  } else {
    writer->Piece(ids.ids32 + piece.start, piece.length, piece.last, first_position, segment);
  }
}

// What the rows of a microbatch are written with.
struct Source {
  const BatchSpec& batch;
  const ConstructRule& rule;
  const StepPlan& plan;
  const IdsProvider& ids;
  const PieceNamer& name;
};

Status WriteRow(const Source& source, const std::vector<std::uint32_t>& row, std::int64_t width,
                MicrobatchWriter* writer, Boundaries* boundaries) {
  const bool whole = WholeRowSegments(source.batch);
  std::int32_t segment = 0;
  writer->StartDomain(width);
  for (const std::uint32_t index : row) {
    const Piece& piece = source.plan.pieces[index];
    WS_ASSIGN_OR_RETURN(const Ids ids, source.ids(piece.source, piece.epoch, piece.position));
    WS_RETURN_IF_ERROR(CheckIds(piece, ids, source.name));
    segment = whole ? 1 : segment + 1;
    WritePiece(ids, piece, whole ? writer->at() : 0, segment, writer);
    if (!whole) boundaries->Add(piece.length);
  }
  const std::int64_t padding = width - writer->at();
  if (padding > 0) {
    writer->Padding(padding, whole ? writer->at() : 0);
    if (!whole) boundaries->Add(padding);
  }
  if (whole) boundaries->Add(width);
  return Status::Ok();
}

Status WriteThd(const Source& source, const std::vector<std::uint32_t>& row, std::int64_t width,
                MicrobatchWriter* writer, Boundaries* real, Boundaries* padded) {
  const bool by_piece = source.rule.by_piece;
  std::int32_t segment = 0;
  std::int64_t used = 0;
  if (!by_piece) writer->StartDomain(width);
  for (const std::uint32_t index : row) {
    const Piece& piece = source.plan.pieces[index];
    WS_ASSIGN_OR_RETURN(const Ids ids, source.ids(piece.source, piece.epoch, piece.position));
    WS_RETURN_IF_ERROR(CheckIds(piece, ids, source.name));
    const std::int64_t length = piece.length;
    const auto in_memory = static_cast<std::int64_t>(source.rule.padding.Piece(piece.length));
    if (by_piece) writer->StartDomain(in_memory);
    WritePiece(ids, piece, 0, ++segment, writer);
    if (in_memory > length) writer->Padding(in_memory - length, length);
    real->Add(length);
    padded->Add(in_memory);
    used += in_memory;
  }
  while (used < width) {
    const std::int64_t filler =
        std::min(width - used, static_cast<std::int64_t>(source.rule.longest_segment));
    if (by_piece) writer->StartDomain(filler);
    writer->Padding(filler, 0);
    real->Add(filler);
    padded->Add(filler);
    used += filler;
  }
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
                         std::uint32_t rank, const MeshSpec& mesh) {
  if (rank >= plan->ranks.size()) {
    return Status::InvalidArgument("rank " + std::to_string(rank) + " is not in a plan for " +
                                   std::to_string(plan->ranks.size()) +
                                   " data-parallel ranks; set mesh.dp to the number of ranks");
  }
  WS_RETURN_IF_ERROR(ValidatePadding(batch, mesh));
  BatchView view;
  view.step = plan->step;
  view.rank = rank;
  view.rule = RuleOf(batch, mesh);
  for (const MicrobatchPlan& microbatch : plan->ranks[rank].microbatches) {
    WS_ASSIGN_OR_RETURN(const Shape shape, Measure(batch, view.rule, *plan, microbatch));
    MicrobatchView out;
    out.max_seqlen = shape.longest;
    out.real_tokens = shape.real_tokens;
    out.shape = {shape.rows, shape.width / mesh.cp};
    const std::vector<std::int64_t> boundaries = {shape.segments + 1};
    out.tensors = {
        {.name = "tokens", .type = DataType::kInt64, .shape = out.shape},
        {.name = "labels", .type = DataType::kInt64, .shape = out.shape},
        {.name = "loss_mask", .type = DataType::kBool, .shape = out.shape},
        {.name = "position_ids", .type = DataType::kInt64, .shape = out.shape},
        {.name = "segment_ids", .type = DataType::kInt32, .shape = out.shape},
        {.name = "cu_seqlens", .type = DataType::kInt32, .shape = boundaries},
    };
    if (IsThd(batch)) {
      out.tensors.push_back(
          {.name = "cu_seqlens_padded", .type = DataType::kInt32, .shape = boundaries});
    }
    for (std::size_t i = 0; i < out.tensors.size(); ++i) {
      TensorView& tensor = out.tensors[i];
      tensor.stages = StagesOf(mesh, tensor.name);
      tensor.offset_bytes = view.size_bytes;
      const std::size_t slice_bytes = Align(tensor.size_bytes());
      if (i < kCuSeqlens && mesh.cp > 1) {
        tensor.slices = mesh.cp;
        tensor.stride_bytes = slice_bytes;
      }
      view.size_bytes += slice_bytes * tensor.slices;
    }
    view.microbatches.push_back(std::move(out));
  }
  view.plan = std::move(plan);
  return view;
}

std::uint64_t ReservedBytes(const BatchSpec& batch, const MeshSpec& mesh) {
  constexpr std::uint64_t kTensors = 7;
  constexpr std::uint64_t kBoundaryBytes = 8;  // cu_seqlens, and in thd cu_seqlens_padded
  const std::uint64_t group = MicrobatchMultiple(mesh);
  const auto divide_up = [](std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; };
  std::uint64_t tokens = 0;
  std::uint64_t microbatches = group;
  if (!IsThd(batch)) {
    // As BuildLayout does it; a short last step takes no more.
    const std::uint64_t fit =
        batch.microbatch_tokens == 0 ? batch.rows : batch.microbatch_tokens / batch.sequence_length;
    microbatches = divide_up(divide_up(batch.rows, mesh.dp * fit), group) * group;
    tokens = microbatches * divide_up(batch.rows, mesh.dp * microbatches) * batch.sequence_length;
  } else {
    const PaddingRule padding = PaddingOf(batch, mesh);
    tokens = batch.tokens + LongestPiece(batch);
    // A piece of 256 tokens or more is taken for the rule.
    tokens += tokens / 256 * (padding.document - 1);
    if (batch.microbatch_tokens != 0)
      microbatches += std::min(tokens, 4 * (tokens / batch.microbatch_tokens + 1));
    tokens += microbatches * (padding.microbatch - 1);
    if (batch.fixed_shapes) {
      // Twice the least number of a rank, each as large as the cap.
      microbatches = group + 2 * (tokens / mesh.dp / batch.microbatch_tokens + 1);
      tokens = microbatches * batch.microbatch_tokens;
    }
  }
  return tokens * (kSlabBytesPerToken + kBoundaryBytes) +
         microbatches * kTensors * mesh.cp * kAlignment + (64U << 10);
}

Status Construct(const BatchSpec& batch, const BatchView& view, const IdsProvider& ids,
                 const PieceNamer& name, std::span<std::byte> memory) {
  if (memory.size() < view.size_bytes)
    return Status::Internal("the memory given to a batch is too small");
  const Source source{batch, view.rule, *view.plan, ids, name};
  const RankPlan& rank = source.plan.ranks[view.rank];
  for (std::size_t m = 0; m < view.microbatches.size(); ++m) {
    const MicrobatchView& out = view.microbatches[m];
    MicrobatchWriter writer(out, view.rule.slices, memory);
    Boundaries boundaries(out.tensors[kCuSeqlens], memory);
    const std::int64_t width = out.shape[1] * view.rule.slices.cp;
    if (IsThd(batch)) {
      Boundaries padded(out.tensors[kCuSeqlensPadded], memory);
      WS_RETURN_IF_ERROR(
          WriteThd(source, rank.microbatches[m].rows[0], width, &writer, &boundaries, &padded));
      padded.FillUp();
    } else {
      for (const std::vector<std::uint32_t>& row : rank.microbatches[m].rows) {
        WS_RETURN_IF_ERROR(WriteRow(source, row, width, &writer, &boundaries));
      }
    }
    boundaries.FillUp();
  }
  return Status::Ok();
}

}  // namespace widestream
