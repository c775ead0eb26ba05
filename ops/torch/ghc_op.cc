// The operators of generalized hyper-connections: widestream::ghc_pre, ghc_post, ghc_post_pre,
// ghc_rebuild and their backwards. docs/operators.md describes them.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <tuple>

#include "ops/torch/tensors.h"

namespace widestream::ops {
namespace {

using Optional = std::optional<Tensor>;

Shape MakeShape(const char* op, const Tensor& h, std::int64_t m, std::int64_t carry) {
  STD_TORCH_CHECK(h.dim() == 3 && h.size(1) >= 1 && h.size(2) >= 1, op,
                  ": the wide state must be [tokens, n, d] with n and d at least 1; it is ",
                  ShapeText(h));
  STD_TORCH_CHECK(h.size(1) <= 4096 && h.size(2) <= (1 << 24), op, ": the wide state ",
                  ShapeText(h), " is larger than 4096 slots or 2^24 numbers a slot");
  Shape shape;
  shape.n = static_cast<int>(h.size(1));
  shape.d = static_cast<int>(h.size(2));
  STD_TORCH_CHECK(m >= 1 && m <= shape.n, op, ": m must be from 1 to n = ", shape.n, "; it is ", m);
  STD_TORCH_CHECK(carry >= 0 && carry <= 3, op,
                  ": carry must be 0 (ghc), 1 (identity), 2 (sinkhorn) or 3 (perm)");
  shape.m = static_cast<int>(m);
  shape.carry = static_cast<Carry>(carry);
  STD_TORCH_CHECK(shape.carry != Carry::kSinkhorn || shape.n <= kMaxSinkhornSlots, op,
                  ": sinkhorn takes up to ", kMaxSinkhornSlots, " slots; the state has ", shape.n);
  STD_TORCH_CHECK(shape.carry != Carry::kPerm || shape.n <= kMaxPermSlots, op,
                  ": perm takes up to ", kMaxPermSlots, " slots; the state has ", shape.n);
  shape.carry_columns = CarryColumns(shape.carry, shape.n);
  return shape;
}

std::int64_t OfToken(const Shape& shape) {
  return static_cast<std::int64_t>(shape.n) * shape.Columns();
}

std::int64_t Grain(const Shape& shape) {
  return std::max<std::int64_t>(BlockTokens(shape),
                                32768 / (static_cast<std::int64_t>(shape.n) * shape.d) + 1);
}

// The parameters, checked and held while a kernel runs; weights with the gain in them, both ways
// round.
class Parameters {
 public:
  Parameters(const char* op, const Shape& shape, const Tensor& statics, const Optional& scale,
             const Optional& weight, const Optional& gain, double eps) {
    const std::int64_t c = shape.Columns();
    const std::int64_t n = shape.n;
    const std::int64_t d = shape.d;
    statics_ = Float32(op, "statics", statics, {n, c});
    mixer_.statics = Floats(statics_);
    mixer_.eps = static_cast<float>(eps);
    STD_TORCH_CHECK(
        scale.has_value() == weight.has_value() && scale.has_value() == gain.has_value(), op,
        ": scale, weight and gain are given together (dynamic coefficients) or not at all");
    if (!scale.has_value() || !weight.has_value() || !gain.has_value()) return;
    scale_ = Float32(op, "scale", *scale, {n, c});
    weight_ = Float32(op, "weight", *weight, {d, c});
    gain_ = Float32(op, "gain", *gain, {d});
    mixer_.scale = Floats(scale_);
    by_row_.resize(static_cast<std::size_t>(c * d));
    by_column_.resize(static_cast<std::size_t>(c * d));
    const float* from = Floats(weight_);
    const float* factor = Floats(gain_);
    for (std::int64_t i = 0; i < d; ++i) {
      for (std::int64_t k = 0; k < c; ++k) {
        by_row_[i * c + k] = by_column_[k * d + i] = from[i * c + k] * factor[i];
      }
    }
    mixer_.weight = by_row_.data();
    mixer_.weight_t = by_column_.data();
  }

