#include "engine/plan/packing.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/rng.h"

namespace widestream {
namespace {

using Rows = std::vector<std::vector<std::uint32_t>>;

TEST(PackRows, LongestFirstIntoTheFullestRowThatHasRoom) {
  const std::vector<std::uint32_t> lengths = {3, 6, 4, 7, 2};
  const Packing packing = PackRows(lengths, 0, 3, 10);
  // 7 -> row 0; 6 -> row 1; 4 -> row 1 (the only one with room and content); 3 -> row 0; 2 ->
  // row 2.
  EXPECT_EQ(packing.rows, (Rows{{3, 0}, {1, 2}, {4}}));
  EXPECT_TRUE(packing.left.empty());
}

TEST(PackRows, CarriedPiecesComeFirst) {
  const std::vector<std::uint32_t> lengths = {2, 9, 8};
  const Packing packing = PackRows(lengths, 1, 2, 10);
  EXPECT_EQ(packing.rows, (Rows{{0, 2}, {1}}));
}

TEST(PackRows, TiesGoByPieceAndByRow) {
  const std::vector<std::uint32_t> lengths = {5, 5, 5, 5};
  EXPECT_EQ(PackRows(lengths, 0, 2, 10).rows, (Rows{{0, 1}, {2, 3}}));
  const std::vector<std::uint32_t> two_rows = {6, 6, 4};
  EXPECT_EQ(PackRows(two_rows, 0, 2, 10).rows, (Rows{{0, 2}, {1}}));
}

TEST(PackRows, WhatFindsNoRoomIsLeft) {
  const std::vector<std::uint32_t> lengths = {6, 6, 6};
  const Packing packing = PackRows(lengths, 0, 2, 10);
  EXPECT_EQ(packing.rows, (Rows{{0}, {1}}));
  EXPECT_EQ(packing.left, std::vector<std::uint32_t>{2});
}

TEST(PackRows, RowsWithoutPiecesStayEmpty) {
  EXPECT_EQ(PackRows({}, 0, 2, 10).rows, (Rows{{}, {}}));
}

// The same by trying every row, on random lengths.
TEST(PackRows, EqualsTheDefinition) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::uint32_t rows = 1 + static_cast<std::uint32_t>(RandomBelow(8, seed, 0, 0, 0));
    const std::uint32_t capacity = 1 + static_cast<std::uint32_t>(RandomBelow(30, seed, 0, 0, 1));
    std::vector<std::uint32_t> lengths(RandomBelow(40, seed, 0, 0, 2));
    for (std::uint64_t i = 0; i < lengths.size(); ++i) {
      lengths[i] = 1 + static_cast<std::uint32_t>(RandomBelow(capacity, seed, 1, 0, i));
    }
    const std::size_t carried = RandomBelow(lengths.size() + 1, seed, 0, 0, 3);
    Rows expected(rows);
    std::vector<std::uint32_t> free(rows, capacity);
    std::vector<std::uint32_t> left;
    std::vector<bool> placed(lengths.size(), false);
    for (std::size_t n = 0; n < lengths.size(); ++n) {
      const bool first_group = n < carried;
      std::uint32_t next = UINT32_MAX;
      for (std::uint32_t i = 0; i < lengths.size(); ++i) {
        if (placed[i] || (i < carried) != first_group) continue;
        if (next == UINT32_MAX || lengths[i] > lengths[next]) next = i;
      }
      placed[next] = true;
      std::uint32_t row = UINT32_MAX;
      for (std::uint32_t r = 0; r < rows; ++r) {
        if (free[r] >= lengths[next] && (row == UINT32_MAX || free[r] < free[row])) row = r;
      }
      if (row == UINT32_MAX) {
        left.push_back(next);
        continue;
      }
      free[row] -= lengths[next];
      expected[row].push_back(next);
    }
    std::sort(left.begin(), left.end());
    const Packing packing = PackRows(lengths, carried, rows, capacity);
    EXPECT_EQ(packing.rows, expected) << seed;
    EXPECT_EQ(packing.left, left) << seed;
  }
}

// The definition with a search tree of the open rows, for sizes where trying every row is too slow.
Packing PackByTree(const std::vector<std::uint32_t>& lengths, std::size_t carried,
                   std::uint32_t rows, std::uint32_t capacity) {
  std::vector<std::uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto longer = [&](std::uint32_t a, std::uint32_t b) {
    return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : a < b;
  };
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(carried), longer);
  std::sort(order.begin() + static_cast<std::ptrdiff_t>(carried), order.end(), longer);
  std::set<std::pair<std::uint32_t, std::uint32_t>> open;
  for (std::uint32_t row = 0; row < rows; ++row) open.emplace(capacity, row);
  Packing packing;
  packing.rows.resize(rows);
  for (const std::uint32_t piece : order) {
    const auto fit = open.lower_bound({lengths[piece], 0});
    if (fit == open.end()) {
      packing.left.push_back(piece);
      continue;
    }
    const auto [free, row] = *fit;
    open.erase(fit);
    packing.rows[row].push_back(piece);
    open.emplace(free - lengths[piece], row);
  }
  std::sort(packing.left.begin(), packing.left.end());
  return packing;
}

// Rows on both sides of the border between the two forms of search, from few pieces of long rows to
// many of short ones, with many equal lengths and with hardly any.
RC_GTEST_PROP(PackRows, EqualsTheDefinitionAtEveryScale, ()) {
  const auto draw = [](std::uint64_t low, std::uint64_t high) {
    return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::uint64_t>(low, high + 1));
  };
  const auto capacity = static_cast<std::uint32_t>(std::uint64_t{1} << draw(0, 17)) +
                        static_cast<std::uint32_t>(draw(0, 70));
  const std::uint64_t count = draw(0, 3000);
  const std::uint64_t longest = draw(1, capacity);
  const std::uint64_t seed = draw(0, 1U << 30);
  std::vector<std::uint32_t> lengths(count);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    lengths[i] = 1 + static_cast<std::uint32_t>(RandomBelow(longest, seed, 1, 0, i));
    sum += lengths[i];
  }
  const auto rows = static_cast<std::uint32_t>(1 + sum / capacity + draw(0, 3));
  const std::size_t carried = draw(0, count);
  const Packing expected = PackByTree(lengths, carried, rows, capacity);
  const Packing packing = PackRows(lengths, carried, rows, capacity);
  RC_ASSERT(packing.rows == expected.rows);
  RC_ASSERT(packing.left == expected.left);
  std::vector<std::uint32_t> row_of(count, kNoRow);
  for (std::uint32_t row = 0; row < rows; ++row) {
    for (const std::uint32_t piece : packing.rows[row]) row_of[piece] = row;
  }
  RC_ASSERT(RowsOfPieces(lengths, carried, rows, capacity) == row_of);
}

}  // namespace
}  // namespace widestream
