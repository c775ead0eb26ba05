#include "engine/plan/balance.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "engine/base/rng.h"
#include "engine/plan/cost_order.h"
#include "engine/plan/exact_balance.h"

namespace widestream {
namespace {

constexpr BalanceMethod kMethods[] = {BalanceMethod::kLpt, BalanceMethod::kMultifit,
                                      BalanceMethod::kKarmarkarKarp};

struct Case {
  std::vector<std::uint64_t> costs;
  std::vector<std::uint64_t> tokens;
  std::vector<std::uint64_t> memory;
  std::uint32_t bins = 1;
  BalanceCaps caps;

  BalanceInput Input() const {
    return {.costs = costs, .tokens = tokens, .memory = memory, .bins = bins, .caps = caps};
  }
};

// Over the whole range: rapidcheck's own draws are small in most of its cases.
std::uint64_t Draw(std::uint64_t low, std::uint64_t high) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::uint64_t>(low, high + 1));
}

// Sometimes equal costs, costs of nothing, a heavy tail; caps that mostly leave some room.
Case RandomCase(std::size_t most_atoms, std::uint32_t most_bins, bool with_caps) {
  Case c;
  const std::size_t count = Draw(0, most_atoms);
  c.bins = static_cast<std::uint32_t>(Draw(1, most_bins));
  const std::uint64_t kind = Draw(0, 3);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t base = Draw(kind == 0 ? 0 : 1, kind == 1 ? 3 : 1000);
    c.costs.push_back(kind == 3 ? base * base * base : base);
    c.tokens.push_back(Draw(0, 50));
    c.memory.push_back(Draw(0, 50));
  }
  if (!with_caps) return c;
  const auto roomy = [&](const std::vector<std::uint64_t>& column) {
    const std::uint64_t sum = std::accumulate(column.begin(), column.end(), std::uint64_t{0});
    const std::uint64_t most = column.empty() ? 0 : *std::max_element(column.begin(), column.end());
    return std::max(most, sum / c.bins + Draw(1, 60));
  };
  if (Draw(0, 1) == 0) {
    c.caps.atoms = static_cast<std::uint32_t>((count + c.bins - 1) / c.bins + Draw(0, 2));
    if (c.caps.atoms == 0) c.caps.atoms = 1;
  }
  if (Draw(0, 1) == 0) c.caps.tokens = roomy(c.tokens);
  if (Draw(0, 1) == 0) c.caps.memory = roomy(c.memory);
  return c;
}

// Empty if the assignment is consistent, within the caps, and not below its bound.
std::string Wrong(const Case& c, const Assignment& assignment) {
  if (assignment.bin_of.size() != c.costs.size()) return "an atom is missing";
  if (assignment.loads.size() != c.bins) return "a bin is missing";
  std::vector<std::uint64_t> loads(c.bins, 0);
  std::vector<std::uint64_t> tokens(c.bins, 0);
  std::vector<std::uint64_t> memory(c.bins, 0);
  std::vector<std::uint32_t> atoms(c.bins, 0);
  for (std::size_t i = 0; i < c.costs.size(); ++i) {
    const std::uint32_t bin = assignment.bin_of[i];
    if (bin >= c.bins) return "there is no such bin";
    loads[bin] += c.costs[i];
    tokens[bin] += c.tokens[i];
    memory[bin] += c.memory[i];
    ++atoms[bin];
  }
  if (loads != assignment.loads) return "the loads are wrong";
  const auto most = [](const auto& column) {
    return *std::max_element(column.begin(), column.end());
  };
  if (assignment.max_load != most(loads)) return "the dearest load is wrong";
  if (assignment.lower_bound > assignment.max_load) return "the bound is above what was reached";
  if (c.caps.atoms != 0 && most(atoms) > c.caps.atoms) return "too many atoms";
  if (c.caps.tokens != 0 && most(tokens) > c.caps.tokens) return "too many tokens";
  if (c.caps.memory != 0 && most(memory) > c.caps.memory) return "too much memory";
  return "";
}

