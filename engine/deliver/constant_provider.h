// ConstantProvider: steps of one given shape whose tensors nobody writes. What is measured on it is
// the delivery alone.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/base/status.h"
#include "engine/deliver/step_provider.h"

namespace widestream {

// `steps` steps of `buckets` buckets, each one int64 tensor "tokens" of `bucket_bytes` (a multiple
// of 8) in memory that is filled once; at most `slabs` steps are in memory at a time.
struct ConstantSteps {
  std::uint64_t steps = 0;
  std::uint32_t buckets = 1;
  std::uint64_t bucket_bytes = 0;
  std::uint32_t slabs = 4;
};

Result<std::unique_ptr<StepProvider>> MakeConstantProvider(const ConstantSteps& shape);

}  // namespace widestream
