#include "engine/transform/word_scanner.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/transform/characters.h"

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// A false alarm in the compiler's own header, GCC bug 105593.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace widestream::internal {
namespace {

// One bit a byte; every byte of a character has the bits of its class.
struct Masks {
  std::uint64_t letter;  // in o200k also marks
  std::uint64_t number;
  std::uint64_t space;     // white space
  std::uint64_t other;     // none of these
  std::uint64_t blank;     // ' '
  std::uint64_t line_end;  // \r \n
  std::uint64_t apostrophe;
  std::uint64_t slash;
  std::uint64_t upper;
  std::uint64_t lower;
  std::uint64_t non_ascii;     // not yet in any mask
  std::uint64_t continuation;  // second and further bytes of characters
  std::uint64_t mark;
};

// Adds the characters outside ASCII. `kCased`: marks count as letters, and cases are told.
template <bool kCased>
__attribute__((noinline)) void ClassifyNonAscii(const char* p, const char* end, Masks* masks) {
  Masks m = *masks;
  std::uint64_t left = m.non_ascii;
  while (left != 0) {
    const int at = std::countr_zero(left);
    const Character character = DecodeLong(p + at, end);
    const std::uint64_t bytes = (std::uint64_t{1} << character.bytes) - 1;
    const std::uint64_t bits = bytes << at;
    left &= ~bits;
    m.continuation |= bits & ~(std::uint64_t{1} << at);
    switch (character.character_class) {
      case CharacterClass::kUpper:
        m.letter |= bits;
        if (kCased) m.upper |= bits;
        break;
      case CharacterClass::kLower:
        m.letter |= bits;
        if (kCased) m.lower |= bits;
        break;
      case CharacterClass::kLetter:
        m.letter |= bits;
        break;
      case CharacterClass::kMark:
        if (kCased) {
          m.letter |= bits;
          m.mark |= bits;
        } else {
          m.other |= bits;
        }
        break;
      case CharacterClass::kNumber:
        m.number |= bits;
        break;
      case CharacterClass::kSpace:
        m.space |= bits;
        break;
      default:
        m.other |= bits;
    }
  }
  *masks = m;
}

inline std::size_t EmitBits(std::uint64_t bits, std::uint32_t base, std::uint32_t* ends) {
  std::size_t count = 0;
  do {
    ends[count++] = base + static_cast<std::uint32_t>(std::countr_zero(bits));
    bits &= bits - 1;
  } while (bits != 0);
  return count;
}

namespace portable {
#define WS_TARGET
struct Block {
  const char* p;
};
inline Block Load(const char* p) { return {p}; }
inline std::size_t Emit(std::uint64_t bits, std::uint32_t base, std::uint32_t* ends) {
  return EmitBits(bits, base, ends);
}
Masks Classify(const Block& block) {
  Masks m = {};
  for (unsigned i = 0; i < 64; ++i) {
    const auto b = static_cast<unsigned char>(block.p[i]);
    const std::uint64_t bit = std::uint64_t{1} << i;
    const auto add = [bit](std::uint64_t* mask, bool in) { *mask |= in ? bit : 0; };
    const std::uint8_t c = kByteClasses[b];
    add(&m.upper, c == static_cast<std::uint8_t>(CharacterClass::kUpper));
    add(&m.lower, c == static_cast<std::uint8_t>(CharacterClass::kLower));
    add(&m.number, c == static_cast<std::uint8_t>(CharacterClass::kNumber));
    add(&m.space, c == static_cast<std::uint8_t>(CharacterClass::kSpace));
    add(&m.non_ascii, c == kNotAscii);
    add(&m.blank, b == ' ');
    add(&m.line_end, b == '\n' || b == '\r');
    add(&m.apostrophe, b == '\'');
    add(&m.slash, b == '/');
  }
  m.letter = m.upper | m.lower;
  m.other = ~(m.letter | m.number | m.space | m.non_ascii);
  return m;
}
#include "engine/transform/word_scanner_body.h"
#undef WS_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#define WS_TARGET __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
struct Block {
  __m256i low;
  __m256i high;
};
WS_TARGET inline Block Load(const char* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
WS_TARGET inline std::uint64_t Bits(__m256i low, __m256i high) {
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
         (static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32);
}
WS_TARGET inline std::uint64_t Equal(const Block& b, char c) {
  const __m256i wanted = _mm256_set1_epi8(c);
  return Bits(_mm256_cmpeq_epi8(b.low, wanted), _mm256_cmpeq_epi8(b.high, wanted));
}
// Bytes from `first` to `first + more`.
WS_TARGET inline std::uint64_t Between(const Block& b, char first, char more) {
  const __m256i low = _mm256_sub_epi8(b.low, _mm256_set1_epi8(first));
  const __m256i high = _mm256_sub_epi8(b.high, _mm256_set1_epi8(first));
  const __m256i limit = _mm256_set1_epi8(more);
  return Bits(_mm256_cmpeq_epi8(_mm256_min_epu8(low, limit), low),
              _mm256_cmpeq_epi8(_mm256_min_epu8(high, limit), high));
}
WS_TARGET inline std::size_t Emit(std::uint64_t bits, std::uint32_t base, std::uint32_t* ends) {
  return EmitBits(bits, base, ends);
}
WS_TARGET inline Masks Classify(const Block& b) {
  Masks m = {};
  m.upper = Between(b, 'A', 25);
  m.lower = Between(b, 'a', 25);
  m.letter = m.upper | m.lower;
  m.number = Between(b, '0', 9);
  m.blank = Equal(b, ' ');
  m.space = Between(b, '\t', 4) | m.blank;
  m.line_end = Equal(b, '\n') | Equal(b, '\r');
  m.apostrophe = Equal(b, '\'');
  m.slash = Equal(b, '/');
  m.non_ascii = Bits(b.low, b.high);
  m.other = ~(m.letter | m.number | m.space | m.non_ascii);
  return m;
}
#include "engine/transform/word_scanner_body.h"
#undef WS_TARGET
}  // namespace avx2

namespace avx512 {
#define WS_TARGET \
  __attribute__(( \
      target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,bmi2,lzcnt,popcnt")))
using Block = __m512i;
WS_TARGET inline Block Load(const char* p) { return _mm512_loadu_si512(p); }
WS_TARGET inline std::uint64_t Equal(Block b, char c) {
  return _mm512_cmpeq_epi8_mask(b, _mm512_set1_epi8(c));
}
WS_TARGET inline std::uint64_t Between(Block b, char first, char more) {
  return _mm512_cmple_epu8_mask(_mm512_sub_epi8(b, _mm512_set1_epi8(first)),
                                _mm512_set1_epi8(more));
}
WS_TARGET inline std::size_t Emit(std::uint64_t bits, std::uint32_t base, std::uint32_t* ends) {
  alignas(64) static constexpr unsigned char kIndex[64] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
      22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
      44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const __m512i at = _mm512_maskz_compress_epi8(bits, _mm512_load_si512(kIndex));
  const __m512i offset = _mm512_set1_epi32(static_cast<int>(base));
  const auto count = static_cast<std::size_t>(std::popcount(bits));
  _mm512_storeu_si512(ends,
                      _mm512_add_epi32(offset, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(at))));
  if (count > 16) {
    _mm512_storeu_si512(
        ends + 16,
        _mm512_add_epi32(offset, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(at, 1))));
    if (count > 32) {
      _mm512_storeu_si512(
          ends + 32,
          _mm512_add_epi32(offset, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(at, 2))));
      _mm512_storeu_si512(
          ends + 48,
          _mm512_add_epi32(offset, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(at, 3))));
    }
  }
  return count;
}
WS_TARGET inline Masks Classify(Block b) {
  Masks m = {};
  m.upper = Between(b, 'A', 25);
  m.lower = Between(b, 'a', 25);
  m.letter = m.upper | m.lower;
  m.number = Between(b, '0', 9);
  m.blank = Equal(b, ' ');
  m.space = Between(b, '\t', 4) | m.blank;
  m.line_end = Equal(b, '\n') | Equal(b, '\r');
  m.apostrophe = Equal(b, '\'');
  m.slash = Equal(b, '/');
  m.non_ascii = static_cast<std::uint64_t>(_mm512_movepi8_mask(b));
  m.other = ~(m.letter | m.number | m.space | m.non_ascii);
  return m;
}
#include "engine/transform/word_scanner_body.h"
#undef WS_TARGET
}  // namespace avx512
#endif

