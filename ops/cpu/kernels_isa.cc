// Compiled once for each instruction set: WS_ISA names the set, WS_ISA_NAME is its text.
#include "ops/cpu/ghc_kernels.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/norm_kernels.h"

namespace widestream::ops::WS_ISA {
namespace {

void SumChunks(const float* partial, std::int64_t chunks, std::int64_t size, std::int64_t begin,
               std::int64_t end, float* out) {
  for (std::int64_t k = begin; k < end; ++k) out[k] = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
    Add(out + begin, partial + chunk * size + begin, end - begin);
  }
}

}  // namespace

extern const KernelTable isa_table;
const KernelTable isa_table = {WS_ISA_NAME,    ForwardRange,           BackwardRange,
                               GroupNormRange, GroupNormBackwardRange, SumChunks};

}  // namespace widestream::ops::WS_ISA
