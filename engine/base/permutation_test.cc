#include "engine/base/permutation.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace widestream {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

Permutation Make(std::uint64_t n, Key128 key) {
  Result<Permutation> made = Permutation::Make(n, key);
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return std::move(made).value();
}

std::vector<std::uint64_t> Order(std::uint64_t n, Key128 key) {
  const Permutation permutation = Make(n, key);
  std::vector<std::uint64_t> order;
  order.reserve(n);
  for (std::uint64_t i = 0; i < n; ++i) order.push_back(permutation.At(i));
  return order;
}

// A chi-square with `freedom` degrees exceeds this with probability below 1e-4 (Wilson-Hilferty).
// The keys are fixed, so a test either always passes or never.
double ChiSquareLimit(double freedom) {
  const double spread = 2.0 / (9.0 * freedom);
  return freedom * std::pow(1.0 - spread + 3.72 * std::sqrt(spread), 3);
}

double ChiSquare(const std::vector<double>& counts, double expected) {
  double sum = 0;
  for (const double count : counts) sum += (count - expected) * (count - expected) / expected;
  return sum;
}

// The golden values come from an independent Python implementation of the header's definition.
TEST(PermutationTest, DeriveKeyHasItsDefinedValues) {
  EXPECT_EQ(DeriveKey(0, 0, 0, "", 0),
            (Key128{.high = 0x9a026d96b3c0f0fc, .low = 0xa057271c9071c99d}));
  EXPECT_EQ(DeriveKey(42, 7, 3, "units", 0),
            (Key128{.high = 0xefbee5e07a8a329c, .low = 0x29947529ea0e2076}));
  EXPECT_EQ(DeriveKey(kMax, std::uint64_t{1} << 63, 1, "records", (std::uint64_t{1} << 40) - 1),
            (Key128{.high = 0x623d712bc1838173, .low = 0x95187f4a9bb5fc10}));
}

TEST(PermutationTest, HasItsDefinedOrder) {
  using Values = std::vector<std::uint64_t>;
  const Key128 key = DeriveKey(42, 7, 3, "units", 0);
  EXPECT_EQ(Order(1, key), (Values{0}));
  EXPECT_EQ(Order(2, key), (Values{1, 0}));
  EXPECT_EQ(Order(5, key), (Values{4, 3, 0, 2, 1}));
  EXPECT_EQ(Order(10, key), (Values{3, 4, 0, 7, 8, 6, 2, 5, 1, 9}));
  const std::map<std::uint64_t, Values> known = {
      {1'000'003, {157145, 85913, 608286, 58607, 959473}},
      {1'099'511'627'775, {1052144906350, 147781994216, 64464671799, 245823252228, 500836517675}},
      {1'099'511'627'776, {1052144906350, 147781994216, 64464671799, 820622610995, 1037208877306}}};
  for (const auto& [n, values] : known) {
    const Permutation permutation = Make(n, key);
    EXPECT_EQ((Values{permutation.At(0), permutation.At(1), permutation.At(2),
                      permutation.At(n / 2), permutation.At(n - 1)}),
              values);
  }
}

TEST(PermutationTest, IsABijectionWithItsInverseForEverySmallSize) {
  for (std::uint64_t key = 0; key < 3; ++key) {
    for (std::uint64_t n = 1; n <= 2000; ++n) {
      const Permutation permutation = Make(n, {.high = key * 0x1234567, .low = key});
      std::vector<bool> seen(n, false);
      for (std::uint64_t i = 0; i < n; ++i) {
        const std::uint64_t value = permutation.At(i);
        ASSERT_LT(value, n);
        ASSERT_FALSE(seen[value]) << "n " << n << " key " << key << " position " << i;
        seen[value] = true;
        ASSERT_EQ(permutation.Inverse(value), i);
      }
    }
  }
}

RC_GTEST_PROP(PermutationTest, LargeSizesStayInRangeAndInvert,
              (std::uint64_t size, std::uint64_t position, std::uint64_t high, std::uint64_t low)) {
  // Sizes of every magnitude, and those next to a square, where the two radices change.
  const std::uint64_t root = 1 + size % (std::uint64_t{1} << (1 + position % 20));
  for (const std::uint64_t n :
       {1 + size % Permutation::kMaxSize, root * root, std::max<std::uint64_t>(root * root - 1, 1),
        root * root + root, root * root + 1, Permutation::kMaxSize - 1, Permutation::kMaxSize}) {
    if (n > Permutation::kMaxSize) continue;
    const Permutation permutation = Make(n, {.high = high, .low = low});
    for (const std::uint64_t i : {position % n, n - 1, n / 2, std::uint64_t{0}}) {
      const std::uint64_t value = permutation.At(i);
      RC_ASSERT(value < n);
      RC_ASSERT(permutation.Inverse(value) == i);
      RC_ASSERT(permutation.At(permutation.Inverse(i)) == i);
    }
  }
}

TEST(PermutationTest, SizesOutsideTheRangeAreRefused) {
  for (const std::uint64_t n : {std::uint64_t{0}, Permutation::kMaxSize + 1, kMax}) {
    EXPECT_EQ(Permutation::Make(n, {}).status().code(), StatusCode::kInvalidArgument) << n;
  }
}

