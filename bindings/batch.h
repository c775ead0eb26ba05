// A delivered step as Python sees it, whether the engine is in this process or in the node's host.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/construct/batch.h"
#include "engine/plan/plan.h"

namespace widestream::python {

// One step of one rank. Immutable; arrays on `memory` keep `owner`, and so the lease, alive.
struct DeliveredBatch {
  std::uint64_t step = 0;
  std::uint32_t dp_rank = 0;
  std::uint64_t supervised_tokens = 0;  // of the whole step
  std::uint64_t real_tokens = 0;
  std::size_t size_bytes = 0;
  std::string digest;
  std::vector<double> costs;                                        // one a data-parallel rank
  std::vector<std::uint64_t> weights;                               // out of 2^32, one a source
  std::vector<std::uint64_t> tokens_by_source;                      // real tokens, one a source
  std::shared_ptr<const std::vector<MicrobatchView>> microbatches;  // as this rank needs them
  std::byte* memory = nullptr;
  std::shared_ptr<const void> owner;
  std::function<Result<std::shared_ptr<const StepPlan>>()> plan;  // of all ranks; may ask the host
};

using BatchPointer = std::shared_ptr<const DeliveredBatch>;

}  // namespace widestream::python
