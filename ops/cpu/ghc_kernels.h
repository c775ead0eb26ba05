#pragma once

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "ops/cpu/matrix.h"
#include "ops/ghc/carry.h"

// Forward and backward of generalized hyper-connections over a range of tokens, in blocks that stay
// in cache: every state is read from memory once.
namespace widestream::ops::WS_ISA {

// Hands out parts of the caller's scratch.
class Scratch {
 public:
  explicit Scratch(float* next) : next_(next) {}
  float* Take(std::int64_t count) {
    float* taken = next_;
    next_ += count;
    return taken;
  }

 private:
  float* next_;
};

// `count` numbers at `offset` as float32: in place, or converted into `buffer`.
inline const float* Fetch(const ConstArray& array, std::int64_t offset, std::int64_t count,
                          float* buffer) {
  if (array.number == Number::kFloat32) return static_cast<const float*>(array.data) + offset;
  const auto* from = static_cast<const std::uint16_t*>(array.data) + offset;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(buffer + i, LoadBFloat16(from + i));
  for (; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(from[i]) << 16;
    __builtin_memcpy(buffer + i, &bits, 4);
  }
  return buffer;
}

// Where to compute `count` numbers of `array`: in place, or in `buffer` for Deliver to convert.
inline float* Target(const MutableArray& array, std::int64_t offset, float* buffer) {
  return array.number == Number::kFloat32 ? static_cast<float*>(array.data) + offset : buffer;
}

inline void Deliver(const MutableArray& array, std::int64_t offset, std::int64_t count,
                    const float* buffer) {
  if (array.number == Number::kFloat32) return;
  auto* to = static_cast<std::uint16_t*>(array.data) + offset;
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) StoreBFloat16(to + i, Load(buffer + i));
  for (; i < count; ++i) to[i] = RoundBFloat16(buffer[i]);
}

inline float SumOfSquares(const float* row, std::int64_t width) {
  Vec sum[4] = {};
  std::int64_t k = 0;
  for (; k + 4 * kLanes <= width; k += 4 * kLanes) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const Vec x = Load(row + k + v * kLanes);
      sum[v] += x * x;
    }
  }
  for (; k + kLanes <= width; k += kLanes) {
    const Vec x = Load(row + k);
    sum[0] += x * x;
  }
  float total = Sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
  for (; k < width; ++k) total += row[k] * row[k];
  return total;
}

// The weight is used by columns where there are enough of them to fill vectors.
inline bool UsesColumns(const Shape& shape) { return shape.Columns() >= 16; }

// Coefficients of `tokens` tokens with state h. coefficients, angle: [tokens, n, c]; rho: [tokens,
// n].
inline void Coefficients(const Shape& s, const Mixer& mixer, const float* h, int tokens,
                         float* coefficients, float* angle, float* rho) {
  const int columns = s.Columns();
  const int rows = tokens * s.n;
  if (UsesColumns(s)) {
    AnySources from;
    from.term[0] = {h, 1, s.d, mixer.weight, columns, s.d};
    from.terms = 1;
    Mix(from, rows, columns, angle, columns);
  } else {
    Dots(h, s.d, rows, mixer.weight_t, s.d, columns, s.d, angle, columns);
  }
  const float root = __builtin_sqrtf(static_cast<float>(s.d));
  for (int row = 0; row < rows; ++row) {
    const float mean =
        SumOfSquares(h + static_cast<std::int64_t>(row) * s.d, s.d) / static_cast<float>(s.d);
    rho[row] = 1.0F / __builtin_sqrtf(mean + mixer.eps);
    const float factor = rho[row] / root;
    float* of_row = angle + row * columns;
    for (int k = 0; k < columns; ++k) of_row[k] *= factor;
  }
  const int of_token = s.n * columns;
  for (int t = 0; t < tokens; ++t) {
    const float* from = angle + t * of_token;
    float* to = coefficients + t * of_token;
    int k = 0;
    for (; k + kLanes <= of_token; k += kLanes) {
      Store(to + k, Load(mixer.statics + k) + Load(mixer.scale + k) * Tanh(Load(from + k)));
    }
    if (k < of_token) {
      const int part = of_token - k;
      StorePart(to + k,
                LoadPart(mixer.statics + k, part) +
                    LoadPart(mixer.scale + k, part) * Tanh(LoadPart(from + k, part)),
                part);
    }
  }
}