  const Mixer& mixer() const { return mixer_; }
  bool dynamic() const { return mixer_.scale != nullptr; }

  // Gradients of statics, scale, weight and gain from the sums of the chunks.
  std::array<Tensor, 4> Gradients(const Shape& shape, const std::vector<float>& total) const {
    const std::int64_t c = shape.Columns();
    const std::int64_t d = shape.d;
    Tensor of_statics = NewFloats(statics_, {shape.n, c});
    std::memcpy(of_statics.mutable_data_ptr(), total.data(), OfToken(shape) * sizeof(float));
    if (!dynamic()) {
      return {of_statics, NewFloats(statics_, {0}), NewFloats(statics_, {0}),
              NewFloats(statics_, {0})};
    }
    Tensor of_scale = NewFloats(statics_, {shape.n, c});
    std::memcpy(of_scale.mutable_data_ptr(), total.data() + OfToken(shape),
                OfToken(shape) * sizeof(float));
    Tensor of_weight = NewFloats(statics_, {d, c});
    Tensor of_gain = NewFloats(statics_, {d});
    const float* folded = total.data() + 2 * OfToken(shape);
    const float* weight = Floats(weight_);
    const float* gain = Floats(gain_);
    float* to_weight = MutableFloats(of_weight);
    float* to_gain = MutableFloats(of_gain);
    for (std::int64_t i = 0; i < d; ++i) {
      float sum = 0;
      for (std::int64_t k = 0; k < c; ++k) {
        to_weight[i * c + k] = folded[k * d + i] * gain[i];
        sum += folded[k * d + i] * weight[i * c + k];
      }
      to_gain[i] = sum;
    }
    return {of_statics, of_scale, of_weight, of_gain};
  }

