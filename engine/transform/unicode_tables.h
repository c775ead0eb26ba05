// The class of a code point for the pre-tokenizers: \p{L}, \p{N}, \s or none of them.
#pragma once

#include <cstdint>

namespace widestream::internal {

enum class CharacterClass : std::uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

// The check knows k-names only for constexpr, which a table in another file cannot be.
// NOLINTBEGIN(readability-identifier-naming)
extern const char kUnicodeVersion[];
extern const std::uint8_t kUnicodeBlockIndex[];
extern const std::uint8_t kUnicodeBlocks[];
// NOLINTEND(readability-identifier-naming)

// `code_point` must be below 0x110000.
inline CharacterClass ClassOfCodePoint(std::uint32_t code_point) {
  const std::uint32_t block = kUnicodeBlockIndex[code_point >> 8];
  const std::uint32_t packed = kUnicodeBlocks[block * 64 + ((code_point & 255) >> 2)];
  return static_cast<CharacterClass>((packed >> ((code_point & 3) * 2)) & 3);
}

}  // namespace widestream::internal
