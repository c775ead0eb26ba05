// What a piece costs to train on: compute, in integers so that every machine finds the same
// balance, and activation memory. Pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// Compute of one piece under `cost`, in units of half a query-key pair's:
//   (length + constant_tokens) * linear_tokens + attended(length)
// where attended is length^2 in a layer of full causal attention (twice the pairs below the
// diagonal) and 2 * length * w - w^2 in a layer with a window of w < length tokens; the mean over
// the layers, rounded up. Grows with the length. The sum over a step stays below 2^62.
std::uint64_t PieceCost(const CostSpec& cost, std::uint64_t length);

// A decoder (causal) or an encoder (not causal: ViT, audio), as its configuration names it. 0 heads
// of keys and values: as many as of queries; 0 head_size: hidden_size / heads; 0
// intermediate_size: 4 * hidden_size.
struct TransformerShape {
  std::uint32_t layers = 0;
  std::uint32_t hidden_size = 0;
  std::uint32_t heads = 0;
  std::uint32_t kv_heads = 0;  // grouped-query attention: fewer than heads
  std::uint32_t head_size = 0;
  std::uint32_t intermediate_size = 0;  // of one expert
  bool gated = false;                   // SwiGLU and the like: three matrices instead of two
  std::uint32_t experts = 1;            // MoE: all of them, for the router
  std::uint32_t active_experts = 1;     // a token's, shared ones included
  std::uint32_t vocabulary = 0;         // of the output layer; 0 without one
  std::uint32_t window_tokens = 0;      // sliding window; 0 without one
  std::uint32_t window_layers = 0;      // layers that have it; 0 with window_tokens: all
  bool causal = true;
};

// Floating-point operations of a forward pass, two a multiply-add; forward and backward are three
// times that. Matrices as in "Scaling Laws for Neural Language Models" (Kaplan et al. 2020, 2.1),
// attention as in "FlashAttention-2" (Dao 2023, 4.1: 4 * L^2 * head_size * heads, half if causal).
//   a token and layer:  2 * hidden * head_size * (2 * heads + 2 * kv_heads)
//                       + 2 * (2, gated 3) * hidden * intermediate * active_experts
//                       + 2 * hidden * experts (router, if more than one)
//   a token:            2 * hidden * vocabulary
//   a pair and layer:   4 * heads * head_size
// Normalisation, activation and position functions are of lower order and left out.
struct TransformerFlops {
  double per_token = 0;
  double per_pair = 0;  // of all layers
};
// InvalidArgument: no layers, width or heads, key-value heads that do not divide the heads, more
// active experts than experts, more windowed layers than layers.
Result<TransformerFlops> FlopsOf(const TransformerShape& shape);

// Forward operations of one sequence: of an encoder, of one image or clip, whose patches see each
// other and nothing else.
Result<double> SequenceFlops(const TransformerShape& shape, std::uint64_t length);

// The shape as the planner's integers. InvalidArgument too if the break-even of linear and
// quadratic parts is beyond kMaxLinearTokens.
Result<CostSpec> CostOf(const TransformerShape& shape);

// Bytes of activations kept for the backward pass, without recomputation, with attention that keeps
// no scores: layers * hidden * 34 bytes a token in 16 bits ("Reducing Activation Recomputation in
// Large Transformer Models", Korthikanti et al. 2022, equation 2 without its quadratic term), of
// which `tensor_parallel` ranks with sequence parallelism hold a part each (equation 4).
Result<double> ActivationBytes(const TransformerShape& shape, std::uint64_t length,
                               std::uint32_t tensor_parallel);

}  // namespace widestream
