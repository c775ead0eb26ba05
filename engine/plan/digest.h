// The digest of a step's membership; docs/stream.md section 4.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/plan/plan.h"

namespace widestream {

// xxh3-128, as 32 hexadecimal digits, of these numbers as little-endian 64-bit integers: the number
// of pieces; for each piece in order `source_ids[source]`, epoch, position, start, length,
// ids_hash; the number of rows; for each row the number of its pieces, then their indices. The
// layout is not in it.
std::string StepDigest(const StepPlan& plan, std::span<const std::uint64_t> source_ids);

}  // namespace widestream
