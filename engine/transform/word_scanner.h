// Finds the ends of many words at once, by bit masks of 64 bytes, with the words of
// pretokenizer.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/transform/isa.h"
#include "engine/transform/pretokenizer.h"

namespace widestream::internal {

// A call may write this many ends past the last one that it counts.
inline constexpr std::size_t kWordSlack = 65;

// Cuts [p, end), p < end and at most 2^32 - 1 bytes apart. Writes the ends of words, counted from
// p, to `ends` until `capacity` are there, or fewer if the text ends, and returns their number,
// which is above 0. `ends` has room for capacity + kWordSlack; capacity >= 64. The words up to the
// last end are those of WordEnd; the next call goes on there. Reads nothing outside [p, end).
using ScanWordsFunction = std::size_t (*)(const char* p, const char* end, std::uint32_t* ends,
                                          std::size_t capacity);
ScanWordsFunction ScanWordsFor(Pattern pattern, Isa isa);

}  // namespace widestream::internal
