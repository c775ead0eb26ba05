#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/kernels.h"

namespace widestream::ops {

namespace baseline {
extern const KernelTable isa_table;
}
#if defined(WS_HAS_AVX)
namespace avx2 {
extern const KernelTable isa_table;
}
namespace avx512 {
extern const KernelTable isa_table;
}
#endif

namespace {

std::int64_t Wide(const Shape& shape) { return static_cast<std::int64_t>(shape.n) * shape.d; }
std::int64_t Narrow(const Shape& shape) { return static_cast<std::int64_t>(shape.m) * shape.d; }
std::int64_t OfToken(const Shape& shape) {
  return static_cast<std::int64_t>(shape.n) * shape.Columns();
}

const KernelTable& Best() {
  const char* asked = std::getenv("WIDESTREAM_CPU");
  for (const char* name : {"avx512", "avx2"}) {
    // A name that is asked for hides the wider sets; one that is not known hides none.
    const bool hidden =
        asked != nullptr && (std::strcmp(asked, "baseline") == 0 ||
                             (std::strcmp(asked, "avx2") == 0 && std::strcmp(name, "avx512") == 0));
    const KernelTable* table = hidden ? nullptr : KernelsFor(name);
    if (table != nullptr) return *table;
  }
  return baseline::isa_table;
}

}  // namespace

int BlockTokens(const Shape& shape) {
  // Enough rows for the products with the shared weight, and not more than half of a usual
  // second-level cache for the handful of arrays that a block touches.
  const std::int64_t by_rows = std::max<std::int64_t>(1, 32 / shape.n);
  const std::int64_t by_memory =
      std::max<std::int64_t>(1, 24576 / std::max<std::int64_t>(1, Wide(shape)));
  return static_cast<int>(std::min(by_rows, by_memory));
}

std::int64_t ForwardScratchFloats(const Shape& shape) {
  return BlockTokens(shape) * (2 * Wide(shape) + 2 * Narrow(shape) + OfToken(shape) + shape.n);
}

std::int64_t BackwardScratchFloats(const Shape& shape) {
  return BlockTokens(shape) * (3 * Wide(shape) + 3 * Narrow(shape) + OfToken(shape)) +
         2 * OfToken(shape) + shape.n + static_cast<std::int64_t>(shape.n) * shape.n +
         static_cast<std::int64_t>(shape.Columns()) * shape.d;
}

std::int64_t GroupNormScratchFloats(std::int64_t channels) { return 3 * channels; }

std::int64_t PartialFloats(const Shape& shape, bool dynamic) {
  if (!dynamic) return OfToken(shape);
  return 2 * OfToken(shape) + static_cast<std::int64_t>(shape.Columns()) * shape.d;
}

std::int64_t ChunkTokens(std::int64_t tokens) {
  constexpr std::int64_t kSmallest = 128;
  constexpr std::int64_t kChunks = 64;
  return std::max(kSmallest, (tokens + kChunks - 1) / kChunks);
}

const KernelTable* KernelsFor(const char* name) {
  if (std::strcmp(name, "baseline") == 0) return &baseline::isa_table;
#if defined(WS_HAS_AVX)
  if (std::strcmp(name, "avx2") == 0) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &avx2::isa_table
                                                                           : nullptr;
  }
  if (std::strcmp(name, "avx512") == 0) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
               ? &avx512::isa_table
               : nullptr;
  }
#endif
  return nullptr;
}

const KernelTable& Kernels() {
  static const KernelTable& table = Best();
  return table;
}

}  // namespace widestream::ops
