// The class of a code point for the pre-tokenizers.
#pragma once

#include <cstdint>

namespace widestream::internal {

// General categories, as far as a published pattern tells them apart. White space is what \s
// matches, whatever its category.
enum class CharacterClass : std::uint8_t {
  kOther = 0,        // control, format, private use, unassigned
  kUpper = 1,        // Lu, Lt
  kLower = 2,        // Ll
  kLetter = 3,       // Lm, Lo
  kMark = 4,         // M
  kNumber = 5,       // N
  kSpace = 6,        // \s
  kPunctuation = 7,  // P
  kSymbol = 8,       // S
};

// A set of classes as bits.
using ClassSet = std::uint32_t;
constexpr ClassSet SetOf(CharacterClass c) { return ClassSet{1} << static_cast<unsigned>(c); }
template <typename... Classes>
constexpr ClassSet SetOf(CharacterClass first, Classes... more) {
  return SetOf(first) | (SetOf(more) | ...);
}

// The check knows k-names only for constexpr, which a table in another file cannot be.
// NOLINTBEGIN(readability-identifier-naming)
extern const char kUnicodeVersion[];
// The number of the block of code points [64 i, 64 i + 64).
extern const std::uint16_t kUnicodeBlockIndex[];
// The classes of a block's code points.
extern const std::uint8_t kUnicodeBlocks[];
// NOLINTEND(readability-identifier-naming)

// `code_point` must be below 0x110000.
inline CharacterClass ClassOfCodePoint(std::uint32_t code_point) {
  const std::uint32_t block = kUnicodeBlockIndex[code_point >> 6];
  return static_cast<CharacterClass>(kUnicodeBlocks[block * 64 + (code_point & 63)]);
}

}  // namespace widestream::internal
