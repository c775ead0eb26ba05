#pragma once

#include <cstdint>
#include <cstring>

// Vectors of float32 in the widest form of the instruction set that this file is compiled for.
// Everything is in the namespace of that set and forced inline: the linker must never join code of
// two sets.
#ifndef WS_ISA
#error "compile through ops/cpu/kernels_isa.cc, which names the instruction set in WS_ISA"
#endif

#define WS_INLINE inline __attribute__((always_inline))

namespace widestream::ops::WS_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

using Vec = float __attribute__((vector_size(kLanes * 4)));
using Bits = std::uint32_t __attribute__((vector_size(kLanes * 4)));
using Mask = std::int32_t __attribute__((vector_size(kLanes * 4)));
using Half = std::uint16_t __attribute__((vector_size(kLanes * 2)));

WS_INLINE Vec Load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

WS_INLINE void Store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof(v)); }

WS_INLINE Vec LoadPart(const float* p, int count) {
  Vec v = {};
  for (int i = 0; i < count; ++i) v[i] = p[i];
  return v;
}

WS_INLINE void StorePart(float* p, Vec v, int count) {
  for (int i = 0; i < count; ++i) p[i] = v[i];
}

WS_INLINE Vec Broadcast(float x) { return Vec{} + x; }

template <class To, class From>
WS_INLINE To Cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

WS_INLINE Vec Select(Mask mask, Vec yes, Vec no) {
  return Cast<Vec>((Cast<Mask>(yes) & mask) | (Cast<Mask>(no) & ~mask));
}

WS_INLINE Vec LoadBFloat16(const std::uint16_t* p) {
  Half half;
  __builtin_memcpy(&half, p, sizeof(half));
  return Cast<Vec>(__builtin_convertvector(half, Bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
WS_INLINE std::uint16_t RoundBFloat16(float x) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

WS_INLINE void StoreBFloat16(std::uint16_t* p, Vec v) {
  const Bits bits = Cast<Bits>(v);
  const Bits rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const Bits nan = Cast<Bits>(v != v);
  const Half half = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0U), Half);
  __builtin_memcpy(p, &half, sizeof(half));
}

WS_INLINE float Sum(Vec v) {
  float buffer[kLanes];
  Store(buffer, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) buffer[i] += buffer[i + width];
  }
  return buffer[0];
}

// The sums of four vectors, with few shuffles: halves of two vectors are added at once.
WS_INLINE void Sum4(Vec a, Vec b, Vec c, Vec d, float* out) {
#if defined(__AVX512F__)
  const Vec ab =
      __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
      __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  const Vec cd =
      __builtin_shufflevector(c, d, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
      __builtin_shufflevector(c, d, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  Vec s =
      __builtin_shufflevector(ab, cd, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
      __builtin_shufflevector(ab, cd, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  s += __builtin_shufflevector(s, s, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  s += __builtin_shufflevector(s, s, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
  out[0] = s[0];
  out[1] = s[4];
  out[2] = s[8];
  out[3] = s[12];
#elif defined(__AVX2__)
  const Vec ab = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
                 __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  const Vec cd = __builtin_shufflevector(c, d, 0, 1, 2, 3, 8, 9, 10, 11) +
                 __builtin_shufflevector(c, d, 4, 5, 6, 7, 12, 13, 14, 15);
  Vec s = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
          __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
  s += __builtin_shufflevector(s, s, 1, 0, 3, 2, 5, 4, 7, 6);
  out[0] = s[0];
  out[1] = s[4];
  out[2] = s[2];
  out[3] = s[6];
#else
  const Vec t0 =
      __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Vec t1 =
      __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  Store(out,
        __builtin_shufflevector(t0, t1, 0, 1, 4, 5) + __builtin_shufflevector(t0, t1, 2, 3, 6, 7));
#endif
}

// Rational approximation of tanh, a few units in the last place; 1 beyond 7.9, NaN stays NaN.
WS_INLINE Vec Tanh(Vec x) {
  const Vec limit = Broadcast(7.90531110763549805F);
  x = Select(x > limit, limit, x);
  x = Select(x < -limit, -limit, x);
  const Vec s = x * x;
  Vec p = Broadcast(-2.76076847742355e-16F);
  p = p * s + 2.00018790482477e-13F;
  p = p * s + -8.60467152213735e-11F;
  p = p * s + 5.12229709037114e-08F;
  p = p * s + 1.48572235717979e-05F;
  p = p * s + 6.37261928875436e-04F;
  p = p * s + 4.89352455891786e-03F;
  Vec q = Broadcast(1.19825839466702e-06F);
  q = q * s + 1.18534705686654e-04F;
  q = q * s + 2.26843463243900e-03F;
  q = q * s + 4.89352518554385e-03F;
  return x * p / q;
}

}  // namespace widestream::ops::WS_ISA