template <Pattern kPattern>
ScanWordsFunction FunctionFor(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::ScanWords<kPattern>;
  if (isa == Isa::kAvx2) return avx2::ScanWords<kPattern>;
#endif
  return portable::ScanWords<kPattern>;
}

// Words one by one, for the patterns without masks.
template <Pattern kPattern>
std::size_t ScanOneByOne(const char* p, const char* end, std::uint32_t* ends,
                         std::size_t capacity) {
  const char* const base = p;
  std::size_t count = 0;
  for (; p != end && count < capacity; ++count) {
    p = WordEnd(kPattern, p, end);
    ends[count] = static_cast<std::uint32_t>(p - base);
  }
  return count;
}

}  // namespace

ScanWordsFunction ScanWordsFor(Pattern pattern, Isa isa) {
  switch (pattern) {
    case Pattern::kGpt2:
      return FunctionFor<Pattern::kGpt2>(isa);
    case Pattern::kCl100k:
      return FunctionFor<Pattern::kCl100k>(isa);
    case Pattern::kCl100kLineEnd:
      return FunctionFor<Pattern::kCl100kLineEnd>(isa);
    case Pattern::kO200k:
      return FunctionFor<Pattern::kO200k>(isa);
    case Pattern::kQwen2:
      return FunctionFor<Pattern::kQwen2>(isa);
    case Pattern::kDeepSeek3:
      return ScanOneByOne<Pattern::kDeepSeek3>;
  }
  return nullptr;
}

}  // namespace widestream::internal
