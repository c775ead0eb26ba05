#pragma once
#include <cstdint>
#include <memory>
#include <vector>
#include "engine/construct/batch.h"
#include "engine/deliver/slab_pool.h"
namespace widestream {
struct Bucket { BatchView view; std::shared_ptr<Slab> slab; };
struct Step { std::uint64_t number = 0; std::shared_ptr<const StepPlan> plan; std::vector<std::uint64_t> weights; std::vector<Bucket> buckets; };
}
