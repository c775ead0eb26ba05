// Samples: the token ids of a block's records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/source/messages.h"

namespace widestream {

// The transformed records of one block, in order. Immutable once ready.
struct SampleBlock {
  MetadataBatch metadata;
  // ids of record i: [offsets[i], offsets[i + 1]) of ids16 or ids32, whichever the vocabulary
  // needs.
  std::vector<std::uint64_t> offsets;
  std::vector<std::uint16_t> ids16;
  std::vector<std::uint32_t> ids32;
  std::uint64_t bytes = 0;  // held by this block
};

// The ids of one record; keeps its block alive.
struct Ids {
  std::shared_ptr<const SampleBlock> block;
  const std::uint16_t* ids16 = nullptr;  // exactly one of the two is set, unless size is 0
  const std::uint32_t* ids32 = nullptr;
  std::size_t size = 0;
};

}  // namespace widestream
