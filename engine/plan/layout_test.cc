#include "engine/plan/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/base/rng.h"
#include "engine/plan/cost_model.h"

namespace widestream {
namespace {

StepPlan PlanOf(const std::vector<std::uint32_t>& lengths, bool one_a_row) {
  StepPlan plan;
  for (std::uint32_t i = 0; i < lengths.size(); ++i) {
    Piece piece;
    piece.length = lengths[i];
    piece.draw = i;
    plan.pieces.push_back(piece);
    if (one_a_row) plan.rows.push_back({i});
  }
  return plan;
}

LayoutOptions Options(BatchLayout layout, std::uint32_t dp, std::uint64_t cap = 0,
                      std::uint32_t vpp = 1) {
  LayoutOptions options;
  options.layout = layout;
  options.sequence_length = 10;
  options.microbatch_tokens = cap;
  options.mesh.dp = dp;
  options.mesh.vpp = vpp;
  return options;
}

TEST(Layout, RowsAreCutIntoEqualMicrobatchesUnderTheCap) {
  const StepPlan plan = PlanOf(std::vector<std::uint32_t>(10, 5), true);
  const auto ranks = BuildLayout(Options(BatchLayout::kRows, 2, 25), plan);
  ASSERT_TRUE(ranks.ok());
  // Two rows fit, so 10 rows on 2 ranks need 3 microbatches of 2, with two rows of filler.
  for (const RankPlan& rank : *ranks) {
    ASSERT_EQ(rank.microbatches.size(), 3U);
    for (const MicrobatchPlan& microbatch : rank.microbatches) {
      EXPECT_EQ(microbatch.rows.size(), 2U);
    }
  }
  const auto grouped = BuildLayout(Options(BatchLayout::kRows, 2, 25, 2), plan);
  EXPECT_EQ(grouped->front().microbatches.size(), 4U);
}

TEST(Layout, WithoutACapThereIsOneMicrobatchAGroup) {
  const StepPlan plan = PlanOf({1, 2, 3}, true);
  EXPECT_EQ(BuildLayout(Options(BatchLayout::kPadded, 1), plan)->front().microbatches.size(), 1U);
  EXPECT_EQ(BuildLayout(Options(BatchLayout::kPadded, 1, 0, 3), plan)->front().microbatches.size(),
            3U);
}

TEST(Layout, InOrderKeepsTheOrder) {
  const StepPlan plan = PlanOf({9, 1, 9, 1}, true);
  LayoutOptions options = Options(BatchLayout::kRows, 2);
  options.balance = BalanceMethod::kNone;
  const auto ranks = BuildLayout(options, plan);
  EXPECT_EQ((*ranks)[0].microbatches[0].rows, (std::vector<std::vector<std::uint32_t>>{{0}, {1}}));
  EXPECT_EQ((*ranks)[1].microbatches[0].rows, (std::vector<std::vector<std::uint32_t>>{{2}, {3}}));
}

TEST(Layout, BalancedRanksCostAlike) {
  std::vector<std::uint32_t> lengths;
  for (std::uint64_t i = 0; i < 512; ++i) {
    const double u = RandomUniform(3, 0, 0, i);
    lengths.push_back(1 + static_cast<std::uint32_t>(8000 * u * u * u));
  }
  LayoutOptions options = Options(BatchLayout::kThd, 8, 40'000);
  options.sequence_length = 8192;
  const auto ratio = [&](bool balance) {
    options.balance = balance ? BalanceMethod::kLpt : BalanceMethod::kNone;
    const auto ranks = BuildLayout(options, PlanOf(lengths, false));
    EXPECT_TRUE(ranks.ok());
    double most = 0;
    double sum = 0;
    for (const RankPlan& rank : *ranks) {
      most = std::max(most, rank.cost);
      sum += rank.cost;
    }
    return most / (sum / 8);
  };
  EXPECT_LT(ratio(true), 1.01);
  EXPECT_GT(ratio(false), ratio(true));
}

TEST(Layout, MicrobatchesOfOneNumberAreAlikeOnAllRanks) {
  const StepPlan plan = PlanOf({100, 90, 20, 15}, false);
  const auto ranks = BuildLayout(Options(BatchLayout::kThd, 2, 100), plan);
  ASSERT_EQ((*ranks)[0].microbatches.size(), 2U);
  EXPECT_EQ((*ranks)[0].microbatches[0].rows[0], std::vector<std::uint32_t>{0});
  EXPECT_EQ((*ranks)[1].microbatches[0].rows[0], std::vector<std::uint32_t>{1});
}

TEST(Layout, ThdRespectsPaddingForContextParallelism) {
  LayoutOptions options = Options(BatchLayout::kThd, 1, 16);
  const StepPlan plan = PlanOf({5, 5, 5}, false);
  EXPECT_EQ(BuildLayout(options, plan)->front().microbatches.size(), 1U);
  options.padding = {4, 4};  // three times 8 padded tokens
  EXPECT_EQ(BuildLayout(options, plan)->front().microbatches.size(), 2U);
}

// B-12: microbatches come in whole groups of the virtual pipeline, on every rank.
TEST(Layout, B12MicrobatchesAreAMultipleOfTheVirtualStages) {
  LayoutOptions options = Options(BatchLayout::kThd, 2, 10, 3);
  options.mesh.pp = 2;
  for (std::uint32_t pieces = 0; pieces < 30; ++pieces) {
    const auto ranks = BuildLayout(options, PlanOf(std::vector<std::uint32_t>(pieces, 9), false));
    ASSERT_TRUE(ranks.ok());
    for (const RankPlan& rank : *ranks) {
      EXPECT_EQ(rank.microbatches.size() % 6, 0U);
      EXPECT_EQ(rank.microbatches.size(), ranks->front().microbatches.size());
    }
  }
}

TEST(Layout, ThePaddingOfTheWholeMicrobatchCountsInTheCap) {
  LayoutOptions options = Options(BatchLayout::kThd, 1, 17);
  options.padding = {1, 16};
  // 9 and 8 are 17 tokens, which would be padded to 32.
  EXPECT_EQ(BuildLayout(options, PlanOf({9, 8}, false))->front().microbatches.size(), 2U);
  EXPECT_EQ(BuildLayout(options, PlanOf({8, 8}, false))->front().microbatches.size(), 1U);
  const auto refused = BuildLayout(options, PlanOf({17}, false));
  EXPECT_NE(refused.status().message().find("(32 with padding)"), std::string::npos)
      << refused.status().ToString();
}

TEST(Layout, NoMicrobatchHasMoreThanItsPieces) {
  LayoutOptions options = Options(BatchLayout::kThd, 1, 100);
  options.microbatch_pieces = 3;
  for (const bool balance : {true, false}) {
    options.balance = balance ? BalanceMethod::kLpt : BalanceMethod::kNone;
    const auto ranks = BuildLayout(options, PlanOf({50, 1, 1, 1, 1, 1, 1}, false));
    ASSERT_TRUE(ranks.ok());
    std::size_t pieces = 0;
    for (const MicrobatchPlan& microbatch : ranks->front().microbatches) {
      EXPECT_LE(microbatch.rows[0].size(), 3U);
      pieces += microbatch.rows[0].size();
    }
    EXPECT_EQ(pieces, 7U);
  }
}

TEST(Layout, FixedShapesFillAShortLastStepWithRows) {
  LayoutOptions options = Options(BatchLayout::kRows, 2, 20);
  options.rows = 8;
  const auto ranks = BuildLayout(options, PlanOf({5}, true));
  ASSERT_TRUE(ranks.ok());
  ASSERT_EQ(ranks->front().microbatches.size(), 2U);
  EXPECT_EQ(ranks->front().microbatches[0].rows.size(), 2U);
}

TEST(Layout, ManyPiecesOverHalfTheCapEndQuickly) {
  const StepPlan plan = PlanOf(std::vector<std::uint32_t>(20'000, 51), false);
  for (const bool balance : {true, false}) {
    LayoutOptions options = Options(BatchLayout::kThd, 1, 100);
    options.balance = balance ? BalanceMethod::kLpt : BalanceMethod::kNone;
    const auto ranks = BuildLayout(options, plan);
    ASSERT_TRUE(ranks.ok());
    EXPECT_EQ(ranks->front().microbatches.size(), 20'000U);
  }
}

TEST(Layout, RefusesWhatCanNeverFit) {
  EXPECT_EQ(BuildLayout(Options(BatchLayout::kThd, 1, 10), PlanOf({11}, false)).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(BuildLayout(Options(BatchLayout::kRows, 1, 9), PlanOf({1}, true)).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(Layout, OneSegmentARowCostsItsSquare) {
  StepPlan plan = PlanOf({3, 4}, false);
  plan.rows = {{0, 1}};
  LayoutOptions options = Options(BatchLayout::kRows, 1);
  EXPECT_EQ(BuildLayout(options, plan)->front().cost,
            static_cast<double>(PieceCost({}, 3) + PieceCost({}, 4)));
  options.cross_document_attention = true;
  EXPECT_EQ(BuildLayout(options, plan)->front().cost, static_cast<double>(PieceCost({}, 7)));
}

// B-01, B-02: long tails; every rank gets the same work, and the bound says that no more is
// possible.
TEST(Layout, B01SkewedLengthsAreBalanced) {
  std::vector<std::uint32_t> lengths;
  for (std::uint64_t i = 0; i < 600; ++i) {
    const double u = RandomUniform(5, 0, 0, i);
    lengths.push_back(std::min(8192U, 50 + static_cast<std::uint32_t>(300 / (1.0001 - u))));
  }
  const StepPlan plan = PlanOf(lengths, false);
  LayoutOptions options = Options(BatchLayout::kThd, 8, 20'000);
  options.sequence_length = 8192;
  options.cost.linear_tokens = 1000;  // attention decides, so equal tokens are not equal work
  const auto dearest = [&](BalanceMethod method) {
    options.balance = method;
    const auto ranks = BuildLayout(options, plan);
    EXPECT_TRUE(ranks.ok());
    double most = 0;
    std::vector<std::uint32_t> seen;
    for (const RankPlan& rank : *ranks) {
      most = std::max(most, rank.cost);
      for (const MicrobatchPlan& microbatch : rank.microbatches) {
        seen.insert(seen.end(), microbatch.rows[0].begin(), microbatch.rows[0].end());
      }
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen.size(), lengths.size());
    EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
    return most;
  };
  const auto bound = static_cast<double>(RankCostBound(options, plan));
  for (const BalanceMethod method : {BalanceMethod::kLpt, BalanceMethod::kMultifit}) {
    EXPECT_GE(dearest(method), bound);
    EXPECT_LE(dearest(method), 1.02 * bound);
  }
  EXPECT_GT(dearest(BalanceMethod::kNone), 1.1 * bound);
}

// A group's atoms stay among its ranks, in thd and in rows, with several microbatches a rank.
TEST(Layout, RanksAreBalancedInGroups) {
  std::vector<std::uint32_t> lengths;
  lengths.reserve(96);
  for (std::uint32_t i = 0; i < 96; ++i) lengths.push_back(1 + i * 37 % 100);
  for (const BatchLayout layout : {BatchLayout::kThd, BatchLayout::kRows}) {
    const StepPlan plan = PlanOf(lengths, layout == BatchLayout::kRows);
    LayoutOptions options = Options(layout, 4, 500);
    options.sequence_length = 100;
    options.group_size = 2;
    const auto ranks = BuildLayout(options, plan);
    ASSERT_TRUE(ranks.ok());
    double most = 0;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      most = std::max(most, (*ranks)[rank].cost);
      EXPECT_GT((*ranks)[rank].microbatches.size(), 1U);
      for (const MicrobatchPlan& microbatch : (*ranks)[rank].microbatches) {
        for (const auto& row : microbatch.rows) {
          for (const std::uint32_t piece : row) EXPECT_EQ(piece / 48, rank / 2);
        }
      }
    }
    const auto bound = static_cast<double>(RankCostBound(options, plan));
    EXPECT_GE(most, bound);
    EXPECT_LE(most, 1.05 * bound);
  }
}

TEST(Layout, KarmarkarKarpIsForSmallCases) {
  LayoutOptions options = Options(BatchLayout::kThd, 2);
  options.sequence_length = 100;
  options.balance = BalanceMethod::kKarmarkarKarp;
  EXPECT_TRUE(BuildLayout(options, PlanOf({8, 7, 6, 5, 4}, false)).ok());
  options.mesh.dp = 65;
  EXPECT_EQ(BuildLayout(options, PlanOf({8, 7, 6}, false)).status().code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace widestream
