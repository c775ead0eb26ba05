#include "engine/plan/mixture.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"

namespace widestream {
namespace {

Mixture MakeMixture(MixtureUnit unit, std::vector<std::vector<double>> stages,
                    std::vector<std::uint64_t> until = {}, std::vector<std::uint64_t> ramp = {}) {
  MixtureSpec spec;
  spec.unit = unit;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    StageSpec stage;
    stage.weights = stages[i];
    if (i < until.size()) stage.until = until[i];
    if (i < ramp.size()) stage.ramp = ramp[i];
    spec.stages.push_back(stage);
  }
  auto mixture = ResolveMixture(spec, stages[0].size(), /*is_edit=*/false);
  EXPECT_TRUE(mixture.ok()) << mixture.status().ToString();
  return mixture.ok() ? *mixture : Mixture();
}

std::vector<std::uint64_t> Ids(std::size_t n) {
  std::vector<std::uint64_t> ids(n);
  for (std::size_t s = 0; s < n; ++s) ids[s] = Xxh3_64(StrCat("source", s));
  return ids;
}

MixtureCursor::Position Start(std::size_t n) {
  MixtureCursor::Position position;
  position.credit.assign(n, 0);
  position.exhausted.assign(n, 0);
  return position;
}

// The choice of a stream that goes on.
std::uint32_t Next(MixtureCursor& cursor) {
  const std::optional<std::uint32_t> choice = cursor.Choose();
  EXPECT_TRUE(choice.has_value());
  return choice.value_or(0);
}

double AsDouble(std::int64_t credit) { return static_cast<double>(credit) / 4294967296.0; }

TEST(IntegerWeights, AreRoundedOnceAndTheRemainderGoesToTheLargest) {
  const auto thirds = IntegerWeights(std::vector<double>{1, 1, 1});
  ASSERT_TRUE(thirds.ok());
  EXPECT_EQ(*thirds, (std::vector<std::uint64_t>{1431655766, 1431655765, 1431655765}));
  const auto some = IntegerWeights(std::vector<double>{0.2, 0, 0.5, 0.3});
  ASSERT_TRUE(some.ok());
  EXPECT_EQ(std::accumulate(some->begin(), some->end(), std::uint64_t{0}), kWeightOne);
  EXPECT_EQ((*some)[1], 0U);
  EXPECT_EQ(*IntegerWeights(std::vector<double>{7}), std::vector<std::uint64_t>{kWeightOne});
}

TEST(IntegerWeights, RefusesWhatIsNoMixture) {
  for (const std::vector<double>& bad :
       std::vector<std::vector<double>>{{},
                                        {0, 0},
                                        {-1, 2},
                                        {std::numeric_limits<double>::quiet_NaN()},
                                        {std::numeric_limits<double>::infinity()},
                                        {1e308, 1e308},
                                        {1e-12, 1}}) {
    const auto result = IntegerWeights(bad);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  }
}

TEST(ResolveMixture, NamesTheKeyThatIsWrong) {
  const auto fails = [](const MixtureSpec& spec, const std::string& key) {
    const auto result = ResolveMixture(spec, 2, /*is_edit=*/false);
    ASSERT_FALSE(result.ok()) << key;
    EXPECT_NE(result.status().message().find(key), std::string::npos) << result.status().ToString();
  };
  const auto stage = [](std::vector<double> weights, std::optional<std::uint64_t> until,
                        std::uint64_t ramp = 0) {
    StageSpec spec;
    spec.weights = std::move(weights);
    spec.until = until;
    spec.ramp = ramp;
    return spec;
  };
  fails({MixtureUnit::kTokens, {}}, "stages is empty");
  fails({MixtureUnit::kTokens, {stage({1}, {})}}, "stages[0].weights");
  fails({MixtureUnit::kTokens, {stage({0, 0}, {})}}, "stages[0].weights");
  fails({MixtureUnit::kTokens, {stage({1, 1}, {}), stage({1, 1}, {})}}, "stages[0]");
  fails({MixtureUnit::kTokens, {stage({1, 1}, 10), stage({1, 1}, 10)}}, "stages[1].until");
  fails({MixtureUnit::kTokens, {stage({1, 1}, {}, 5)}}, "stages[0].ramp");
  fails({MixtureUnit::kTokens, {stage({1, 1}, 10), stage({1, 1}, 15, 6)}}, "stages[1].ramp");
}

TEST(ParseMixture, ReadsNamesAndRefusesTheRest) {
  const std::vector<std::string> names = {"web", "code"};
  const auto spec = ParseMixture(
      R"({"unit": "samples", "stages": [{"until": 9, "weights": {"code": 2}}, {"weights": {"web": 1, "code": 0.5}, "ramp": 4}]})",
      names);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->unit, MixtureUnit::kSamples);
  ASSERT_EQ(spec->stages.size(), 2U);
  EXPECT_EQ(spec->stages[0].until, 9U);
  EXPECT_EQ(spec->stages[0].weights, (std::vector<double>{0, 2}));
  EXPECT_EQ(spec->stages[1].weights, (std::vector<double>{1, 0.5}));
  EXPECT_EQ(spec->stages[1].ramp, 4U);
  const std::pair<const char*, const char*> wrong[] = {
      {R"({"stages": [{"weights": {"books": 1}}]})", "books"},
      {R"({"stages": [{"weights": {"web": "1"}}]})", "stages[0].weights.web"},
      {R"({"stages": [{"weights": [1]}]})", "stages[0].weights"},
      {R"({"stages": [{}]})", "weights"},
      {R"({"stages": 3})", "mixture.stages"},
      {R"({"unit": "bytes", "stages": []})", "mixture.unit"},
      {R"({"stages": [], "stage": []})", "stage"},
      {R"({"stages": [{"until": -1, "weights": {"web": 1}}]})", "until"},
      {R"({"stages": [{"ramp": 1.5, "weights": {"web": 1}}]})", "ramp"},
      {R"({"stages": [], "stages": []})", "twice"},
      {R"([[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]])", "deeper"},
      {"{", "JSON"},
      {"", "JSON"},
  };
  for (const auto& [json, part] : wrong) {
    const auto result = ParseMixture(json, names);
    ASSERT_FALSE(result.ok()) << json;
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(result.status().message().find(part), std::string::npos)
        << result.status().ToString();
  }
}

