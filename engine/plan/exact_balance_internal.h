// The search of exact_balance.h without its checks. Not a public header.
#pragma once

#include <cstdint>

#include "engine/plan/balance.h"
#include "engine/plan/cost_order.h"

namespace widestream::balance_internal {

// Replaces `best`, an assignment within the caps, by better ones until `nodes` placements have been
// tried. True if the last one is proven best.
bool SearchExact(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
                 std::uint64_t nodes, Assignment* best);

}  // namespace widestream::balance_internal