// The constrained carry matrix of one token, [n, n].
inline void CarryMatrix(const Shape& s, const float* coefficients, float* matrix, float* column_log,
                        SinkhornSums* sums, float* weights) {
  const float* columns = coefficients + s.m;
  if (s.carry == Carry::kSinkhorn) {
    Sinkhorn(columns, s.Columns(), s.n, matrix, column_log, sums);
  } else {
    PermutationWeights(columns, s.Columns(), s.n, s.carry_columns, weights);
    MixPermutations(weights, s.n, matrix);
  }
}

// h_new of one token.
inline void Write(const Shape& s, const float* h, const float* z, const float* coefficients,
                  float* h_new) {
  const int columns = s.Columns();
  float matrix[kMaxSinkhornSlots * kMaxSinkhornSlots];
  float column_log[kMaxSinkhornSlots];
  float weights[24];
  AnySources from;
  from.term[from.terms++] = {coefficients + s.WriteColumn(), 1, columns, z, s.d, s.m};
  switch (s.carry) {
    case Carry::kGhc:
      from.term[from.terms++] = {coefficients + s.m, columns, 1, h, s.d, s.n};
      break;
    case Carry::kIdentity:
      from.base[from.bases++] = {h, s.d, nullptr};
      break;
    default:
      CarryMatrix(s, coefficients, matrix, column_log, nullptr, weights);
      from.term[from.terms++] = {matrix, s.n, 1, h, s.d, s.n};
  }
  Mix(from, s.n, s.d, h_new, s.d);
}

inline void ForwardRange(const ForwardArguments& a, std::int64_t begin, std::int64_t end,
                         float* memory) {
  const Shape& s = a.shape;
  const std::int64_t wide = static_cast<std::int64_t>(s.n) * s.d;
  const std::int64_t narrow = static_cast<std::int64_t>(s.m) * s.d;
  const int columns = s.Columns();
  const std::int64_t of_token = static_cast<std::int64_t>(s.n) * columns;
  const int block = BlockTokens(s);
  Scratch scratch(memory);
  float* h_buffer = scratch.Take(block * wide);
  float* z_buffer = scratch.Take(block * narrow);
  float* new_buffer = scratch.Take(block * wide);
  float* x_buffer = scratch.Take(block * narrow);
  float* angle_buffer = scratch.Take(block * of_token);
  float* rho_buffer = scratch.Take(static_cast<std::int64_t>(block) * s.n);
  for (std::int64_t first = begin; first < end; first += block) {
    const int tokens = static_cast<int>(end - first < block ? end - first : block);
    const float* h = Fetch(a.h, first * wide, tokens * wide, h_buffer);
    if (a.z.data != nullptr) {
      const float* z = Fetch(a.z, first * narrow, tokens * narrow, z_buffer);
      float* h_new = Target(a.h_new, first * wide, new_buffer);
      for (int t = 0; t < tokens; ++t) {
        Write(s, h + t * wide, z + t * narrow, a.coefficients + (first + t) * a.coefficient_stride,
              h_new + t * wide);
      }
      Deliver(a.h_new, first * wide, tokens * wide, h_new);
      // What comes next sees the state as it is stored.
      h = Fetch({a.h_new.data, a.h_new.number}, first * wide, tokens * wide, h_buffer);
    }
    if (a.mixer.statics == nullptr) continue;
    const float* coefficients = a.mixer.statics;
    std::int64_t stride = 0;
    if (a.mixer.scale != nullptr) {
      float* next = a.next_coefficients + first * of_token;
      Coefficients(s, a.mixer, h, tokens, next,
                   a.angle != nullptr ? a.angle + first * of_token : angle_buffer,
                   a.rho != nullptr ? a.rho + first * s.n : rho_buffer);
      coefficients = next;
      stride = of_token;
    }
    if (a.x.data == nullptr) continue;
    float* x = Target(a.x, first * narrow, x_buffer);
    for (int t = 0; t < tokens; ++t) {
      AnySources from;
      from.term[0] = {coefficients + t * stride, columns, 1, h + t * wide, s.d, s.n};
      from.terms = 1;
      Mix(from, s.m, s.d, x + t * narrow, s.d);
    }
    Deliver(a.x, first * narrow, tokens * narrow, x);
  }
}

inline void Zero(float* p, std::int64_t count) { __builtin_memset(p, 0, count * sizeof(float)); }

inline void Add(float* to, const float* from, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += from[i];
}

