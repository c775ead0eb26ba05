// Pieces into rows of a fixed number of tokens; docs/stream.md section 4, "rows".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace widestream {

struct Packing {
  std::vector<std::vector<std::uint32_t>> rows;  // indices of pieces in order of placement
  std::vector<std::uint32_t> left;               // found no room; ascending
};

// Packs pieces of `lengths` tokens (each at most `row_tokens`) into `rows` rows: the first
// `carried` of them first, then the rest, each group longest first (ties by index), each into the
// fullest row that has room (ties by row number). O(n log n).
Packing PackRows(std::span<const std::uint32_t> lengths, std::size_t carried, std::uint32_t rows,
                 std::uint32_t row_tokens);

// The same as the row of each piece, kNoRow for those without room: without a list a row, which
// with short rows takes as long as the search.
inline constexpr std::uint32_t kNoRow = 0xFFFFFFFF;
std::vector<std::uint32_t> RowsOfPieces(std::span<const std::uint32_t> lengths, std::size_t carried,
                                        std::uint32_t rows, std::uint32_t row_tokens);

}  // namespace widestream
