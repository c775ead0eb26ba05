#include "engine/transform/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace widestream::internal {
namespace {

Isa DetectIsa() {
  Isa best = Isa::kPortable;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("bmi") != 0 &&
      __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0) {
    best = Isa::kAvx2;
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
        __builtin_cpu_supports("avx512vbmi2") != 0) {
      best = Isa::kAvx512;
    }
  }
#endif
  if (const char* const wanted = std::getenv("WIDESTREAM_ISA")) {
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2}) {
      if (std::string_view(wanted) == IsaName(isa)) best = std::min(best, isa);
    }
  }
  return best;
}

}  // namespace

Isa BestIsa() {
  static const Isa best = DetectIsa();
  return best;
}

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable:
      return "portable";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

}  // namespace widestream::internal
