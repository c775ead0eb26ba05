// Atoms by descending cost: where every balancer begins.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace widestream {

// Parallel arrays, most expensive first; equal costs by ascending atom.
struct CostOrder {
  std::vector<std::uint32_t> atoms;
  std::vector<std::uint64_t> costs;
};

// A radix sort in O(n), which takes as many passes as the range of the costs needs (one for token
// counts of short rows); a comparison sort of few atoms or of costs that use all 64 bits. The
// result is the same. At most 2^32 - 1 atoms.
CostOrder OrderByCost(std::span<const std::uint64_t> costs);

}  // namespace widestream
