// What a server delivers: the tensors of one step for the data-parallel ranks of one node.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/construct/batch.h"
#include "engine/deliver/slab_pool.h"
#include "engine/plan/plan.h"

namespace widestream {

// The tensors of one data-parallel rank (view.rank), for all places that share them.
struct Bucket {
  BatchView view;
  std::shared_ptr<Slab> slab;  // at least view.size_bytes
};

// Immutable; owns its memory.
struct Step {
  std::uint64_t number = 0;
  std::shared_ptr<const StepPlan> plan;
  std::vector<std::uint64_t> weights;  // the mixture wanted, out of 2^32, one a source
  std::vector<Bucket> buckets;         // in the order of the served data-parallel ranks
};

}  // namespace widestream
