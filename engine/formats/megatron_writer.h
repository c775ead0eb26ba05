// Writing Megatron's indexed data sets: docs/formats/megatron.md.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/base/status.h"
#include "engine/storage/file_system.h"

namespace widestream {

// How ids are stored in the .bin file; the values are the codes in the .idx file.
enum class MegatronIdType : std::uint8_t { kInt32 = 4, kUint16 = 8 };

inline constexpr std::uint64_t MegatronIdBytes(MegatronIdType type) {
  return type == MegatronIdType::kUint16 ? 2 : 4;
}

using LengthVisitor = std::function<Status(std::span<const std::int32_t>)>;

// Writes the .idx file of a .bin file whose documents lie there one after the other. `lengths`
// calls its visitor with the ids of each document, in order, some at a time; it is called several
// times and must give the same. A document of length 0 is one without a sequence, as Megatron's own
// builder writes it. `out` must be empty; it is not synced. Memory: a buffer, whatever the number
// of documents. InvalidArgument for a negative length.
Status WriteMegatronIndex(MegatronIdType type,
                          const std::function<Status(const LengthVisitor&)>& lengths,
                          AppendFile* out);

}  // namespace widestream
