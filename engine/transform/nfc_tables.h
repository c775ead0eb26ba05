// What normalization to NFC knows of code points.
#pragma once

#include <cstddef>
#include <cstdint>

namespace widestream::internal {

struct NfcDecomposition {
  std::uint32_t code_point;
  std::uint16_t begin;  // in kNfcParts
  std::uint16_t count;
};
struct NfcComposition {
  std::uint32_t first;
  std::uint32_t second;
  std::uint32_t composite;
};

// The check knows k-names only for constexpr, which a table in another file cannot be.
// NOLINTBEGIN(readability-identifier-naming)
// The number of the block of code points [64 i, 64 i + 64), each of which has in kNfcProperties its
// combining class (8 bits), kNfcDecomposes if NFC never gives it, and kNfcMayComposeBack if it
// composes with what stands before it. 0: NFC leaves it and what stands before it alone.
extern const std::uint16_t kNfcBlockIndex[];
extern const std::uint16_t kNfcProperties[];
// Full canonical decompositions by code point, Hangul left out.
extern const std::size_t kNfcDecompositionCount;
extern const NfcDecomposition kNfcDecompositions[];
extern const std::uint32_t kNfcParts[];
// By first, then second; Hangul left out.
extern const std::size_t kNfcCompositionCount;
extern const NfcComposition kNfcCompositions[];
// NOLINTEND(readability-identifier-naming)

inline constexpr std::uint16_t kNfcDecomposes = 1 << 8;
inline constexpr std::uint16_t kNfcMayComposeBack = 1 << 9;

}  // namespace widestream::internal
