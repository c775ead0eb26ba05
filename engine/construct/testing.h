// Batches of synthetic records for tests of construct/. Only for tests.
#pragma once

#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/construct/constructor.h"

namespace widestream::construct_testing {

inline constexpr std::uint64_t kHash = 7;
inline constexpr std::uint32_t kRecordTokens = 99;

// A record of 99 ids 100 * (position + 1), +1, ...; position picks the record.
inline Result<Ids> Provide(std::uint32_t /*source*/, std::uint32_t /*epoch*/,
                           std::uint64_t position) {
  auto block = std::make_shared<SampleBlock>();
  block->metadata.position = position;
  block->metadata.ids_hash = {kHash};
  block->ids16.resize(kRecordTokens);
  std::iota(block->ids16.begin(), block->ids16.end(),
            static_cast<std::uint16_t>(100 * (position + 1)));
  Ids ids;
  ids.ids16 = block->ids16.data();
  ids.size = block->ids16.size();
  ids.block = std::move(block);
  return ids;
}

inline Piece MakePiece(std::uint64_t position, std::uint32_t start, std::uint32_t length,
                       bool last) {
  Piece piece;
  piece.position = position;
  piece.start = start;
  piece.length = length;
  piece.last = last;
  piece.ids_hash = kHash;
  return piece;
}

inline std::string Name(const Piece& piece) { return "record " + std::to_string(piece.record); }

// A bucket and its memory. Every byte that was not written is 0xEE.
struct Bucket {
  BatchView view;
  std::vector<std::byte> memory;

  // The values of a tensor of `view`, which is a selection of this bucket or the bucket itself;
  // empty if it has no such tensor.
  template <typename T>
  std::vector<T> Get(const BatchView& selected, std::size_t microbatch,
                     const std::string& name) const {
    for (const TensorView& tensor : selected.microbatches[microbatch].tensors) {
      if (tensor.name != name) continue;
      std::vector<T> out(tensor.size_bytes() / sizeof(T));
      std::memcpy(out.data(), memory.data() + tensor.offset_bytes, tensor.size_bytes());
      return out;
    }
    return {};
  }
};

inline Result<Bucket> Build(const BatchSpec& batch, const MeshSpec& mesh, const StepPlan& plan,
                            std::uint32_t rank = 0) {
  Bucket bucket;
  WS_ASSIGN_OR_RETURN(bucket.view,
                      LayOut(batch, std::make_shared<const StepPlan>(plan), rank, mesh));
  bucket.memory.assign(bucket.view.size_bytes, std::byte{0xEE});
  WS_RETURN_IF_ERROR(Construct(batch, bucket.view, Provide, Name, bucket.memory));
  return bucket;
}

}  // namespace widestream::construct_testing
