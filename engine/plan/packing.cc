#include "engine/plan/packing.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/plan/cost_order.h"

namespace widestream {
namespace {

// Rows that hold something and have room, found by their free tokens: the fullest that has room for
// a piece, ties by row number. Two forms with the same answers.
//
// By every number of free tokens: its rows, the least first, and three levels of bits that say
// which numbers have any. Finding one is a few word operations.
class RowsByFreeTokens {
 public:
  explicit RowsByFreeTokens(std::uint32_t row_tokens) : rows_(std::size_t{row_tokens} + 1) {
    std::size_t bits = rows_.size();
    do {
      bits = (bits + 63) / 64;
      levels_.emplace_back(bits, 0);
    } while (bits > 1);
  }

  // Takes the row out. kNoRow if none has room.
  std::uint32_t Take(std::uint32_t length, std::uint32_t* free) {
    if (!FirstFrom(length, free)) return kNoRow;
    std::vector<std::uint32_t>& rows = rows_[*free];
    const std::uint32_t row = rows.front();
    std::pop_heap(rows.begin(), rows.end(), std::greater<>());
    rows.pop_back();
    std::size_t at = *free;
    for (std::size_t level = 0; rows.empty() && level < levels_.size(); ++level, at /= 64) {
      std::uint64_t& word = levels_[level][at / 64];
      word &= ~(std::uint64_t{1} << at % 64);
      if (word != 0) break;
    }
    return row;
  }

  void Put(std::uint32_t free, std::uint32_t row) {
    rows_[free].push_back(row);
    std::push_heap(rows_[free].begin(), rows_[free].end(), std::greater<>());
    std::size_t at = free;
    for (std::vector<std::uint64_t>& level : levels_) {
      level[at / 64] |= std::uint64_t{1} << at % 64;
      at /= 64;
    }
  }

 private:
  // The first number from `length` on that has rows.
  bool FirstFrom(std::uint32_t length, std::uint32_t* free) const {
    std::size_t at = length;
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      if (at / 64 >= levels_[level].size()) return false;
      const std::uint64_t word = levels_[level][at / 64] >> at % 64;
      if (word != 0) {
        at += static_cast<std::size_t>(std::countr_zero(word));
        for (; level > 0; --level) {
          at = 64 * at + static_cast<std::size_t>(std::countr_zero(levels_[level - 1][at]));
        }
        *free = static_cast<std::uint32_t>(at);
        return true;
      }
      at = at / 64 + 1;
    }
    return false;
  }

  std::vector<std::vector<std::uint32_t>> rows_;
  std::vector<std::vector<std::uint64_t>> levels_;
};

// By a search tree, where a list a number would be more lists than pieces.
class RowsInTree {
 public:
  std::uint32_t Take(std::uint32_t length, std::uint32_t* free) {
    const auto fit = open_.lower_bound({length, 0});
    if (fit == open_.end()) return kNoRow;
    std::uint32_t row = 0;
    std::tie(*free, row) = *fit;
    open_.erase(fit);
    return row;
  }
  void Put(std::uint32_t free, std::uint32_t row) { open_.emplace(free, row); }

 private:
  std::set<std::pair<std::uint32_t, std::uint32_t>> open_;
};

// Pieces in the order of placement, and the row of each, kNoRow for those without room.
struct Placement {
  std::vector<std::uint32_t> pieces;
  std::vector<std::uint32_t> rows;
  std::vector<std::uint32_t> row_pieces;  // pieces of each row
};

void AppendLongestFirst(std::span<const std::uint32_t> lengths, std::size_t begin, std::size_t end,
                        std::vector<std::uint32_t>* order) {
  if (begin == end) return;
  const std::span<const std::uint32_t> group = lengths.subspan(begin, end - begin);
  const std::uint32_t longest = *std::max_element(group.begin(), group.end());
  if (longest <= group.size()) {  // a counter for each length
    std::vector<std::uint32_t> places(std::size_t{longest} + 1, 0);
    for (const std::uint32_t length : group) ++places[longest - length];
    std::uint32_t before = static_cast<std::uint32_t>(order->size());
    order->resize(order->size() + group.size());
    for (std::uint32_t& place : places) before += std::exchange(place, before);
    for (std::size_t i = 0; i < group.size(); ++i) {
      (*order)[places[longest - group[i]]++] = static_cast<std::uint32_t>(begin + i);
    }
    return;
  }
  const std::vector<std::uint64_t> wide(group.begin(), group.end());
  for (const std::uint32_t piece : OrderByCost(wide).atoms) {
    order->push_back(static_cast<std::uint32_t>(begin) + piece);
  }
}

template <typename OpenRows>
Placement Place(std::span<const std::uint32_t> lengths, std::size_t carried, std::uint32_t rows,
                std::uint32_t row_tokens, OpenRows open) {
  Placement placement;
  placement.pieces.reserve(lengths.size());
  AppendLongestFirst(lengths, 0, carried, &placement.pieces);
  AppendLongestFirst(lengths, carried, lengths.size(), &placement.pieces);
  placement.rows.resize(lengths.size());
  placement.row_pieces.assign(rows, 0);
  // Untouched rows are alike, so only the first of them matters.
  std::uint32_t untouched = 0;
  const std::size_t count = lengths.size();
  for (std::size_t i = 0; i < count;) {
    const std::uint32_t length = lengths[placement.pieces[i]];
    std::uint32_t free = row_tokens;
    std::uint32_t row = open.Take(length, &free);
    if (row == kNoRow && untouched != rows && length <= row_tokens) row = untouched++;
    if (row == kNoRow) {
      placement.rows[i++] = kNoRow;
      continue;
    }
    // It was the fullest with room, so as long as it has room for pieces of the same length they
    // go there, too.
    const std::size_t border = i < carried ? carried : count;
    do {
      placement.rows[i++] = row;
      ++placement.row_pieces[row];
      free -= length;
    } while (free >= length && i < border && lengths[placement.pieces[i]] == length);
    if (free > 0) open.Put(free, row);
  }
  return placement;
}

Placement PlaceAll(std::span<const std::uint32_t> lengths, std::size_t carried, std::uint32_t rows,
                   std::uint32_t row_tokens) {
  constexpr std::uint32_t kShortRow = 1U << 12;
  if (row_tokens <= kShortRow || row_tokens <= lengths.size()) {
    return Place(lengths, carried, rows, row_tokens, RowsByFreeTokens(row_tokens));
  }
  return Place(lengths, carried, rows, row_tokens, RowsInTree());
}

}  // namespace

std::vector<std::uint32_t> RowsOfPieces(std::span<const std::uint32_t> lengths, std::size_t carried,
                                        std::uint32_t rows, std::uint32_t row_tokens) {
  const Placement placement = PlaceAll(lengths, carried, rows, row_tokens);
  std::vector<std::uint32_t> row_of(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) row_of[placement.pieces[i]] = placement.rows[i];
  return row_of;
}

Packing PackRows(std::span<const std::uint32_t> lengths, std::size_t carried, std::uint32_t rows,
                 std::uint32_t row_tokens) {
  const Placement placement = PlaceAll(lengths, carried, rows, row_tokens);
  Packing packing;
  packing.rows.resize(rows);
  for (std::uint32_t row = 0; row < rows; ++row) {
    packing.rows[row].reserve(placement.row_pieces[row]);
  }
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (placement.rows[i] == kNoRow) {
      packing.left.push_back(placement.pieces[i]);
    } else {
      packing.rows[placement.rows[i]].push_back(placement.pieces[i]);
    }
  }
  std::sort(packing.left.begin(), packing.left.end());
  return packing;
}

}  // namespace widestream