std::vector<double> RandomWeights(std::size_t n) {
  std::vector<double> weights(n);
  for (double& weight : weights) weight = *rc::gen::inRange(1, 1000);
  return weights;
}

// |wanted - drawn| <= 1 - 1/(2n-2) at every prefix, for constant weights.
RC_GTEST_PROP(Mixture, SamplesNeverStrayByAWholeSample, ()) {
  const auto n = static_cast<std::size_t>(*rc::gen::inRange(2, 101));
  const Mixture mixture = MakeMixture(MixtureUnit::kSamples, {RandomWeights(n)});
  const auto ids = Ids(n);
  MixtureCursor cursor(mixture, 5, ids, Start(n));
  const double bound = 1.0 - 1.0 / (2.0 * static_cast<double>(n) - 2.0) + 1e-6;
  for (int draw = 0; draw < 1000; ++draw) {
    cursor.Account(Next(cursor), 1);
    for (const std::int64_t credit : cursor.position().credit) {
      RC_ASSERT(std::abs(AsDouble(credit)) <= bound);
    }
  }
}

// Overshoot at most one piece; undershoot within the proved bound (docs/stream.md section 3), and
// within 1.3 pieces in practice. Also while a ramp runs.
RC_GTEST_PROP(Mixture, TokensStayWithinAFewPieces, ()) {
  const auto n = static_cast<std::size_t>(*rc::gen::inRange(2, 101));
  const bool ramps = *rc::gen::arbitrary<bool>();
  const Mixture mixture =
      ramps ? MakeMixture(MixtureUnit::kTokens, {RandomWeights(n), RandomWeights(n)}, {5000},
                          {0, 300'000})
            : MakeMixture(MixtureUnit::kTokens, {RandomWeights(n)});
  const auto ids = Ids(n);
  MixtureCursor cursor(mixture, 5, ids, Start(n));
  constexpr std::uint64_t kLongest = 1000;
  double harmonic = 0;
  for (std::size_t k = 1; k <= n; ++k) harmonic += 1.0 / static_cast<double>(k);
  const auto seed = static_cast<std::uint64_t>(*rc::gen::inRange(0, 1000));
  for (std::uint64_t draw = 0; draw < 800; ++draw) {
    const std::uint64_t length = 1 + RandomBelow(kLongest, seed, 0, 0, draw);
    cursor.Account(Next(cursor), length);
    std::int64_t sum = 0;
    for (const std::int64_t credit : cursor.position().credit) {
      sum += credit;
      RC_ASSERT(AsDouble(credit) >= -static_cast<double>(kLongest));
      RC_ASSERT(AsDouble(credit) <= (kLongest + 1) * harmonic);
      RC_ASSERT(AsDouble(credit) <= 1.3 * kLongest);
    }
    RC_ASSERT(sum == 0);
  }
}

TEST(Mixture, TokensFollowTheWeightsWhateverTheLengths) {
  const Mixture mixture = MakeMixture(MixtureUnit::kTokens, {{0.7, 0.2, 0.1}});
  const auto ids = Ids(3);
  MixtureCursor cursor(mixture, 1, ids, Start(3));
  std::vector<std::uint64_t> drawn(3, 0);
  std::uint64_t total = 0;
  while (total < 1'000'000) {
    const std::uint32_t s = Next(cursor);
    const std::uint64_t length = s == 0 ? 3 : 100;  // the heavy source has the short pieces
    cursor.Account(s, length);
    drawn[s] += length;
    total += length;
  }
  EXPECT_NEAR(static_cast<double>(drawn[0]) / static_cast<double>(total), 0.7, 3e-4);
  EXPECT_NEAR(static_cast<double>(drawn[2]) / static_cast<double>(total), 0.1, 3e-4);
}

TEST(Mixture, ARampPassesThroughItsMiddle) {
  const Mixture mixture = MakeMixture(MixtureUnit::kTokens, {{1, 0}, {0, 1}}, {1000}, {0, 1000});
  const auto ids = Ids(2);
  MixtureCursor::Position position = Start(2);
  for (const auto& [clock, first] : {std::pair<std::uint64_t, double>{999, 1.0},
                                     {1000, 1.0},
                                     {1250, 0.75},
                                     {1500, 0.5},
                                     {2000, 0.0}}) {
    position.clock = clock;
    MixtureCursor cursor(mixture, 1, ids, position);
    EXPECT_NEAR(static_cast<double>(cursor.weights()[0]) / 4294967296.0, first, 1e-9) << clock;
    EXPECT_EQ(cursor.weights()[0] + cursor.weights()[1], kWeightOne);
  }
}

TEST(Mixture, AStageWithoutRampRestartsTheCountersAndOneWithRampDoesNot) {
  for (const std::uint64_t ramp : {0U, 10U}) {
    const Mixture mixture = MakeMixture(MixtureUnit::kTokens, {{1, 1}, {1, 2}}, {100}, {0, ramp});
    const auto ids = Ids(2);
    MixtureCursor cursor(mixture, 1, ids, Start(2));
    cursor.Account(Next(cursor), 100);
    ASSERT_NE(cursor.position().credit[0], 0);
    ASSERT_TRUE(cursor.Choose().has_value());
    EXPECT_EQ(cursor.position().stage, 1U);
    EXPECT_EQ(cursor.position().credit[0] == 0, ramp == 0);
  }
}

TEST(Mixture, TheLastStageMayEndTheStream) {
  const Mixture mixture = MakeMixture(MixtureUnit::kSamples, {{1, 1}}, {3});
  const auto ids = Ids(2);
  MixtureCursor cursor(mixture, 1, ids, Start(2));
  for (int i = 0; i < 3; ++i) cursor.Account(Next(cursor), 1);
  EXPECT_FALSE(cursor.Choose().has_value());
  EXPECT_TRUE(cursor.position().ended);
}

TEST(Mixture, AnExhaustedSourceLeavesItsShareToTheRest) {
  const Mixture mixture = MakeMixture(MixtureUnit::kTokens, {{0.5, 0.3, 0.2}});
  const auto ids = Ids(3);
  MixtureCursor cursor(mixture, 1, ids, Start(3));
  cursor.Account(Next(cursor), 10);
  cursor.Exhaust(0);
  EXPECT_EQ(cursor.position().credit, (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(cursor.position().draws, 1U);
  EXPECT_EQ(cursor.weights()[0], 0U);
  EXPECT_EQ(cursor.weights()[1] + cursor.weights()[2], kWeightOne);
  EXPECT_NEAR(static_cast<double>(cursor.weights()[1]) / 4294967296.0, 0.6, 1e-9);
  cursor.Exhaust(1);
  EXPECT_EQ(cursor.weights()[2], kWeightOne);
  cursor.Exhaust(2);
  EXPECT_FALSE(cursor.Choose().has_value());
}

TEST(Mixture, TiesDependOnTheNameAndNotOnThePlaceInTheList) {
  const Mixture mixture = MakeMixture(MixtureUnit::kTokens, {{1, 1, 1, 1}});
  const auto ids = Ids(4);
  const std::vector<std::uint64_t> reversed(ids.rbegin(), ids.rend());
  std::vector<int> chosen(4, 0);
  for (std::uint64_t draw = 0; draw < 400; ++draw) {
    MixtureCursor::Position position = Start(4);
    position.draws = draw;
    MixtureCursor forward(mixture, 9, ids, position);
    MixtureCursor backward(mixture, 9, reversed, position);
    // The remainder of a quarter is 0, so all four are tied.
    const std::uint32_t choice = Next(forward);
    EXPECT_EQ(choice, 3 - Next(backward));
    ++chosen[choice];
  }
  for (const int n : chosen) EXPECT_GT(n, 50);
}

}  // namespace
}  // namespace widestream