// The best by trying every assignment; none if the caps allow none.
std::optional<std::uint64_t> BestOfAll(const Case& c) {
  std::optional<std::uint64_t> best;
  Assignment a;
  a.bin_of.assign(c.costs.size(), 0);
  while (true) {
    a.loads.assign(c.bins, 0);
    for (std::size_t i = 0; i < c.costs.size(); ++i) a.loads[a.bin_of[i]] += c.costs[i];
    a.max_load = *std::max_element(a.loads.begin(), a.loads.end());
    if ((!best || a.max_load < *best) && Wrong(c, a).empty()) best = a.max_load;
    std::size_t i = 0;
    while (i < a.bin_of.size() && ++a.bin_of[i] == c.bins) a.bin_of[i++] = 0;
    if (i == a.bin_of.size()) return best;
  }
}

TEST(OrderByCost, SortsManyAndFewAlike) {
  for (const std::size_t count : {0UL, 1UL, 7UL, 5000UL}) {
    for (const std::uint64_t range : {1ULL, 3ULL, 3000ULL, 1ULL << 40, 1ULL << 60}) {
      std::vector<std::uint64_t> costs(count);
      for (std::size_t i = 0; i < count; ++i) costs[i] = 5 + RandomBelow(range, 1, range, 0, i);
      std::vector<std::uint32_t> expected(count);
      std::iota(expected.begin(), expected.end(), 0U);
      std::sort(expected.begin(), expected.end(), [&](std::uint32_t a, std::uint32_t b) {
        return costs[a] != costs[b] ? costs[a] > costs[b] : a < b;
      });
      const CostOrder order = OrderByCost(costs);
      EXPECT_EQ(order.atoms, expected) << count << " " << range;
      for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(order.costs[i], costs[expected[i]]);
    }
  }
}

TEST(LongestFirst, TheNextDearestToTheCheapestBin) {
  const Case c{.costs = {3, 9, 4, 6, 5}, .tokens = {}, .memory = {}, .bins = 2, .caps = {}};
  const Result<Assignment> found = LongestFirst(c.Input());
  ASSERT_TRUE(found.ok());
  // 9 -> 0, 6 -> 1, 5 -> 1, 4 -> 0, 3 -> 1.
  EXPECT_EQ(found->bin_of, (std::vector<std::uint32_t>{1, 0, 0, 1, 1}));
  EXPECT_EQ(found->loads, (std::vector<std::uint64_t>{13, 14}));
}

TEST(LongestFirst, TiesGoByAtomAndByBin) {
  const Case c{.costs = {7, 7, 7, 7, 7}, .tokens = {}, .memory = {}, .bins = 3, .caps = {}};
  const Result<Assignment> found = LongestFirst(c.Input());
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->bin_of, (std::vector<std::uint32_t>{0, 1, 2, 0, 1}));
}

TEST(LongestFirst, AtomsOfNoCostAreDealtByNumber) {
  Case c{
      .costs = std::vector<std::uint64_t>(9, 0), .tokens = {}, .memory = {}, .bins = 3, .caps = {}};
  c.costs[0] = 5;
  for (const bool capped : {false, true}) {
    c.caps.atoms = capped ? 3 : 0;
    const Result<Assignment> found = LongestFirst(c.Input());
    ASSERT_TRUE(found.ok());
    for (const auto& bin : found->Bins()) EXPECT_EQ(bin.size(), 3U);
    EXPECT_EQ(found->max_load, 5U);
  }
}

RC_GTEST_PROP(LongestFirst, IsTheDefinition, ()) {
  const Case c = RandomCase(60, 9, false);
  std::vector<std::uint64_t> loads(c.bins, 0);
  std::vector<std::uint32_t> counts(c.bins, 0);
  const CostOrder order = OrderByCost(c.costs);
  const Result<Assignment> found = LongestFirst(c.Input());
  RC_ASSERT(found.ok());
  for (std::size_t i = 0; i < order.atoms.size() && order.costs[i] != 0; ++i) {
    const auto least = std::min_element(loads.begin(), loads.end()) - loads.begin();
    RC_ASSERT(found->bin_of[order.atoms[i]] == static_cast<std::uint32_t>(least));
    loads[static_cast<std::size_t>(least)] += order.costs[i];
  }
}

RC_GTEST_PROP(BalanceAtoms, KeepsEveryAtomAndCapAndIsNeverDearerThanLpt, ()) {
  const Case c = RandomCase(120, 12, true);
  const Result<Assignment> lpt = LongestFirst(c.Input());
  for (const BalanceMethod method : kMethods) {
    const Result<Assignment> found = BalanceAtoms(c.Input(), method);
    RC_ASSERT(found.ok() == lpt.ok());
    if (!found.ok()) continue;
    RC_ASSERT(Wrong(c, *lpt) == "");
    RC_ASSERT(Wrong(c, *found) == "");
    RC_ASSERT(found->max_load <= lpt->max_load);
    const Result<Assignment> again = BalanceAtoms(c.Input(), method);
    RC_ASSERT(again->bin_of == found->bin_of);
  }
}

