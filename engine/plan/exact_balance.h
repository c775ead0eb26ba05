// The best assignment of a few atoms, by branch and bound: what the balancers are measured by.
#pragma once

#include <cstdint>

#include "engine/base/status.h"
#include "engine/plan/balance.h"

namespace widestream {

struct ExactAssignment {
  Assignment assignment;
  bool proven = false;  // no assignment within the caps is better
};

// Begins with LongestFirst and searches on until it is proven best or `nodes`
// placements have been tried. Errors as of BalanceAtoms; at most 4,096 atoms.
Result<ExactAssignment> ExactBalance(const BalanceInput& input, std::uint64_t nodes);

}  // namespace widestream
