#include "engine/plan/cost_model.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format_text.h"
#include "engine/job/validate.h"

namespace widestream {
namespace {

// The shape with its defaults filled in.
Result<TransformerShape> Complete(TransformerShape shape) {
  const auto bad = [](auto... parts) {
    return Status::InvalidArgument(StrCat("cost: ", parts...));
  };
  if (shape.layers == 0 || shape.hidden_size == 0 || shape.heads == 0) {
    return bad("layers ", shape.layers, ", hidden_size ", shape.hidden_size, ", heads ",
               shape.heads, "; give at least 1 each");
  }
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.heads % shape.kv_heads != 0) {
    return bad("kv_heads ", shape.kv_heads, " do not divide the heads ", shape.heads);
  }
  if (shape.head_size == 0) {
    if (shape.hidden_size % shape.heads != 0) {
      return bad("heads ", shape.heads, " do not divide hidden_size ", shape.hidden_size,
                 "; give head_size");
    }
    shape.head_size = shape.hidden_size / shape.heads;
  }
  if (shape.intermediate_size == 0) {
    if (shape.hidden_size > UINT32_MAX / 4) return bad("hidden_size ", shape.hidden_size);
    shape.intermediate_size = 4 * shape.hidden_size;
  }
  if (shape.active_experts == 0 || shape.active_experts > shape.experts) {
    return bad("active_experts ", shape.active_experts, " of experts ", shape.experts,
               "; give 1 to all of them");
  }
  if (shape.window_tokens == 0 && shape.window_layers != 0) {
    return bad("window_layers ", shape.window_layers, " without window_tokens");
  }
  if (shape.window_layers > shape.layers) {
    return bad("window_layers ", shape.window_layers, " of layers ", shape.layers);
  }
  if (shape.window_tokens != 0 && shape.window_layers == 0) shape.window_layers = shape.layers;
  if (shape.window_tokens != 0 && !shape.causal) {
    return bad("window_tokens of an encoder; only causal attention has a window here");
  }
  return shape;
}

// Twice the pairs of one layer, without those of the diagonal.
double Attended(double length, double window) {
  return window == 0 || window >= length ? length * length : 2 * length * window - window * window;
}

}  // namespace

std::uint64_t PieceCost(const CostSpec& cost, std::uint64_t length) {
  const std::uint64_t full = length * length;
  const std::uint64_t window = cost.window_tokens;
  std::uint64_t attended = full;
  if (window != 0 && window < length) {
    const std::uint64_t windowed = 2 * length * window - window * window;
    // full - share * (full - windowed), which needs no more bits than `full` and the layers.
    const std::uint64_t saved = full - windowed;
    attended = full - (saved / cost.layers * cost.window_layers +
                       saved % cost.layers * cost.window_layers / cost.layers);
  }
  return (length + cost.constant_tokens) * cost.linear_tokens + attended;
}

Result<TransformerFlops> FlopsOf(const TransformerShape& given) {
  WS_ASSIGN_OR_RETURN(const TransformerShape shape, Complete(given));
  const double hidden = shape.hidden_size;
  const double head = shape.head_size;
  double layer =
      2 * hidden * head * (2.0 * shape.heads + 2.0 * shape.kv_heads) +
      2 * (shape.gated ? 3 : 2) * hidden * shape.intermediate_size * shape.active_experts;
  if (shape.experts > 1) layer += 2 * hidden * shape.experts;
  return TransformerFlops{.per_token = layer * shape.layers + 2 * hidden * shape.vocabulary,
                          .per_pair = 4.0 * shape.heads * head * shape.layers};
}

Result<double> SequenceFlops(const TransformerShape& given, std::uint64_t length) {
  WS_ASSIGN_OR_RETURN(const TransformerShape shape, Complete(given));
  WS_ASSIGN_OR_RETURN(const TransformerFlops flops, FlopsOf(shape));
  const auto tokens = static_cast<double>(length);
  double pairs = tokens * tokens;
  if (shape.causal) {
    const double share = static_cast<double>(shape.window_layers) / shape.layers;
    pairs = ((1 - share) * Attended(tokens, 0) + share * Attended(tokens, shape.window_tokens)) / 2;
  }
  return flops.per_token * tokens + flops.per_pair * pairs;
}

Result<CostSpec> CostOf(const TransformerShape& given) {
  WS_ASSIGN_OR_RETURN(const TransformerShape shape, Complete(given));
  WS_ASSIGN_OR_RETURN(const TransformerFlops flops, FlopsOf(shape));
  if (!shape.causal) {
    return Status::InvalidArgument(
        "cost: the planner's pieces are text, which a causal model reads");
  }
  const double linear = std::floor(2 * flops.per_token / flops.per_pair + 0.5);
  if (!(linear <= static_cast<double>(kMaxLinearTokens))) {
    return Status::InvalidArgument(StrCat("cost: attention costs as much as the rest only at ",
                                          linear, " tokens; expected at most ", kMaxLinearTokens));
  }
  CostSpec cost;
  cost.linear_tokens = std::max(1U, static_cast<std::uint32_t>(linear));
  cost.window_tokens = shape.window_tokens;
  cost.window_layers = shape.window_layers;
  cost.layers = shape.layers;
  return cost;
}

Result<double> ActivationBytes(const TransformerShape& given, std::uint64_t length,
                               std::uint32_t tensor_parallel) {
  WS_ASSIGN_OR_RETURN(const TransformerShape shape, Complete(given));
  if (tensor_parallel == 0) {
    return Status::InvalidArgument("cost: tensor_parallel is 0; give at least 1");
  }
  constexpr double kBytes = 34;
  return kBytes * static_cast<double>(length) * shape.hidden_size * shape.layers / tensor_parallel;
}

}  // namespace widestream
