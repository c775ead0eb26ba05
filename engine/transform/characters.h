// Characters of UTF-8 text and their classes.
#pragma once

#include <array>
#include <cstdint>

#include "engine/transform/unicode_tables.h"

namespace widestream::internal {

struct Character {
  CharacterClass character_class;
  std::uint32_t bytes;
};

// The class of a byte below 0x80; kNotAscii above.
inline constexpr std::uint8_t kNotAscii = 15;
constexpr std::array<std::uint8_t, 256> MakeByteClasses() {
  std::array<std::uint8_t, 256> table{};
  for (unsigned b = 0; b < 256; ++b) {
    CharacterClass c = CharacterClass::kPunctuation;
    if (b < 0x20 || b == 0x7F) c = CharacterClass::kOther;
    for (const char symbol : {'$', '+', '<', '=', '>', '^', '`', '|', '~'}) {
      if (b == static_cast<unsigned char>(symbol)) c = CharacterClass::kSymbol;
    }
    if (b >= 'a' && b <= 'z') c = CharacterClass::kLower;
    if (b >= 'A' && b <= 'Z') c = CharacterClass::kUpper;
    if (b >= '0' && b <= '9') c = CharacterClass::kNumber;
    if (b == ' ' || (b >= '\t' && b <= '\r')) c = CharacterClass::kSpace;
    table[b] = b < 0x80 ? static_cast<std::uint8_t>(c) : kNotAscii;
  }
  return table;
}
inline constexpr std::array<std::uint8_t, 256> kByteClasses = MakeByteClasses();

inline bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

// The character at p, whose first byte is 0x80 or above. A byte that is not part of a well-formed
// UTF-8 sequence (RFC 3629) is a character of class kOther.
inline Character DecodeLong(const char* p, const char* end) {
  constexpr Character kBadByte{CharacterClass::kOther, 1};
  const auto byte = [p](int i) -> std::uint32_t { return static_cast<unsigned char>(p[i]); };
  const auto class_of = [](std::uint32_t block, std::uint32_t last) {
    return static_cast<CharacterClass>(
        kUnicodeBlocks[std::uint32_t{kUnicodeBlockIndex[block]} * 64 + (last & 0x3FU)]);
  };
  const std::uint32_t first = byte(0);
  if (first < 0xE0) {
    if (first < 0xC2 || end - p < 2 || !IsContinuation(p[1])) return kBadByte;
    return {class_of(first & 0x1FU, byte(1)), 2};
  }
  if (first < 0xF0) {
    if (end - p < 3 || !IsContinuation(p[1]) || !IsContinuation(p[2])) return kBadByte;
    const std::uint32_t block = ((first & 0x0FU) << 6) | (byte(1) & 0x3FU);
    // Overlong forms and surrogates.
    if (block < 0x20 || (block >= 0x360 && block < 0x380)) return kBadByte;
    return {class_of(block, byte(2)), 3};
  }
  if (first > 0xF4 || end - p < 4 || !IsContinuation(p[1]) || !IsContinuation(p[2]) ||
      !IsContinuation(p[3])) {
    return kBadByte;
  }
  const std::uint32_t block =
      ((first & 0x07U) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU);
  if (block < 0x400 || block > 0x43FF) return kBadByte;
  return {class_of(block, byte(3)), 4};
}

// p < end.
inline Character CharacterAt(const char* p, const char* end) {
  const std::uint8_t c = kByteClasses[static_cast<unsigned char>(*p)];
  if (c != kNotAscii) return {static_cast<CharacterClass>(c), 1};
  return DecodeLong(p, end);
}

inline bool IsLineEnd(char c) { return c == '\r' || c == '\n'; }

inline constexpr ClassSet kLetterClasses =
    SetOf(CharacterClass::kUpper, CharacterClass::kLower, CharacterClass::kLetter);
inline constexpr ClassSet kSpaceClasses = SetOf(CharacterClass::kSpace);
inline constexpr ClassSet kNumberClasses = SetOf(CharacterClass::kNumber);
// What is no letter, number or white space.
inline constexpr ClassSet kOtherClasses =
    SetOf(CharacterClass::kOther, CharacterClass::kMark, CharacterClass::kPunctuation,
          CharacterClass::kSymbol);

inline bool IsIn(CharacterClass c, ClassSet set) {
  return ((set >> static_cast<unsigned>(c)) & 1U) != 0;
}

// The end of the longest run of characters of a class in `wanted` from p on.
inline const char* SkipRun(const char* p, const char* end, ClassSet wanted) {
  while (p != end) {
    const Character character = CharacterAt(p, end);
    if (!IsIn(character.character_class, wanted)) break;
    p += character.bytes;
  }
  return p;
}

// The end of 's, 't, 'm, 'd, 're, 've or 'll at p, which holds an apostrophe; null when none is
// there. In any case the long s (U+017F) also folds to s.
template <bool kAnyCase>
inline const char* ContractionEnd(const char* p, const char* end) {
  if (end - p < 2) return nullptr;
  const auto lower = [p](int i) { return kAnyCase ? static_cast<char>(p[i] | 0x20) : p[i]; };
  switch (lower(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return p + 2;
    case 'r':
    case 'v':
      return end - p >= 3 && lower(2) == 'e' ? p + 3 : nullptr;
    case 'l':
      return end - p >= 3 && lower(2) == 'l' ? p + 3 : nullptr;
    default:
      break;
  }
  if (kAnyCase && end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  return nullptr;
}

}  // namespace widestream::internal
