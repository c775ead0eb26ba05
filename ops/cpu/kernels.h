#pragma once

#include <cstdint>

#include "ops/ghc/shape.h"

// The CPU kernels, free of torch. Each works on a range of tokens and on arrays that the caller
// checked; ranges may run on any threads at once. All arrays are contiguous. Numbers are computed
// and accumulated in float32; `Number` says how states, sub-layer inputs and sub-layer outputs are
// stored.
namespace widestream::ops {

enum class Number : std::int32_t { kFloat32, kBFloat16 };

struct ConstArray {
  const void* data = nullptr;
  Number number = Number::kFloat32;
};

struct MutableArray {
  void* data = nullptr;
  Number number = Number::kFloat32;
};

// The parameters of one connection, c = shape.Columns(). The gain is folded into the weight. With
// static coefficients only `statics` is there.
struct Mixer {
  const float* statics = nullptr;   // [n, c]
  const float* scale = nullptr;     // [n, c]
  const float* weight = nullptr;    // [d, c]
  const float* weight_t = nullptr;  // [c, d]
  float eps = 0;
};

// In this order, for each token: write and carry where `z` is given, h_new from h, z and
// `coefficients`; then, where `mixer` has values, the coefficients of h_new (else of h) and the
// read `x`.
struct ForwardArguments {
  Shape shape;
  ConstArray h;                         // [T, n, d]
  ConstArray z;                         // [T, m d] or absent
  const float* coefficients = nullptr;  // of the write, [T, n, c]
  std::int64_t coefficient_stride = 0;  // from token to token: n c, or 0 for static ones
  MutableArray h_new;                   // [T, n, d]; same number as h
  Mixer mixer;                          // of the read; no values: no read
  MutableArray x;                       // [T, m d] or absent
  float* next_coefficients = nullptr;   // [T, n, c]; null with static coefficients
  float* angle = nullptr;               // argument of tanh, [T, n, c] or absent
  float* rho = nullptr;                 // 1 / rms of each slot, [T, n] or absent
};

// Gradients of a read, of a write, or of both of one connection at once; what is absent contributes
// nothing.
struct BackwardArguments {
  Shape shape;
  ConstArray h;                                  // [T, n, d]
  ConstArray z;                                  // [T, m d], with `gradient_new`
  ConstArray gradient_new;                       // of h_new
  ConstArray gradient_x;                         // of x
  const float* gradient_coefficients = nullptr;  // [T, n, c]
  const float* coefficients = nullptr;           // [T, n, c]; null: computed from `angle`
  std::int64_t coefficient_stride = 0;
  const float* angle = nullptr;  // with dynamic coefficients and their parameters' gradients
  const float* rho = nullptr;
  Mixer mixer;
  MutableArray gradient_h;
  MutableArray gradient_z;
  float* gradient_coefficients_out = nullptr;  // [T, n, c]
  // For each chunk of tokens: d/d statics [n c], d/d scale [n c], d/d weight_t [c d]; null: not
  // wanted.
  float* partial = nullptr;
  std::int64_t chunk_tokens = 0;
};

// Normalises every group of `group` numbers by its root mean square; a gain a channel.
struct GroupNormArguments {
  std::int64_t channels = 0;  // a multiple of group
  std::int64_t group = 0;
  float eps = 0;
  ConstArray x;                 // [T, channels]
  const float* gain = nullptr;  // [channels]
  MutableArray y;               // forward
  float* rho = nullptr;         // [T, channels / group]; forward writes, backward reads
  ConstArray gradient_y;        // backward
  MutableArray gradient_x;
  float* partial = nullptr;  // [chunks, channels]
  std::int64_t chunk_tokens = 0;
};

// Numbers of scratch that a call of the kernel needs.
std::int64_t ForwardScratchFloats(const Shape& shape);
std::int64_t BackwardScratchFloats(const Shape& shape);
std::int64_t GroupNormScratchFloats(std::int64_t channels);
// Numbers of one chunk in BackwardArguments::partial.
std::int64_t PartialFloats(const Shape& shape, bool dynamic);
// Tokens that the kernels take at once.
int BlockTokens(const Shape& shape);
// Tokens of a chunk of the parameters' gradients: depends on the number of tokens alone, so that
// the sums are the same whatever the number of threads.
std::int64_t ChunkTokens(std::int64_t tokens);

struct KernelTable {
  const char* name;
  void (*forward)(const ForwardArguments&, std::int64_t begin, std::int64_t end, float* scratch);
  // begin is a multiple of chunk_tokens where `partial` is wanted.
  void (*backward)(const BackwardArguments&, std::int64_t begin, std::int64_t end, float* scratch);
  void (*group_norm)(const GroupNormArguments&, std::int64_t begin, std::int64_t end,
                     float* scratch);
  void (*group_norm_backward)(const GroupNormArguments&, std::int64_t begin, std::int64_t end,
                              float* scratch);
  // out[k] = sum over chunks of partial[chunk][k], k in [begin, end), chunks in order.
  void (*sum_chunks)(const float* partial, std::int64_t chunks, std::int64_t size,
                     std::int64_t begin, std::int64_t end, float* out);
};

// The kernels for this processor. WIDESTREAM_CPU=baseline|avx2|avx512 in the environment, read
// once, asks for less than there is.
const KernelTable& Kernels();
// Those of one instruction set, or null where this build or this processor lacks it.
const KernelTable* KernelsFor(const char* name);

}  // namespace widestream::ops