 private:
  Mixer mixer_;
  Tensor statics_;
  Tensor scale_;
  Tensor weight_;
  Tensor gain_;
  std::vector<float> by_row_;
  std::vector<float> by_column_;
};

// Per-token or static coefficients: [tokens, n, c] or [1, n, c]. One token's own are both.
Tensor Coefficients(const char* op, const Shape& shape, const Tensor& coefficients,
                    std::int64_t tokens, std::int64_t* stride) {
  const bool fixed = coefficients.dim() == 3 && coefficients.size(0) == 1;
  *stride = fixed ? 0 : OfToken(shape);
  return Float32(op, "coefficients", coefficients, {fixed ? 1 : tokens, shape.n, shape.Columns()});
}

void RunForward(const ForwardArguments& arguments, std::int64_t tokens) {
  ParallelRanges(tokens, Grain(arguments.shape), ForwardScratchFloats(arguments.shape),
                 [&](std::int64_t begin, std::int64_t end, float* scratch) {
                   Kernels().forward(arguments, begin, end, scratch);
                 });
}

// Sums of the parameters' gradients if `sums`; then `arguments.partial` is filled in here.
std::vector<float> RunBackward(BackwardArguments arguments, std::int64_t tokens, bool sums) {
  const std::int64_t scratch_floats = BackwardScratchFloats(arguments.shape);
  if (!sums) {
    ParallelRanges(tokens, Grain(arguments.shape), scratch_floats,
                   [&](std::int64_t begin, std::int64_t end, float* scratch) {
                     Kernels().backward(arguments, begin, end, scratch);
                   });
    return {};
  }
  const std::int64_t size = PartialFloats(arguments.shape, arguments.mixer.scale != nullptr);
  const std::int64_t chunk = ChunkTokens(tokens);
  const std::int64_t chunks = (tokens + chunk - 1) / chunk;
  const auto partial =
      std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(chunks * size));
  arguments.partial = partial.get();
  arguments.chunk_tokens = chunk;
  ParallelRanges(
      chunks, 1, scratch_floats, [&](std::int64_t begin, std::int64_t end, float* scratch) {
        Kernels().backward(arguments, begin * chunk, std::min(tokens, end * chunk), scratch);
      });
  return SumOfChunks(partial.get(), chunks, size);
}

struct ReadOutputs {
  Tensor x;
  Tensor coefficients;
  Tensor angle;
  Tensor rho;
};

// The outputs of a read of `h`, set up in `arguments`.
ReadOutputs MakeReadOutputs(const Shape& shape, const Parameters& parameters, const Tensor& h,
                            ForwardArguments* arguments) {
  const std::int64_t tokens = h.size(0);
  const std::int64_t c = shape.Columns();
  ReadOutputs out{NewLike(h, {tokens, static_cast<std::int64_t>(shape.m) * shape.d}),
                  NewFloats(h, {parameters.dynamic() ? tokens : 1, shape.n, c}),
                  parameters.dynamic() ? NewFloats(h, {tokens, shape.n, c}) : NewFloats(h, {0}),
                  parameters.dynamic() ? NewFloats(h, {tokens, shape.n}) : NewFloats(h, {0})};
  arguments->mixer = parameters.mixer();
  arguments->x = Out(out.x);
  if (parameters.dynamic()) {
    arguments->next_coefficients = MutableFloats(out.coefficients);
    arguments->angle = MutableFloats(out.angle);
    arguments->rho = MutableFloats(out.rho);
  } else {
    std::memcpy(out.coefficients.mutable_data_ptr(), parameters.mixer().statics,
                OfToken(shape) * sizeof(float));
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> GhcPre(Tensor h, const Tensor& statics,
                                                  const Optional& scale, const Optional& weight,
                                                  const Optional& gain, std::int64_t m,
                                                  std::int64_t carry, double eps) {
  const Shape shape = MakeShape("ghc_pre", h, m, carry);
  h = State("ghc_pre", "the wide state", h, {h.size(0), shape.n, shape.d});
  const Parameters parameters("ghc_pre", shape, statics, scale, weight, gain, eps);
  ForwardArguments arguments;
  arguments.shape = shape;
  arguments.h = Array(h);
  ReadOutputs out = MakeReadOutputs(shape, parameters, h, &arguments);
  RunForward(arguments, h.size(0));
  return {out.x, out.coefficients, out.angle, out.rho};
}

Tensor GhcPost(Tensor h, Tensor z, Tensor coefficients, std::int64_t m, std::int64_t carry) {
  const Shape shape = MakeShape("ghc_post", h, m, carry);
  const std::int64_t tokens = h.size(0);
  ForwardArguments arguments;
  arguments.shape = shape;
  h = State("ghc_post", "the wide state", h, {tokens, shape.n, shape.d});
  z = State("ghc_post", "the sub-layer's output", z,
            {tokens, static_cast<std::int64_t>(shape.m) * shape.d});
  coefficients =
      Coefficients("ghc_post", shape, coefficients, tokens, &arguments.coefficient_stride);
  Tensor h_new = NewLike(h, {tokens, shape.n, shape.d});
  arguments.h = Array(h);
  arguments.z = Array(z);
  arguments.coefficients = Floats(coefficients);
  arguments.h_new = Out(h_new);
  RunForward(arguments, tokens);
  return h_new;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GhcPostPre(
    Tensor h, Tensor z, Tensor coefficients, const Tensor& statics, const Optional& scale,
    const Optional& weight, const Optional& gain, std::int64_t m, std::int64_t carry, double eps) {
  const Shape shape = MakeShape("ghc_post_pre", h, m, carry);
  const std::int64_t tokens = h.size(0);
  ForwardArguments arguments;
  arguments.shape = shape;
  h = State("ghc_post_pre", "the wide state", h, {tokens, shape.n, shape.d});
  z = State("ghc_post_pre", "the sub-layer's output", z,
            {tokens, static_cast<std::int64_t>(shape.m) * shape.d});
  coefficients =
      Coefficients("ghc_post_pre", shape, coefficients, tokens, &arguments.coefficient_stride);
  const Parameters parameters("ghc_post_pre", shape, statics, scale, weight, gain, eps);
  Tensor h_new = NewLike(h, {tokens, shape.n, shape.d});
  arguments.h = Array(h);
  arguments.z = Array(z);
  arguments.coefficients = Floats(coefficients);
  arguments.h_new = Out(h_new);
  ReadOutputs out = MakeReadOutputs(shape, parameters, h, &arguments);
  RunForward(arguments, tokens);
  return {h_new, out.x, out.coefficients, out.angle, out.rho};
}

std::tuple<Tensor, Tensor, Tensor> GhcPostBackward(Tensor gradient, Tensor h, Tensor z,
                                                   Tensor coefficients, std::int64_t m,
                                                   std::int64_t carry) {
  const char* op = "ghc_post_backward";
  const Shape shape = MakeShape(op, h, m, carry);
  const std::int64_t tokens = h.size(0);
  const std::int64_t width = static_cast<std::int64_t>(shape.m) * shape.d;
  BackwardArguments arguments;
  arguments.shape = shape;
  h = State(op, "the wide state", h, {tokens, shape.n, shape.d});
  z = State(op, "the sub-layer's output", z, {tokens, width});
  gradient = State(op, "the gradient", gradient, {tokens, shape.n, shape.d});
  const bool fixed = coefficients.dim() == 3 && coefficients.size(0) == 1;
  coefficients = Coefficients(op, shape, coefficients, tokens, &arguments.coefficient_stride);
  Tensor of_h = NewLike(h, {tokens, shape.n, shape.d});
  Tensor of_z = NewLike(z, {tokens, width});
  Tensor of_coefficients = NewFloats(h, {fixed ? 1 : tokens, shape.n, shape.Columns()});
  arguments.h = Array(h);
  arguments.z = Array(z);
  arguments.gradient_new = Array(gradient);
  arguments.coefficients = Floats(coefficients);
  arguments.gradient_h = Out(of_h);
  arguments.gradient_z = Out(of_z);
  if (!fixed) arguments.gradient_coefficients_out = MutableFloats(of_coefficients);
  const std::vector<float> total = RunBackward(arguments, tokens, fixed);
  if (fixed)
    std::memcpy(of_coefficients.mutable_data_ptr(), total.data(), OfToken(shape) * sizeof(float));
  return {of_h, of_z, of_coefficients};
}

// The part of a write's backward pass that the sub-layer waits for.
Tensor GhcPostGradientZ(Tensor gradient, Tensor coefficients, std::int64_t m, std::int64_t carry,
                        ScalarType dtype) {
  const char* op = "ghc_post_gradient_z";
  const Shape shape = MakeShape(op, gradient, m, carry);
  const std::int64_t tokens = gradient.size(0);
  BackwardArguments arguments;
  arguments.shape = shape;
  gradient = State(op, "the gradient", gradient, {tokens, shape.n, shape.d});
  coefficients = Coefficients(op, shape, coefficients, tokens, &arguments.coefficient_stride);
  STD_TORCH_CHECK(dtype == ScalarType::Float || dtype == ScalarType::BFloat16, op,
                  ": dtype is float32 or bfloat16");
  Tensor of_z = torch::stable::new_empty(
      gradient, {tokens, static_cast<std::int64_t>(shape.m) * shape.d}, dtype);
  arguments.gradient_new = Array(gradient);
  arguments.coefficients = Floats(coefficients);
  arguments.gradient_z = Out(of_z);
  RunBackward(arguments, tokens, false);
  return of_z;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> GhcBackward(
    Optional gradient_x, Optional gradient_new, Optional gradient_coefficients, Tensor h,
    Optional z, Tensor angle, Tensor rho, const Tensor& statics, const Optional& scale,
    const Optional& weight, const Optional& gain, std::int64_t m, std::int64_t carry) {
  const char* op = "ghc_backward";
  const Shape shape = MakeShape(op, h, m, carry);
  const std::int64_t tokens = h.size(0);
  const std::int64_t width = static_cast<std::int64_t>(shape.m) * shape.d;
  const std::int64_t c = shape.Columns();
  h = State(op, "the wide state", h, {tokens, shape.n, shape.d});
  const Parameters parameters(op, shape, statics, scale, weight, gain, 0.0);
  BackwardArguments arguments;
  arguments.shape = shape;
  arguments.mixer = parameters.mixer();
  arguments.h = Array(h);
  if (gradient_x.has_value()) {
    gradient_x = State(op, "the gradient of x", *gradient_x, {tokens, width});
    arguments.gradient_x = Array(*gradient_x);
  }
  STD_TORCH_CHECK(gradient_new.has_value() == z.has_value(), op,
                  ": the gradient of the new state and the sub-layer's output are given together");
  if (gradient_new.has_value()) {
    gradient_new =
        State(op, "the gradient of the new state", *gradient_new, {tokens, shape.n, shape.d});
    z = State(op, "the sub-layer's output", *z, {tokens, width});
    arguments.gradient_new = Array(*gradient_new);
    arguments.z = Array(*z);
  }
  const std::int64_t coefficient_rows = parameters.dynamic() ? tokens : 1;
  if (gradient_coefficients.has_value()) {
    gradient_coefficients = Float32(op, "the gradient of the coefficients", *gradient_coefficients,
                                    {coefficient_rows, shape.n, c});
    if (parameters.dynamic()) arguments.gradient_coefficients = Floats(*gradient_coefficients);
  }
  if (parameters.dynamic()) {
    angle = Float32(op, "angle", angle, {tokens, shape.n, c});
    rho = Float32(op, "rho", rho, {tokens, shape.n});
    arguments.angle = Floats(angle);
    arguments.rho = Floats(rho);
  } else {
    arguments.coefficients = parameters.mixer().statics;
  }
  Tensor of_h = NewLike(h, {tokens, shape.n, shape.d});
  arguments.gradient_h = Out(of_h);
  std::vector<float> total = RunBackward(arguments, tokens, true);
  if (!parameters.dynamic() && gradient_coefficients.has_value()) {
    for (std::int64_t k = 0; k < OfToken(shape); ++k) total[k] += Floats(*gradient_coefficients)[k];
  }
  std::array<Tensor, 4> of_parameters = parameters.Gradients(shape, total);
  return {of_h, of_parameters[0], of_parameters[1], of_parameters[2], of_parameters[3]};
}

// The states after each of the sub-layers, from the first state and the sub-layers' outputs; a
// lists of parameters holds one entry a sub-layer, and is empty where coefficients are static.
std::vector<Tensor> GhcRebuild(Tensor h, std::vector<Tensor> z, std::vector<Tensor> statics,
                               std::vector<Tensor> scale, std::vector<Tensor> weight,
                               std::vector<Tensor> gain, std::int64_t m, std::int64_t carry,
                               double eps) {
  const char* op = "ghc_rebuild";
  const Shape shape = MakeShape(op, h, m, carry);
  const std::int64_t tokens = h.size(0);
  const std::size_t count = z.size();
  STD_TORCH_CHECK(statics.size() == count && (scale.empty() || scale.size() == count) &&
                      weight.size() == scale.size() && gain.size() == scale.size(),
                  op, ": one entry a sub-layer is needed; there are ", count, " outputs, ",
                  statics.size(), " statics, ", scale.size(), " scales, ", weight.size(),
                  " weights, ", gain.size(), " gains");
  h = State(op, "the wide state", h, {tokens, shape.n, shape.d});
  std::vector<Parameters> parameters;
  std::vector<Tensor> states;
  parameters.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const bool dynamic = !scale.empty();
    parameters.emplace_back(op, shape, statics[i], dynamic ? Optional(scale[i]) : Optional(),
                            dynamic ? Optional(weight[i]) : Optional(),
                            dynamic ? Optional(gain[i]) : Optional(), eps);
    z[i] = State(op, "a sub-layer's output", z[i],
                 {tokens, static_cast<std::int64_t>(shape.m) * shape.d});
    states.push_back(NewLike(h, {tokens, shape.n, shape.d}));
  }
  const std::int64_t of_token = OfToken(shape);
  const std::int64_t block = BlockTokens(shape);
  const std::int64_t wide = static_cast<std::int64_t>(shape.n) * shape.d;
  const std::int64_t narrow = static_cast<std::int64_t>(shape.m) * shape.d;
  // Block by block through all sub-layers, so that a state is still in cache when it is carried on.
  ParallelRanges((tokens + block - 1) / block, Grain(shape) / block,
                 ForwardScratchFloats(shape) + block * of_token,
                 [&](std::int64_t begin, std::int64_t end, float* scratch) {
                   float* coefficients = scratch + ForwardScratchFloats(shape);
                   for (std::int64_t b = begin; b < end; ++b) {
                     const std::int64_t first = b * block;
                     const std::int64_t count_here = std::min(tokens - first, block);
                     for (std::size_t i = 0; i < count; ++i) {
                       const Mixer& mixer = parameters[i].mixer();
                       ForwardArguments write;
                       write.shape = shape;
                       write.h = Array(i == 0 ? h : states[i - 1], first * wide);
                       write.z = Array(z[i], first * narrow);
                       write.h_new = Out(states[i], first * wide);
                       write.coefficients = mixer.statics;
                       if (mixer.scale != nullptr) {
                         ForwardArguments read;
                         read.shape = shape;
                         read.h = write.h;
                         read.mixer = mixer;
                         read.next_coefficients = coefficients;
                         Kernels().forward(read, 0, count_here, scratch);
                         write.coefficients = coefficients;
                         write.coefficient_stride = of_token;
                       }
                       Kernels().forward(write, 0, count_here, scratch);
                     }
                   }
                 });
  return states;
}

std::string CpuInstructions() { return Kernels().name; }

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(widestream, m) {
  m.def(
      "ghc_pre(Tensor h, Tensor statics, Tensor? scale, Tensor? weight, Tensor? gain, int m, int "
      "carry, float eps) "
      "-> (Tensor x, Tensor coefficients, Tensor angle, Tensor rho)");
  m.def("ghc_post(Tensor h, Tensor z, Tensor coefficients, int m, int carry) -> Tensor");
  m.def(
      "ghc_post_pre(Tensor h, Tensor z, Tensor coefficients, Tensor statics, Tensor? scale, "
      "Tensor? weight, "
      "Tensor? gain, int m, int carry, float eps) "
      "-> (Tensor h_new, Tensor x, Tensor next_coefficients, Tensor angle, Tensor rho)");
  m.def(
      "ghc_post_backward(Tensor gradient, Tensor h, Tensor z, Tensor coefficients, int m, int "
      "carry) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "ghc_post_gradient_z(Tensor gradient, Tensor coefficients, int m, int carry, ScalarType "
      "dtype) -> Tensor");
  m.def(
      "ghc_backward(Tensor? gradient_x, Tensor? gradient_new, Tensor? gradient_coefficients, "
      "Tensor h, Tensor? z, "
      "Tensor angle, Tensor rho, Tensor statics, Tensor? scale, Tensor? weight, Tensor? gain, int "
      "m, int carry) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "ghc_rebuild(Tensor h, Tensor[] z, Tensor[] statics, Tensor[] scale, Tensor[] weight, "
      "Tensor[] gain, int m, "
      "int carry, float eps) -> Tensor[]");
  m.def("cpu_instructions() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(widestream, CPU, m) {
  m.impl("ghc_pre", TORCH_BOX(&GhcPre));
  m.impl("ghc_post", TORCH_BOX(&GhcPost));
  m.impl("ghc_post_pre", TORCH_BOX(&GhcPostPre));
  m.impl("ghc_post_backward", TORCH_BOX(&GhcPostBackward));
  m.impl("ghc_post_gradient_z", TORCH_BOX(&GhcPostGradientZ));
  m.impl("ghc_backward", TORCH_BOX(&GhcBackward));
  m.impl("ghc_rebuild", TORCH_BOX(&GhcRebuild));
}

STABLE_TORCH_LIBRARY_IMPL(widestream, CompositeExplicitAutograd, m) {
  m.impl("cpu_instructions", TORCH_BOX(&CpuInstructions));
}

}  // namespace widestream::ops
