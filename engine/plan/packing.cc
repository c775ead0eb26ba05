#include "engine/plan/packing.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

namespace widestream {

Packing PackRows(std::span<const std::uint32_t> lengths, std::size_t carried, std::uint32_t rows,
                 std::uint32_t row_tokens) {
  Packing packing;
  packing.rows.resize(rows);
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto longest_first = [&](std::uint32_t a, std::uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  };
  const auto border = order.begin() + static_cast<std::ptrdiff_t>(carried);
  std::sort(order.begin(), border, longest_first);
  std::sort(border, order.end(), longest_first);

  // Rows that hold something, by (free tokens, number): the fullest with room is the first that is
  // not smaller than the piece. Untouched rows are alike, so only the first of them matters.
  std::set<std::pair<std::uint32_t, std::uint32_t>> open;
  std::uint32_t untouched = 0;
  for (const std::uint32_t piece : order) {
    const std::uint32_t length = lengths[piece];
    std::uint32_t row = 0;
    std::uint32_t free = row_tokens;
    const auto fit = open.lower_bound({length, 0});
    if (fit != open.end()) {
      std::tie(free, row) = *fit;
      auto node = open.extract(fit);
      packing.rows[row].push_back(piece);
      if (free > length) {
        node.value() = {free - length, row};
        open.insert(std::move(node));
      }
      continue;
    }
    if (untouched == rows || length > row_tokens) {
      packing.left.push_back(piece);
      continue;
    }
    row = untouched++;
    packing.rows[row].push_back(piece);
    if (free > length) open.insert({free - length, row});
  }
  std::sort(packing.left.begin(), packing.left.end());
  return packing;
}

}  // namespace widestream
