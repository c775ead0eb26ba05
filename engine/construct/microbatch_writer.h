// MicrobatchWriter: pieces and padding of one microbatch into its tensors. Private to construct/.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/construct/batch.h"
#include "engine/construct/slices.h"

namespace widestream::construct_internal {

enum TensorIndex : std::uint8_t {
  kTokens,
  kLabels,
  kLossMask,
  kPositionIds,
  kSegmentIds,
  kCuSeqlens,
  kCuSeqlensPadded
};

// Writes one domain after the other (StartDomain), front to back; each token once, straight to its
// slice. Borrows the memory. Not thread-safe. Inner loops have no branch a token.
class MicrobatchWriter {
 public:
  MicrobatchWriter(const MicrobatchView& view, const SliceRule& rule, std::span<std::byte> memory)
      : rule_(rule),
        tokens_(view.tensors[kTokens], memory),
        labels_(view.tensors[kLabels], memory),
        loss_mask_(view.tensors[kLossMask], memory),
        position_ids_(view.tensors[kPositionIds], memory),
        segment_ids_(view.tensors[kSegmentIds], memory) {}

  // The next `length` tokens are cut as one domain.
  void StartDomain(std::int64_t length) {
    base_ += length_ / rule_.cp;
    length_ = length;
    at_ = 0;
  }
  std::int64_t at() const { return at_; }  // inside the domain

  // `ids` has the piece's ids, and one more if the document goes on (`last` is false).
  template <typename Id>
  void Piece(const Id* ids, std::int64_t length, bool last, std::int64_t first_position,
             std::int32_t segment) {
    const std::int64_t begin = at_;
    const std::int64_t targets = last ? length - 1 : length;
    ForEachRun(rule_, length_, base_, begin, begin + length,
               [&](std::int64_t slice, std::int64_t to, std::int64_t from, std::int64_t count) {
                 const std::int64_t first = from - begin;
                 const Id* source = ids + first;
                 std::int64_t* tokens = tokens_.At(slice, to);
                 for (std::int64_t i = 0; i < count; ++i) tokens[i] = source[i];
                 // Shifted by the document's order, so right at the edges of chunks, too.
                 const std::int64_t supervised = std::min(count, targets - first);
                 std::int64_t* labels = labels_.At(slice, to);
                 for (std::int64_t i = 0; i < supervised; ++i) labels[i] = source[i + 1];
                 bool* mask = loss_mask_.At(slice, to);
                 std::fill_n(mask, count, true);
                 if (supervised < count) {
                   labels[count - 1] = kIgnoreLabel;
                   mask[count - 1] = false;
                 }
                 Positions(slice, to, count, first_position + first);
                 std::fill_n(segment_ids_.At(slice, to), count, segment);
               });
    at_ += length;
  }

  void Padding(std::int64_t length, std::int64_t first_position) {
    const std::int64_t begin = at_;
    ForEachRun(rule_, length_, base_, begin, begin + length,
               [&](std::int64_t slice, std::int64_t to, std::int64_t from, std::int64_t count) {
                 std::fill_n(tokens_.At(slice, to), count, 0);
                 std::fill_n(labels_.At(slice, to), count, kIgnoreLabel);
                 std::fill_n(loss_mask_.At(slice, to), count, false);
                 Positions(slice, to, count, first_position + from - begin);
                 std::fill_n(segment_ids_.At(slice, to), count, 0);
               });
    at_ += length;
  }

 private:
  template <typename T>
  struct Column {
    Column(const TensorView& tensor, std::span<std::byte> memory)
        : data(memory.data() + tensor.offset_bytes), stride_bytes(tensor.stride_bytes) {}
    T* At(std::int64_t slice, std::int64_t offset) const {
      return reinterpret_cast<T*>(data + static_cast<std::size_t>(slice) * stride_bytes) + offset;
    }
    std::byte* data;
    std::size_t stride_bytes;
  };

  void Positions(std::int64_t slice, std::int64_t to, std::int64_t count, std::int64_t first) {
    std::int64_t* positions = position_ids_.At(slice, to);
    for (std::int64_t i = 0; i < count; ++i) positions[i] = first + i;
  }

  SliceRule rule_;
  Column<std::int64_t> tokens_;
  Column<std::int64_t> labels_;
  Column<bool> loss_mask_;
  Column<std::int64_t> position_ids_;
  Column<std::int32_t> segment_ids_;
  std::int64_t base_ = 0;    // of the domain, in each slice
  std::int64_t length_ = 0;  // of the domain
  std::int64_t at_ = 0;
};

// Boundaries of segments: a prefix sum, then copies of its last value up to the tensor's end.
class Boundaries {
 public:
  Boundaries(const TensorView& tensor, std::span<std::byte> memory)
      : values_(reinterpret_cast<std::int32_t*>(memory.data() + tensor.offset_bytes)),
        count_(tensor.shape[0]) {
    values_[0] = 0;
  }
  void Add(std::int64_t length) {
    sum_ += static_cast<std::int32_t>(length);
    values_[written_++] = sum_;
  }
  void FillUp() { std::fill(values_ + written_, values_ + count_, sum_); }

 private:
  std::int32_t* values_;
  std::int64_t count_;
  std::int64_t written_ = 1;
  std::int32_t sum_ = 0;
};

}  // namespace widestream::construct_internal