RC_GTEST_PROP(BalanceAtoms, UncappedAlwaysFindsRoom, ()) {
  const Case c = RandomCase(80, 20, false);
  for (const BalanceMethod method : kMethods) RC_ASSERT(BalanceAtoms(c.Input(), method).ok());
  const Result<Assignment> none = BalanceAtoms(c.Input(), BalanceMethod::kNone);
  RC_ASSERT(none.ok());
  RC_ASSERT(Wrong(c, *none) == "");
  RC_ASSERT(std::is_sorted(none->bin_of.begin(), none->bin_of.end()));
}

// Tries at most 4^8 assignments.
RC_GTEST_PROP(ExactBalance, EqualsTryingEveryAssignment, ()) {
  const Case c = RandomCase(8, 4, true);
  const std::optional<std::uint64_t> best = BestOfAll(c);
  const Result<ExactAssignment> exact = ExactBalance(c.Input(), 1'000'000);
  if (!exact.ok() || !best) RC_DISCARD("longest first found no room");
  RC_ASSERT(exact->proven);
  RC_ASSERT(Wrong(c, exact->assignment) == "");
  RC_ASSERT(exact->assignment.max_load == *best);
  RC_ASSERT(exact->assignment.lower_bound <= *best);
}

RC_GTEST_PROP(BalanceAtoms, WithinOnePercentOfExactOnTinyInputs, ()) {
  const Case c = RandomCase(24, 5, true);
  const Result<ExactAssignment> exact = ExactBalance(c.Input(), 100'000);
  if (!exact.ok()) RC_DISCARD("longest first found no room");
  if (!exact->proven) RC_DISCARD("the search for the best takes too long");
  for (const BalanceMethod method : kMethods) {
    const Result<Assignment> found = BalanceAtoms(c.Input(), method);
    RC_ASSERT(found.ok());
    RC_ASSERT(found->max_load * 100 <= exact->assignment.max_load * 101);
  }
}

RC_GTEST_PROP(BalanceInGroups, EveryGroupIsBalancedAlone, ()) {
  const Case c = RandomCase(60, 1, false);
  const auto size = static_cast<std::uint32_t>(Draw(1, 4));
  const auto groups = static_cast<std::uint32_t>(Draw(1, 4));
  BalanceInput input = c.Input();
  input.bins = size * groups;
  const Result<Assignment> found = BalanceInGroups(input, BalanceMethod::kLpt, size);
  RC_ASSERT(found.ok());
  Case whole = c;
  whole.bins = size * groups;
  RC_ASSERT(Wrong(whole, *found) == "");
  // In order and by count: the atoms of a group are consecutive.
  for (std::size_t i = 0; i < c.costs.size(); ++i) {
    const std::size_t group = found->bin_of[i] / size;
    RC_ASSERT(i >= c.costs.size() * group / groups);
    RC_ASSERT(i < c.costs.size() * (group + 1) / groups);
  }
}

TEST(BalanceInGroups, AGroupSizeThatDoesNotDivideIsRefused) {
  const std::vector<std::uint64_t> costs = {1, 2, 3};
  for (const std::uint32_t size : {0U, 3U, 8U}) {
    const auto found =
        BalanceInGroups({.costs = costs, .tokens = {}, .memory = {}, .bins = 4, .caps = {}},
                        BalanceMethod::kLpt, size);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(found.status().message().find("does not divide the 4 buckets"), std::string::npos);
  }
}

// A heavy tail where equal counts make LPT 17 % dear and the bound of equal counts explains it.
TEST(LoadLowerBound, KnowsWhatEqualCountsCost) {
  std::vector<std::uint64_t> costs;
  costs.reserve(64);
  for (std::size_t i = 0; i < 64; ++i) costs.push_back(i < 4 ? 1000 : 10);
  Case c{.costs = costs, .tokens = {}, .memory = {}, .bins = 8, .caps = {.atoms = 8}};
  c.tokens.assign(64, 1);
  c.memory.assign(64, 1);
  const Result<Assignment> found = BalanceAtoms(c.Input(), BalanceMethod::kLpt);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->max_load, 1070U);
  EXPECT_EQ(found->lower_bound, 1070U);
  // Two of five dear atoms must share one of four bins.
  const std::vector<std::uint64_t> five = {10, 9, 8, 7, 6};
  EXPECT_EQ(LoadLowerBound(five, 4, 0), 13U);
  EXPECT_EQ(LoadLowerBound({}, 4, 0), 0U);
}