TEST(PermutationTest, PositionsOutsideMapToThemselves) {
  const Permutation permutation = Make(10, {.high = 1, .low = 2});
  for (const std::uint64_t i : {std::uint64_t{10}, std::uint64_t{11}, kMax}) {
    EXPECT_EQ(permutation.At(i), i);
    EXPECT_EQ(permutation.Inverse(i), i);
  }
}

// Over many keys every value must be as likely as any other at each position.
TEST(PermutationTest, EveryPositionTakesEveryValueEquallyOften) {
  for (const std::uint64_t n : {2, 3, 4, 7, 8, 10, 13, 16, 17, 32, 40}) {
    const std::uint64_t keys = 200 * n;
    std::vector<double> counts(n * n, 0.0);
    for (std::uint64_t index = 0; index < keys; ++index) {
      const std::vector<std::uint64_t> order = Order(n, DeriveKey(1, 2, 3, "bias", index));
      for (std::uint64_t i = 0; i < n; ++i) counts[i * n + order[i]] += 1;
    }
    const double freedom = static_cast<double>((n - 1) * (n - 1));
    EXPECT_LT(ChiSquare(counts, static_cast<double>(keys) / static_cast<double>(n)),
              // Rows and columns both have fixed sums, hence (n - 1)^2 degrees; the statistic over
              // such a table is scaled by (n - 1) / n.
              ChiSquareLimit(freedom) * static_cast<double>(n) / static_cast<double>(n - 1))
        << "n " << n;
  }
}

// The pair of values at two adjacent positions must be any ordered pair equally often.
TEST(PermutationTest, AdjacentPositionsAreIndependent) {
  for (const std::uint64_t n : {7, 10, 16, 20}) {
    const std::uint64_t pairs = n * (n - 1);
    const std::uint64_t keys = 60 * pairs;
    std::vector<double> counts(n * n, 0.0);
    for (std::uint64_t index = 0; index < keys; ++index) {
      const Permutation permutation = Make(n, DeriveKey(9, 8, 7, "pairs", index));
      const std::uint64_t i = index % (n - 1);
      counts[permutation.At(i) * n + permutation.At(i + 1)] += 1;
    }
    std::vector<double> off_diagonal;
    for (std::uint64_t cell = 0; cell < n * n; ++cell) {
      if (cell / n != cell % n) off_diagonal.push_back(counts[cell]);
    }
    EXPECT_LT(ChiSquare(off_diagonal, static_cast<double>(keys) / static_cast<double>(pairs)),
              ChiSquareLimit(static_cast<double>(pairs - 1)))
        << "n " << n;
  }
}

// Within one permutation of a large range: neighbours land far apart, with no serial correlation,
// and successive differences take no value unduly often.
TEST(PermutationTest, NeighboursInALargeOrderAreUncorrelated) {
  constexpr std::uint64_t kCount = 50'000;
  for (const std::uint64_t n :
       {std::uint64_t{50'000}, std::uint64_t{1} << 20, Permutation::kMaxSize - 1}) {
    const Permutation permutation = Make(n, DeriveKey(5, 5, 5, "large", n));
    double correlation = 0;
    std::set<std::uint64_t> differences;
    const double scale = static_cast<double>(n);
    for (std::uint64_t i = 0; i + 1 < kCount; ++i) {
      const std::uint64_t first = permutation.At(i);
      const std::uint64_t second = permutation.At(i + 1);
      correlation += (static_cast<double>(first) / scale - 0.5) *
                     (static_cast<double>(second) / scale - 0.5) * 12.0;
      differences.insert((second + n - first) % n);
    }
    EXPECT_LT(std::abs(correlation) / std::sqrt(static_cast<double>(kCount)), 3.9) << "n " << n;
    // Throwing kCount balls into n bins leaves about n (1 - exp(-kCount / n)) of them occupied.
    const double balls = static_cast<double>(kCount);
    const double expected = scale * -std::expm1(-balls / scale);
    EXPECT_NEAR(static_cast<double>(differences.size()), expected, 0.01 * balls) << "n " << n;
  }
}

TEST(PermutationTest, EveryBitOfTheKeyAndOfItsParametersMatters) {
  std::set<std::vector<std::uint64_t>> orders;
  std::size_t made = 0;
  const auto add = [&orders, &made](Key128 key) {
    orders.insert(Order(100, key));
    ++made;
  };
  add({.high = 3, .low = 4});
  add(DeriveKey(1, 2, 3, "p", 4));
  add(DeriveKey(1, 2, 3, "q", 4));
  add(DeriveKey(1, 2, 3, std::string_view("p\0", 2), 4));
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    add({.high = 3 ^ flip, .low = 4});
    add({.high = 3, .low = 4 ^ flip});
    add(DeriveKey(1 ^ flip, 2, 3, "p", 4));
    add(DeriveKey(1, 2 ^ flip, 3, "p", 4));
    add(DeriveKey(1, 2, 3 ^ flip, "p", 4));
    add(DeriveKey(1, 2, 3, "p", 4 ^ flip));
  }
  EXPECT_EQ(orders.size(), made);
}

}  // namespace
}  // namespace widestream
