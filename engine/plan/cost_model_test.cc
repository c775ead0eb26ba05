#include "engine/plan/cost_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>

namespace widestream {
namespace {

TransformerShape Dense(std::uint32_t hidden) {
  TransformerShape shape;
  shape.layers = 32;
  shape.hidden_size = hidden;
  shape.heads = hidden / 128;
  return shape;
}

TEST(CostOf, TheDefaultIsADenseModelOfWidth4096) {
  const Result<CostSpec> cost = CostOf(Dense(4096));
  ASSERT_TRUE(cost.ok());
  EXPECT_EQ(cost->linear_tokens, CostSpec{}.linear_tokens);
  EXPECT_EQ(PieceCost(CostSpec{}, 1000), 1000U * (1000 + 49'152));
}

// By hand: Llama 3 8B has 4096 wide layers of 32 heads of 128, 8 of keys and values, SwiGLU of
// 14336: 2 * 4096 * 128 * 80 + 6 * 4096 * 14336 operations a token and layer, 4 * 4096 a pair.
TEST(FlopsOf, GroupedQueriesAndGates) {
  TransformerShape shape = Dense(4096);
  shape.kv_heads = 8;
  shape.intermediate_size = 14'336;
  shape.gated = true;
  const Result<TransformerFlops> flops = FlopsOf(shape);
  ASSERT_TRUE(flops.ok());
  EXPECT_DOUBLE_EQ(flops->per_token, 32.0 * (83'886'080 + 352'321'536));
  EXPECT_DOUBLE_EQ(flops->per_pair, 32.0 * 16'384);
  EXPECT_EQ(CostOf(shape)->linear_tokens, 53'248U);
}

TEST(FlopsOf, OnlyActiveExpertsAndTheRouterCount) {
  TransformerShape shape = Dense(1024);
  const double dense = FlopsOf(shape)->per_token;
  shape.experts = 64;
  EXPECT_DOUBLE_EQ(FlopsOf(shape)->per_token, dense + 32.0 * 2 * 1024 * 64);
  shape.active_experts = 2;
  EXPECT_DOUBLE_EQ(FlopsOf(shape)->per_token, dense + 32.0 * (2.0 * 1024 * 64 + 4.0 * 1024 * 4096));
}

TEST(PieceCost, AWindowMakesLongPiecesLinear) {
  TransformerShape shape = Dense(4096);
  shape.window_tokens = 1024;
  CostSpec cost = *CostOf(shape);
  EXPECT_EQ(PieceCost(cost, 1024), PieceCost(CostSpec{}, 1024));
  // Each further token attends to 1024 others.
  EXPECT_EQ(PieceCost(cost, 9001) - PieceCost(cost, 9000), 49'152U + 2048U);
  shape.window_layers = 16;
  cost = *CostOf(shape);
  const std::uint64_t full = 8000ULL * 8000;
  const std::uint64_t windowed = 2ULL * 8000 * 1024 - 1024ULL * 1024;
  EXPECT_EQ(PieceCost(cost, 8000), 8000ULL * 49'152 + (full + windowed) / 2);
}

RC_GTEST_PROP(PieceCost, GrowsAndFollowsTheOperations, ()) {
  const auto draw = [](std::uint64_t low, std::uint64_t high) {
    return static_cast<std::uint32_t>(
        *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::uint64_t>(low, high + 1)));
  };
  TransformerShape shape = Dense(128 * draw(1, 64));
  shape.layers = draw(1, 100);
  shape.gated = draw(0, 1) == 1;
  if (draw(0, 1) == 1) {
    shape.window_tokens = draw(1, 10'000);
    shape.window_layers = draw(1, shape.layers);
  }
  const Result<CostSpec> cost = CostOf(shape);
  RC_ASSERT(cost.ok());
  const std::uint64_t length = draw(1, 200'000);
  RC_ASSERT(PieceCost(*cost, length + 1) > PieceCost(*cost, length));
  const double unit = *SequenceFlops(shape, 1) / static_cast<double>(PieceCost(*cost, 1));
  const double expected = *SequenceFlops(shape, length) / unit;
  RC_ASSERT(std::abs(static_cast<double>(PieceCost(*cost, length)) / expected - 1) < 0.002);
}

// An encoder's patches see each other in both directions, and no other image's.
TEST(SequenceFlops, AnEncoderPaysForEveryPair) {
  TransformerShape vit = Dense(1024);
  const double causal = *SequenceFlops(vit, 4096);
  vit.causal = false;
  const TransformerFlops flops = *FlopsOf(vit);
  EXPECT_DOUBLE_EQ(*SequenceFlops(vit, 4096) - causal, flops.per_pair * 4096.0 * 4096 / 2);
  EXPECT_LT(2 * *SequenceFlops(vit, 2048), *SequenceFlops(vit, 4096));
}

TEST(ActivationBytes, ThirtyFourAToken) {
  EXPECT_DOUBLE_EQ(*ActivationBytes(Dense(1024), 10, 2), 34.0 * 10 * 1024 * 32 / 2);
  EXPECT_FALSE(ActivationBytes(Dense(1024), 10, 0).ok());
}

TEST(FlopsOf, RefusesShapesThatMakeNoSense) {
  const auto refused = [](auto change, const char* word) {
    TransformerShape shape = Dense(1024);
    change(shape);
    const Result<CostSpec> cost = CostOf(shape);
    ASSERT_FALSE(cost.ok()) << word;
    EXPECT_EQ(cost.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(cost.status().message().find(word), std::string::npos) << cost.status().ToString();
  };
  using Shape = TransformerShape;
  refused([](Shape& s) { s.layers = 0; }, "layers 0");
  refused([](Shape& s) { s.kv_heads = 3; }, "kv_heads 3");
  refused([](Shape& s) { s.heads = 7; }, "head_size");
  refused([](Shape& s) { s.active_experts = 2; }, "active_experts 2");
  refused([](Shape& s) { s.window_layers = 2; }, "window_tokens");
  refused([](Shape& s) { s.window_tokens = 2, s.window_layers = 99; }, "window_layers 99");
  refused([](Shape& s) { s.causal = false; }, "causal");
  refused([](Shape& s) { s.head_size = 1, s.vocabulary = UINT32_MAX; }, "at most");
}

}  // namespace
}  // namespace widestream