// Lengths of a mixture of short and long documents, cost of a Transformer.
std::vector<std::uint64_t> LongTail(std::size_t count, std::uint64_t longest) {
  std::vector<std::uint64_t> costs(count);
  for (std::size_t i = 0; i < count; ++i) {
    const double u = RandomUniform(7, 1, 0, i);
    const std::uint64_t length = std::min<std::uint64_t>(
        longest, 64 + static_cast<std::uint64_t>(500 / std::pow(1.0001 - u, 0.9)));
    costs[i] = length * (length + 24'576);
  }
  return costs;
}

TEST(BalanceAtoms, ReachesTheBoundWithManyAtomsABin) {
  Case c{.costs = LongTail(20'000, 16'384), .tokens = {}, .memory = {}, .bins = 200, .caps = {}};
  const Result<Assignment> found = BalanceAtoms(c.Input(), BalanceMethod::kLpt);
  ASSERT_TRUE(found.ok());
  EXPECT_LE(found->Ratio(), 1.0001);
  c.caps.atoms = 100;
  const Result<Assignment> equal = BalanceAtoms(c.Input(), BalanceMethod::kLpt);
  ASSERT_TRUE(equal.ok());
  EXPECT_LE(equal->Ratio(), 1.001);
}

TEST(BalanceAtoms, RefusesWhatItCannotDo) {
  const std::vector<std::uint64_t> costs = {4, 5, 6};
  const std::vector<std::uint64_t> tokens = {10, 20, 30};
  const std::vector<std::uint64_t> uneven = {20, 30, 10};
  const auto code = [&](BalanceInput input, BalanceMethod method = BalanceMethod::kLpt) {
    const Result<Assignment> found = BalanceAtoms(input, method);
    return found.ok() ? StatusCode::kOk : found.status().code();
  };
  const BalanceInput good{.costs = costs, .tokens = tokens, .memory = {}, .bins = 2, .caps = {}};
  EXPECT_EQ(code(good), StatusCode::kOk);
  BalanceInput input = good;
  input.bins = 0;
  EXPECT_EQ(code(input), StatusCode::kInvalidArgument);
  input = good;
  input.caps.memory = 5;
  EXPECT_EQ(code(input), StatusCode::kInvalidArgument);
  input = good;
  input.caps.tokens = 29;
  EXPECT_EQ(code(input), StatusCode::kResourceExhausted);
  input.caps.tokens = 30;
  EXPECT_EQ(code(input), StatusCode::kOk);
  EXPECT_EQ(code(input, BalanceMethod::kNone), StatusCode::kOk);
  input.tokens = uneven;
  EXPECT_EQ(code(input), StatusCode::kOk);
  EXPECT_EQ(code(input, BalanceMethod::kNone), StatusCode::kResourceExhausted);
  input = good;
  input.caps.atoms = 1;
  EXPECT_EQ(code(input), StatusCode::kResourceExhausted);
  const std::vector<std::uint64_t> huge(5, std::uint64_t{1} << 60);
  input = good;
  input.costs = huge;
  EXPECT_EQ(code(input), StatusCode::kInvalidArgument);
  input = good;
  input.bins = kMaxKarmarkarKarpBins + 1;
  EXPECT_EQ(code(input, BalanceMethod::kKarmarkarKarp), StatusCode::kInvalidArgument);
}

// Few very large costs need more than 64 bits for a bin's place in the heap.
TEST(BalanceAtoms, LargeCosts) {
  std::vector<std::uint64_t> costs;
  costs.reserve(300);
  for (std::uint64_t i = 0; i < 300; ++i) costs.push_back((std::uint64_t{1} << 53) + i * 977);
  Case c{.costs = costs, .tokens = costs, .memory = costs, .bins = 100, .caps = {}};
  const Result<Assignment> found = BalanceAtoms(c.Input(), BalanceMethod::kLpt);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(Wrong(c, *found), "");
  EXPECT_LE(found->Ratio(), 1.0001);
}

}  // namespace
}  // namespace widestream