// What one token's backward pass needs besides the arguments; all in scratch.
struct TokenGradients {
  const float* h;
  const float* z;
  const float* gradient_new;
  const float* gradient_x;
  const float* coefficients;
  float* matrix;       // constrained carries: [n, n]
  float* coefficient;  // the coefficients' gradient, [n, c]
};

// With many slots the read's and the carry's coefficients have gradients that fill vectors.
inline bool TransposesGradients(const Shape& s) {
  const int columns = s.m + s.n;
  return s.carry == Carry::kGhc && s.n >= 16 &&
         (columns + kLanes - 1) / kLanes * kLanes <= s.Columns();
}

// Gradients of the read and carry coefficients, [n, m + n] of [n, c], by one product with the
// gradients of x and h_new, transposed into `transposed` [d, c]. It overwrites columns behind them.
inline void TransposedGradients(const Shape& s, const TokenGradients& token, float* transposed) {
  const int columns = (s.m + s.n + kLanes - 1) / kLanes * kLanes;
  for (int k = 0; k < s.d; ++k) {
    float* to = transposed + static_cast<std::int64_t>(k) * columns;
    for (int j = 0; j < s.m; ++j) to[j] = token.gradient_x[static_cast<std::int64_t>(j) * s.d + k];
    const float* from = token.gradient_new + k;
    for (int j = 0; j < s.n; ++j) to[s.m + j] = from[static_cast<std::int64_t>(j) * s.d];
    for (int j = s.m + s.n; j < columns; ++j) to[j] = 0;
  }
  AnySources from;
  from.term[0] = {token.h, 1, s.d, transposed, columns, s.d};
  from.terms = 1;
  Mix(from, s.n, columns, token.coefficient, s.Columns());
}

// Gradients of one token's coefficients.
inline void CoefficientGradients(const Shape& s, const TokenGradients& token, const float* given,
                                 float* transposed) {
  const int columns = s.Columns();
  float* out = token.coefficient;
  Zero(out, static_cast<std::int64_t>(s.n) * columns);
  const bool together =
      TransposesGradients(s) && token.gradient_x != nullptr && token.gradient_new != nullptr;
  if (together) {
    TransposedGradients(s, token, transposed);
  } else if (token.gradient_x != nullptr) {
    Dots(token.h, s.d, s.n, token.gradient_x, s.d, s.m, s.d, out, columns);
  }
  if (token.gradient_new != nullptr) {
    Dots(token.gradient_new, s.d, s.n, token.z, s.d, s.m, s.d, out + s.WriteColumn(), columns);
    if (s.carry == Carry::kGhc && !together) {
      Dots(token.h, s.d, s.n, token.gradient_new, s.d, s.n, s.d, out + s.m, columns);
    } else if (s.carry != Carry::kGhc && s.carry != Carry::kIdentity) {
      float gradient[kMaxSinkhornSlots * kMaxSinkhornSlots];
      float column_log[kMaxSinkhornSlots];
      float weights[24];
      SinkhornSums sums;
      Dots(token.h, s.d, s.n, token.gradient_new, s.d, s.n, s.d, gradient, s.n);
      CarryMatrix(s, token.coefficients, token.matrix, column_log, &sums, weights);
      if (s.carry == Carry::kSinkhorn) {
        float used[kMaxSinkhornSlots * kMaxSinkhornSlots];
        __builtin_memcpy(used, token.matrix, sizeof(float) * s.n * s.n);
        SinkhornBackward(s.n, used, column_log, sums, gradient);
        for (int i = 0; i < s.n; ++i) {
          for (int j = 0; j < s.n; ++j) out[i * columns + s.m + j] = gradient[i * s.n + j];
        }
      } else {
        float logits[24];
        PermutationsBackward(weights, s.n, s.carry_columns, gradient, logits);
        for (int i = 0; i < s.n; ++i) {
          for (int p = 0; p < s.carry_columns; ++p) out[i * columns + s.m + p] = logits[p];
        }
      }
    }
  }
  if (given != nullptr) Add(out, given, static_cast<std::int64_t>(s.n) * columns);
}

