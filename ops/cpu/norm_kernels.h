#pragma once

#include "ops/cpu/ghc_kernels.h"

// Grouped RMSNorm, forward and backward: the entrance of the head and of the multi-token mix.
namespace widestream::ops::WS_ISA {

inline void GroupNormRange(const GroupNormArguments& a, std::int64_t begin, std::int64_t end,
                           float* memory) {
  const std::int64_t groups = a.channels / a.group;
  float* x_buffer = memory;
  float* y_buffer = memory + a.channels;
  for (std::int64_t t = begin; t < end; ++t) {
    const float* x = Fetch(a.x, t * a.channels, a.channels, x_buffer);
    float* y = Target(a.y, t * a.channels, y_buffer);
    for (std::int64_t g = 0; g < groups; ++g) {
      const float* row = x + g * a.group;
      const float rho =
          1.0F / __builtin_sqrtf(SumOfSquares(row, a.group) / static_cast<float>(a.group) + a.eps);
      a.rho[t * groups + g] = rho;
      for (std::int64_t k = 0; k < a.group; ++k)
        y[g * a.group + k] = row[k] * rho * a.gain[g * a.group + k];
    }
    Deliver(a.y, t * a.channels, a.channels, y);
  }
}

inline void GroupNormBackwardRange(const GroupNormArguments& a, std::int64_t begin,
                                   std::int64_t end, float* memory) {
  const std::int64_t groups = a.channels / a.group;
  float* x_buffer = memory;
  float* gradient_buffer = memory + a.channels;
  float* out_buffer = memory + 2 * a.channels;
  for (std::int64_t t = begin; t < end; ++t) {
    float* partial = a.partial + t / a.chunk_tokens * a.channels;
    if (t % a.chunk_tokens == 0) Zero(partial, a.channels);
    const float* x = Fetch(a.x, t * a.channels, a.channels, x_buffer);
    const float* gradient = Fetch(a.gradient_y, t * a.channels, a.channels, gradient_buffer);
    float* out = Target(a.gradient_x, t * a.channels, out_buffer);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::int64_t at = g * a.group;
      const float rho = a.rho[t * groups + g];
      Vec dots = {};
      std::int64_t k = 0;
      for (; k + kLanes <= a.group; k += kLanes) {
        const Vec value = Load(x + at + k);
        const Vec up = Load(gradient + at + k);
        Store(partial + at + k, Load(partial + at + k) + up * value * rho);
        dots += up * Load(a.gain + at + k) * value;
      }
      float dot = Sum(dots);
      for (; k < a.group; ++k) {
        partial[at + k] += gradient[at + k] * x[at + k] * rho;
        dot += gradient[at + k] * a.gain[at + k] * x[at + k];
      }
      const float shrink = rho * rho * rho * dot / static_cast<float>(a.group);
      for (k = 0; k < a.group; ++k) {
        out[at + k] = gradient[at + k] * a.gain[at + k] * rho - x[at + k] * shrink;
      }
    }
    Deliver(a.gradient_x, t * a.channels, a.channels, out);
  }
}

}  // namespace widestream::ops::WS_ISA
