#include "engine/construct/constructor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "engine/construct/shape.h"

namespace widestream {
namespace {

constexpr std::size_t kAlignment = 64;

bool WholeRowSegments(const BatchSpec& batch) {
  return batch.cross_document_attention && batch.layout != BatchLayout::kThd;
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

// Writes the tensors of one microbatch position by position, into the slices of the cp ranks.
class MicrobatchWriter {
 public:
  MicrobatchWriter(const MicrobatchView& view, std::span<std::byte> memory,
                   const std::vector<SliceRun>& runs, std::int64_t slice_positions)
      : tokens_(TensorData<std::int64_t>(view, kTokens, memory)),
        labels_(TensorData<std::int64_t>(view, kLabels, memory)),
        loss_mask_(TensorData<bool>(view, kLossMask, memory)),
        position_ids_(TensorData<std::int64_t>(view, kPositionIds, memory)),
        segment_ids_(TensorData<std::int32_t>(view, kSegmentIds, memory)),
        runs_(runs),
        slice_positions_(slice_positions) {}

  std::int64_t at() const { return at_; }  // in the flattened microbatch

  template <typename Id>
  void Piece(const Id* ids, const widestream::Piece& piece, std::int64_t first_position,
             std::int32_t segment) {
    // Positions that have a label: all but the last of a document.
    const std::int64_t labelled = piece.last ? std::int64_t{piece.length} - 1 : piece.length;
    Spread(piece.length, [&](std::int64_t from, std::int64_t count, std::int64_t to) {
      for (std::int64_t i = 0; i < count; ++i) tokens_[to + i] = ids[from + i];
      const std::int64_t targets = std::clamp<std::int64_t>(labelled - from, 0, count);
      for (std::int64_t i = 0; i < targets; ++i) labels_[to + i] = ids[from + i + 1];
      std::fill(labels_ + to + targets, labels_ + to + count, kIgnoreLabel);
      std::memset(loss_mask_ + to, 1, static_cast<std::size_t>(targets));
      std::memset(loss_mask_ + to + targets, 0, static_cast<std::size_t>(count - targets));
      for (std::int64_t i = 0; i < count; ++i) position_ids_[to + i] = first_position + from + i;
      std::fill_n(segment_ids_ + to, count, segment);
    });
  }

  void Padding(std::int64_t length, std::int64_t first_position) {
    Spread(length, [&](std::int64_t from, std::int64_t count, std::int64_t to) {
      std::fill_n(tokens_ + to, count, 0);
      std::fill_n(labels_ + to, count, kIgnoreLabel);
      std::memset(loss_mask_ + to, 0, static_cast<std::size_t>(count));
      for (std::int64_t i = 0; i < count; ++i) position_ids_[to + i] = first_position + from + i;
      std::fill_n(segment_ids_ + to, count, 0);
    });
  }

 private:
  // Calls write(first of the next `length` positions, how many, where in the tensors) for each run
  // that they lie in.
  template <typename Write>
  void Spread(std::int64_t length, Write write) {
    std::int64_t done = 0;
    while (done < length) {
      while (runs_[run_].end <= at_) ++run_;
      const SliceRun& run = runs_[run_];
      const std::int64_t count = std::min(length - done, run.end - at_);
      write(done, count, run.slice * slice_positions_ + run.local + at_ - run.begin);
      done += count;
      at_ += count;
    }
  }

  std::int64_t* tokens_;
  std::int64_t* labels_;
  bool* loss_mask_;
  std::int64_t* position_ids_;
  std::int32_t* segment_ids_;
  const std::vector<SliceRun>& runs_;
  std::int64_t slice_positions_;
  std::int64_t at_ = 0;
  std::size_t run_ = 0;
};

Status WritePiece(const Piece& piece, std::int64_t first_position, std::int32_t segment,
                  const IdsProvider& provider, const PieceNamer& name, MicrobatchWriter* writer) {
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
  if (ids.ids16 != nullptr) {
    writer->Piece(ids.ids16 + piece.start, piece, first_position, segment);
  } else {
    writer->Piece(ids.ids32 + piece.start, piece, first_position, segment);
  }
  return Status::Ok();
}

// Boundaries of segments as they are found.
struct Boundaries {
  std::int32_t* values;
  std::int64_t count = 0;

  explicit Boundaries(std::int32_t* first) : values(first) { values[0] = 0; }
  void Add(std::int64_t at) { values[++count] = static_cast<std::int32_t>(at); }
  // A fixed number of segments: the rest is empty ones at the end.
  void FillTo(std::int64_t segments) {
    while (count < segments) Add(values[count]);
  }
};

Status WriteRow(const BatchSpec& batch, const StepPlan& plan, const std::vector<std::uint32_t>& row,
                const IdsProvider& provider, const PieceNamer& name, MicrobatchWriter* writer,
                Boundaries* boundaries) {
  const bool whole = WholeRowSegments(batch);
  const std::int64_t begin = writer->at();
  std::int32_t segment = 0;
  for (const std::uint32_t index : row) {
    segment = whole ? 1 : segment + 1;
    WS_RETURN_IF_ERROR(WritePiece(plan.pieces[index], whole ? writer->at() - begin : 0, segment,
                                  provider, name, writer));
    if (!whole) boundaries->Add(writer->at());
  }
  const std::int64_t padding = begin + batch.sequence_length - writer->at();
  if (padding > 0) {
    writer->Padding(padding, whole ? writer->at() - begin : 0);
    if (!whole) boundaries->Add(writer->at());
  }
  if (whole) boundaries->Add(writer->at());
  return Status::Ok();
}

Status WriteThd(const StepPlan& plan, const std::vector<std::uint32_t>& row,
                const MicrobatchShape& shape, const IdsProvider& provider, const PieceNamer& name,
                MicrobatchWriter* writer, Boundaries* lengths, Boundaries* padded) {
  std::int64_t real = 0;
  for (std::size_t s = 0; s < shape.padded.size(); ++s) {
    std::int64_t length = shape.padded[s];
    if (s < shape.pieces) {
      const Piece& piece = plan.pieces[row[s]];
      length = piece.length;
      WS_RETURN_IF_ERROR(
          WritePiece(piece, 0, static_cast<std::int32_t>(s) + 1, provider, name, writer));
      writer->Padding(shape.padded[s] - length, length);
    } else {
      writer->Padding(length, 0);
    }
    real += length;
    lengths->Add(real);
    padded->Add(writer->at());
  }
  lengths->FillTo(shape.segments);
  padded->FillTo(shape.segments);
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

Result<BatchView> LayOut(const BatchSpec& batch, const MeshSpec& mesh,
                         std::shared_ptr<const StepPlan> plan, std::uint32_t rank) {
  if (rank >= plan->ranks.size()) {
    return Status::InvalidArgument("rank " + std::to_string(rank) + " is not in a plan for " +
                                   std::to_string(plan->ranks.size()) +
                                   " data-parallel ranks; set mesh.dp to the number of ranks");
  }
  BatchView view;
  view.step = plan->step;
  view.rank = rank;
  for (const MicrobatchPlan& microbatch : plan->ranks[rank].microbatches) {
    WS_ASSIGN_OR_RETURN(const MicrobatchShape shape,
                        MeasureMicrobatch(batch, mesh, *plan, microbatch));
    MicrobatchView out;
    out.max_seqlen = shape.longest;
    out.real_tokens = shape.real_tokens;
    out.shape = {shape.rows, shape.width / mesh.cp};
    std::vector<std::int64_t> matrix = out.shape;
    if (mesh.cp > 1) matrix.insert(matrix.begin(), mesh.cp);
    const std::vector<std::int64_t> boundaries = {shape.segments + 1};
    const auto add = [&](const char* name, DataType type, const std::vector<std::int64_t>& extents,
                         bool sliced) {
      TensorView tensor;
      tensor.name = name;
      tensor.type = type;
      tensor.shape = extents;
      tensor.sliced = sliced;
      tensor.offset_bytes = view.size_bytes;
      view.size_bytes += (tensor.size_bytes() + kAlignment - 1) / kAlignment * kAlignment;
      out.tensors.push_back(std::move(tensor));
    };
    const bool sliced = mesh.cp > 1;
    add("tokens", DataType::kInt64, matrix, sliced);
    add("labels", DataType::kInt64, matrix, sliced);
    add("loss_mask", DataType::kBool, matrix, sliced);
    add("position_ids", DataType::kInt64, matrix, sliced);
    add("segment_ids", DataType::kInt32, matrix, sliced);
    add("cu_seqlens", DataType::kInt32, boundaries, false);
    if (batch.layout == BatchLayout::kThd)
      add("cu_seqlens_padded", DataType::kInt32, boundaries, false);
    view.microbatches.push_back(std::move(out));
  }
  view.plan = std::move(plan);
  return view;
}

BatchView SelectFor(const BatchView& bucket, const Place& place) {
  BatchView view = bucket;
  for (MicrobatchView& microbatch : view.microbatches) {
    std::erase_if(microbatch.tensors, [&](const TensorView& tensor) {
      const bool input =
          tensor.name == "tokens" || tensor.name == "position_ids" || tensor.name == "segment_ids";
      const bool label = tensor.name == "labels" || tensor.name == "loss_mask";
      return (input && !place.inputs) || (label && !place.labels);
    });
    if (place.all_slices) continue;
    for (TensorView& tensor : microbatch.tensors) {
      if (!tensor.sliced) continue;
      tensor.shape.erase(tensor.shape.begin());
      tensor.offset_bytes += place.cp * tensor.size_bytes();
      tensor.sliced = false;
    }
  }
  return view;
}

Status Construct(const BatchSpec& batch, const MeshSpec& mesh, const BatchView& view,
                 const IdsProvider& ids, const PieceNamer& name, std::span<std::byte> memory) {
  if (memory.size() < view.size_bytes)
    return Status::Internal("the memory given to a batch is too small");
  const StepPlan& plan = *view.plan;
  const RankPlan& rank = plan.ranks[view.rank];
  for (std::size_t m = 0; m < view.microbatches.size(); ++m) {
    const MicrobatchView& out = view.microbatches[m];
    WS_ASSIGN_OR_RETURN(const MicrobatchShape shape,
                        MeasureMicrobatch(batch, mesh, plan, rank.microbatches[m]));
    const std::vector<SliceRun> runs = CutForContextParallel(mesh, batch.layout, shape);
    MicrobatchWriter writer(out, memory, runs, out.shape[0] * out.shape[1]);
    Boundaries lengths(TensorData<std::int32_t>(out, kCuSeqlens, memory));
    if (batch.layout == BatchLayout::kThd) {
      Boundaries padded(TensorData<std::int32_t>(out, kCuSeqlensPadded, memory));
      WS_RETURN_IF_ERROR(WriteThd(plan, rank.microbatches[m].rows.front(), shape, ids, name,
                                  &writer, &lengths, &padded));
      continue;
    }
    for (const std::vector<std::uint32_t>& row : rank.microbatches[m].rows)
      WS_RETURN_IF_ERROR(WriteRow(batch, plan, row, ids, name, &writer, &lengths));
  }
  return Status::Ok();
}

}  // namespace widestream