// Through the tanh: adds to the gradients of statics and scale, leaves in `slope` [n, c] the
// gradient of u = H W (W with its gain), and in `shrink` [n] minus the factor of the norm's own
// term.
inline void AngleGradients(const Shape& s, const Mixer& mixer, const float* coefficient,
                           const float* angle, const float* rho, float* statics, float* scale,
                           float* slope, float* shrink) {
  const int columns = s.Columns();
  const float root = 1.0F / __builtin_sqrtf(static_cast<float>(s.d));
  for (int i = 0; i < s.n; ++i) {
    const float factor = rho[i] * root;
    Vec dots = {};
    for (int k = i * columns; k < (i + 1) * columns; k += kLanes) {
      const int left = (i + 1) * columns - k;
      const int part = left < kLanes ? left : 0;
      const auto load = [part](const float* p) { return part != 0 ? LoadPart(p, part) : Load(p); };
      const auto store = [part](float* p, Vec v) {
        part != 0 ? StorePart(p, v, part) : Store(p, v);
      };
      const Vec gradient = load(coefficient + k);
      const Vec tangent = Tanh(load(angle + k));
      if (statics != nullptr) {
        store(statics + k, load(statics + k) + gradient);
        store(scale + k, load(scale + k) + gradient * tangent);
      }
      const Vec inner = gradient * load(mixer.scale + k) * (1.0F - tangent * tangent);
      dots += inner * load(angle + k);
      store(slope + k, inner * factor);
    }
    shrink[i] = -rho[i] * rho[i] / static_cast<float>(s.d) * Sum(dots);
  }
}

inline void StateGradient(const Shape& s, const Mixer& mixer, const TokenGradients& token,
                          const float* slope, const float* shrink, float* gradient_h) {
  const int columns = s.Columns();
  AnySources from;
  if (token.gradient_x != nullptr) {
    from.term[from.terms++] = {token.coefficients, 1, columns, token.gradient_x, s.d, s.m};
  }
  if (token.gradient_new != nullptr) {
    if (s.carry == Carry::kGhc) {
      from.term[from.terms++] = {token.coefficients + s.m, 1,   columns,
                                 token.gradient_new,       s.d, s.n};
    } else if (s.carry == Carry::kIdentity) {
      from.base[from.bases++] = {token.gradient_new, s.d, nullptr};
    } else {
      from.term[from.terms++] = {token.matrix, 1, s.n, token.gradient_new, s.d, s.n};
    }
  }
  if (slope != nullptr) {
    from.term[from.terms++] = {slope, 1, columns, mixer.weight_t, s.d, columns};
    from.base[from.bases++] = {token.h, s.d, shrink};
  }
  Mix(from, s.n, s.d, gradient_h, s.d);
}

