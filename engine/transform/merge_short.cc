#include <algorithm>
#include <bit>
#include <cstddef>

#include "engine/transform/bpe.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// A false alarm in the compiler's own header, GCC bug 105593.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

// Keeps what belongs to each chain in registers.
#define WS_UNROLL _Pragma("GCC unroll 8")

namespace widestream::internal {
namespace {

// 0 - condition, without a branch.
inline std::uint32_t AllOnesIf(bool condition) { return 0 - std::uint32_t{condition ? 1U : 0U}; }
inline std::uint64_t AllOnesIf64(bool condition) { return 0 - std::uint64_t{condition ? 1U : 0U}; }

namespace portable {
#define WS_TARGET
template <int kLanes>
struct Keys {
  std::uint32_t keys[kLanes];
  void Load(const std::uint32_t* from) { std::copy_n(from, kLanes, keys); }
  std::uint32_t Least() const {
    std::uint32_t least = keys[0];
    for (const std::uint32_t key : keys) least = std::min(least, key);
    return least;
  }
  void Set(std::uint64_t lanes, std::uint32_t key) {
    if (lanes != 0) keys[std::countr_zero(lanes)] = key;
  }
};
inline std::uint32_t FindPair(const PairTable& pairs, std::uint64_t pair) {
  return pairs.Find(pair);
}
#include "engine/transform/merge_short_body.h"
#undef WS_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#define WS_TARGET __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
template <int kLanes>
struct Keys {
  static constexpr int kVectors = kLanes / 8;
  __m256i keys[kVectors];
  WS_TARGET inline void Load(const std::uint32_t* from) {
    WS_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) {
      keys[i] = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + 8 * i));
    }
  }
  WS_TARGET inline std::uint32_t Least() const {
    __m256i least = keys[0];
    WS_UNROLL
    for (int i = 1; i < kVectors; ++i) least = _mm256_min_epu32(least, keys[i]);
    __m128i four = _mm_min_epu32(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
  }
  WS_TARGET inline void Set(std::uint64_t lanes, std::uint32_t key) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i value = _mm256_set1_epi32(static_cast<int>(key));
    const int at = lanes != 0 ? std::countr_zero(lanes) : -1;
    WS_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const __m256i wanted = _mm256_set1_epi32(at - 8 * i);
      keys[i] = _mm256_blendv_epi8(keys[i], value, _mm256_cmpeq_epi32(numbers, wanted));
    }
  }
};
// Which of four entries are of the pair in each lane of `wanted`.
WS_TARGET inline unsigned Matches(const std::uint64_t* entries, __m256i wanted) {
  const __m256i found = _mm256_load_si256(reinterpret_cast<const __m256i*>(entries));
  return static_cast<unsigned>(_mm256_movemask_pd(_mm256_castsi256_pd(
      _mm256_cmpeq_epi64(_mm256_srli_epi64(found, PairTable::kRankBits), wanted))));
}
WS_TARGET inline std::uint32_t FindPair(const PairTable& pairs, std::uint64_t pair) {
  const __m256i wanted = _mm256_set1_epi64x(static_cast<long long>(pair));
  for (std::uint32_t line = LineOf(pairs.Hash(pair), pairs.LineCount());; line = pairs.Next(line)) {
    const PairTable::Line& entries = pairs.Lines()[line];
    const unsigned match =
        Matches(entries.entries, wanted) | (Matches(entries.entries + 4, wanted) << 4);
    const std::uint64_t entry = entries.entries[std::countr_zero(match | 0x80U)];
    const std::uint32_t none = AllOnesIf(match == 0);
    const std::uint32_t full =
        AllOnesIf(entries.entries[PairTable::kLineEntries - 1] != PairTable::kEmpty);
    if ((none & full) != 0) [[unlikely]]
      continue;
    return static_cast<std::uint32_t>(entry & 0xFFFFFF) | none;
  }
}
#include "engine/transform/merge_short_body.h"
#undef WS_TARGET
}  // namespace avx2

namespace avx512 {
#define WS_TARGET \
  __attribute__(( \
      target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")))
template <int kLanes>
struct Keys {
  static constexpr int kVectors = kLanes / 16;
  __m512i keys[kVectors];
  WS_TARGET inline void Load(const std::uint32_t* from) {
    WS_UNROLL
    for (std::size_t i = 0; i < kVectors; ++i) keys[i] = _mm512_load_si512(from + 16 * i);
  }
  WS_TARGET inline std::uint32_t Least() const {
    __m512i least = keys[0];
    WS_UNROLL
    for (int i = 1; i < kVectors; ++i) least = _mm512_min_epu32(least, keys[i]);
    const __m256i eight =
        _mm256_min_epu32(_mm512_castsi512_si256(least), _mm512_extracti64x4_epi64(least, 1));
    __m128i four = _mm_min_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_min_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
  }
  WS_TARGET inline void Set(std::uint64_t lanes, std::uint32_t key) {
    WS_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      keys[i] = _mm512_mask_set1_epi32(keys[i], static_cast<__mmask16>(lanes >> (16 * i)),
                                       static_cast<int>(key));
    }
  }
};
WS_TARGET inline std::uint32_t FindPair(const PairTable& pairs, std::uint64_t pair) {
  const __m512i wanted = _mm512_set1_epi64(static_cast<long long>(pair));
  for (std::uint32_t line = LineOf(pairs.Hash(pair), pairs.LineCount());; line = pairs.Next(line)) {
    const PairTable::Line& entries = pairs.Lines()[line];
    const __m512i found = _mm512_load_si512(entries.entries);
    const unsigned match =
        _mm512_cmpeq_epi64_mask(_mm512_srli_epi64(found, PairTable::kRankBits), wanted);
    const std::uint64_t entry = entries.entries[std::countr_zero(match | 0x80U)];
    const std::uint32_t none = AllOnesIf(match == 0);
    const std::uint32_t full =
        AllOnesIf(entries.entries[PairTable::kLineEntries - 1] != PairTable::kEmpty);
    if ((none & full) != 0) [[unlikely]]
      continue;
    return static_cast<std::uint32_t>(entry & 0xFFFFFF) | none;
  }
}
#include "engine/transform/merge_short_body.h"
#undef WS_TARGET
}  // namespace avx512
#endif

}  // namespace

Bpe::MergeShortFunction MergeShortFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::MergeShort;
  if (isa == Isa::kAvx2) return avx2::MergeShort;
#endif
  return portable::MergeShort;
}

}  // namespace widestream::internal
