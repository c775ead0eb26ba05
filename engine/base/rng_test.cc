#include "engine/base/rng.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace widestream {
namespace {

using Counter = std::array<std::uint32_t, 4>;
using Key = std::array<std::uint32_t, 2>;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

// Random123's kat_vectors, "philox4x32 10".
TEST(RngTest, PhiloxEqualsTheKnownAnswersOfRandom123) {
  EXPECT_EQ(Philox4x32(Counter{}, Key{}),
            (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox4x32(Counter{ones, ones, ones, ones}, Key{ones, ones}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(Counter{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       Key{0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Computed by an independent Python implementation of the header's definition.
TEST(RngTest, RandomAtHasItsDefinedValues) {
  EXPECT_EQ(RandomAt(0, 0, 0, 0), 0x50282a4dcb63db8c);
  EXPECT_EQ(RandomAt(1, 2, 3, 4), 0x83d638c907213ce9);
  EXPECT_EQ(RandomAt(kMax, kMax, kMax, kMax), 0x689987fd062ff7d7);
  EXPECT_EQ(RandomAt(0x0123456789abcdef, 7, std::uint64_t{1} << 40, 12345), 0x3a2e4c6a6d2b0b45);
  EXPECT_EQ(RandomBelow(1000, 1, 2, 3, 4), 514);
  EXPECT_EQ(RandomUniform(1, 2, 3, 4), 0.5149875155249263);
}

RC_GTEST_PROP(RngTest, ASequenceGivesTheSameNumbersAsTheFunctions,
              (std::uint64_t seed, std::uint64_t a, std::uint64_t b, std::uint64_t c,
               std::uint64_t n)) {
  const RandomSequence sequence(seed, a, b);
  RC_ASSERT(sequence.At(c) == RandomAt(seed, a, b, c));
  RC_ASSERT(sequence.Below(n, c) == RandomBelow(n, seed, a, b, c));
  RC_ASSERT(sequence.Uniform(c) == RandomUniform(seed, a, b, c));
  RC_ASSERT(sequence.Below(n, c) < std::max<std::uint64_t>(n, 1));
  RC_ASSERT(sequence.Uniform(c) >= 0.0);
  RC_ASSERT(sequence.Uniform(c) < 1.0);
}

// Every word, high halves included, must change the result.
TEST(RngTest, EveryBitOfEveryArgumentMatters) {
  std::vector<std::uint64_t> values = {RandomAt(5, 6, 7, 8)};
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t flip = std::uint64_t{1} << bit;
    values.push_back(RandomAt(5 ^ flip, 6, 7, 8));
    values.push_back(RandomAt(5, 6 ^ flip, 7, 8));
    values.push_back(RandomAt(5, 6, 7 ^ flip, 8));
    values.push_back(RandomAt(5, 6, 7, 8 ^ flip));
  }
  std::sort(values.begin(), values.end());
  EXPECT_EQ(std::adjacent_find(values.begin(), values.end()), values.end());
}

TEST(RngTest, RandomBelowIsUniform) {
  constexpr std::uint64_t kBins = 10;
  constexpr std::uint64_t kDraws = 100'000;
  std::array<double, kBins> counts{};
  const RandomSequence sequence(11, 1, 2);
  for (std::uint64_t i = 0; i < kDraws; ++i) counts[sequence.Below(kBins, i)] += 1;
  double chi_square = 0;
  for (const double count : counts) {
    const double expected = static_cast<double>(kDraws) / kBins;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 27.9);  // 9 degrees of freedom, p = 0.001; the draws are fixed
}

}  // namespace
}  // namespace widestream