inline void BackwardRange(const BackwardArguments& a, std::int64_t begin, std::int64_t end,
                          float* memory) {
  const Shape& s = a.shape;
  const std::int64_t wide = static_cast<std::int64_t>(s.n) * s.d;
  const std::int64_t narrow = static_cast<std::int64_t>(s.m) * s.d;
  const int columns = s.Columns();
  const std::int64_t of_token = static_cast<std::int64_t>(s.n) * columns;
  const int block = BlockTokens(s);
  const bool dynamic = a.mixer.scale != nullptr;
  const bool slopes = dynamic && a.gradient_h.data != nullptr;
  const bool needs_coefficients = a.gradient_h.data != nullptr || a.partial != nullptr ||
                                  a.gradient_coefficients_out != nullptr;
  Scratch scratch(memory);
  float* h_buffer = scratch.Take(block * wide);
  float* z_buffer = scratch.Take(block * narrow);
  float* new_buffer = scratch.Take(block * wide);
  float* x_buffer = scratch.Take(block * narrow);
  float* h_gradient_buffer = scratch.Take(block * wide);
  float* z_gradient_buffer = scratch.Take(block * narrow);
  float* gradient_buffer = scratch.Take(of_token);
  float* coefficient_buffer = scratch.Take(of_token);
  float* slope_buffer = scratch.Take(block * of_token);
  float* shrink = scratch.Take(s.n);
  float* matrix = scratch.Take(static_cast<std::int64_t>(s.n) * s.n);
  float* transposed =
      TransposesGradients(s) ? scratch.Take(static_cast<std::int64_t>(s.d) * columns) : nullptr;
  float* statics = nullptr;
  float* scale = nullptr;
  float* weight_t = nullptr;
  const std::int64_t partial_floats = PartialFloats(s, dynamic);
  for (std::int64_t first = begin; first < end;) {
    std::int64_t stop = end - first < block ? end : first + block;
    if (a.partial != nullptr) {
      const std::int64_t chunk = first / a.chunk_tokens;
      const std::int64_t chunk_end = (chunk + 1) * a.chunk_tokens;
      if (stop > chunk_end) stop = chunk_end;
      statics = a.partial + chunk * partial_floats;
      if (first % a.chunk_tokens == 0) Zero(statics, partial_floats);
      if (dynamic) {
        scale = statics + of_token;
        weight_t = scale + of_token;
      }
    }
    const int tokens = static_cast<int>(stop - first);
    TokenGradients token{};
    const float* h =
        a.h.data != nullptr ? Fetch(a.h, first * wide, tokens * wide, h_buffer) : nullptr;
    const float* z =
        a.z.data != nullptr ? Fetch(a.z, first * narrow, tokens * narrow, z_buffer) : nullptr;
    const float* gradient_new = a.gradient_new.data != nullptr
                                    ? Fetch(a.gradient_new, first * wide, tokens * wide, new_buffer)
                                    : nullptr;
    const float* gradient_x = a.gradient_x.data != nullptr
                                  ? Fetch(a.gradient_x, first * narrow, tokens * narrow, x_buffer)
                                  : nullptr;
    float* gradient_h = a.gradient_h.data != nullptr
                            ? Target(a.gradient_h, first * wide, h_gradient_buffer)
                            : nullptr;
    float* gradient_z = a.gradient_z.data != nullptr
                            ? Target(a.gradient_z, first * narrow, z_gradient_buffer)
                            : nullptr;
    for (int t = 0; t < tokens; ++t) {
      const std::int64_t at = (first + t) * of_token;
      token.h = h != nullptr ? h + t * wide : nullptr;
      token.z = z != nullptr ? z + t * narrow : nullptr;
      token.gradient_new = gradient_new != nullptr ? gradient_new + t * wide : nullptr;
      token.gradient_x = gradient_x != nullptr ? gradient_x + t * narrow : nullptr;
      token.matrix = matrix;
      if (a.coefficients != nullptr) {
        token.coefficients = a.coefficients + (first + t) * a.coefficient_stride;
      } else {
        for (std::int64_t k = 0; k < of_token; k += kLanes) {
          const int part = of_token - k < kLanes ? static_cast<int>(of_token - k) : 0;
          const auto load = [part](const float* p) {
            return part != 0 ? LoadPart(p, part) : Load(p);
          };
          const Vec value =
              load(a.mixer.statics + k) + load(a.mixer.scale + k) * Tanh(load(a.angle + at + k));
          part != 0 ? StorePart(coefficient_buffer + k, value, part)
                    : Store(coefficient_buffer + k, value);
        }
        token.coefficients = coefficient_buffer;
      }
      if (gradient_z != nullptr) {
        AnySources from;
        from.term[0] = {
            token.coefficients + s.WriteColumn(), columns, 1, token.gradient_new, s.d, s.n};
        from.terms = 1;
        Mix(from, s.m, s.d, gradient_z + t * narrow, s.d);
      }
      if (!needs_coefficients) continue;
      token.coefficient = a.gradient_coefficients_out != nullptr ? a.gradient_coefficients_out + at
                                                                 : gradient_buffer;
      CoefficientGradients(
          s, token, a.gradient_coefficients != nullptr ? a.gradient_coefficients + at : nullptr,
          transposed);
      float* slope = slope_buffer + t * of_token;
      if (slopes) {
        AngleGradients(s, a.mixer, token.coefficient, a.angle + at, a.rho + (first + t) * s.n,
                       statics, scale, slope, shrink);
      } else if (statics != nullptr) {
        Add(statics, token.coefficient, of_token);
      }
      if (gradient_h != nullptr) {
        StateGradient(s, a.mixer, token, slopes ? slope : nullptr, shrink, gradient_h + t * wide);
      }
    }
    if (gradient_z != nullptr) Deliver(a.gradient_z, first * narrow, tokens * narrow, gradient_z);
    if (gradient_h != nullptr) Deliver(a.gradient_h, first * wide, tokens * wide, gradient_h);
    if (weight_t != nullptr) {
      AnySources from;
      from.term[0] = {slope_buffer, columns, 1, h, s.d, tokens * s.n};
      from.terms = 1;
      from.base[0] = {weight_t, s.d, nullptr};
      from.bases = 1;
      Mix(from, columns, s.d, weight_t, s.d);
    }
    first = stop;
  }
}

}  // namespace widestream::ops::WS_ISA
