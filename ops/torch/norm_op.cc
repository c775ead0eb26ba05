// widestream::group_norm and its backward: grouped RMSNorm with a gain a channel.
#include <algorithm>
#include <cstring>
#include <memory>
#include <tuple>

#include "ops/torch/tensors.h"

namespace widestream::ops {
namespace {

GroupNormArguments Check(const char* op, const Tensor& x, const Tensor& gain, std::int64_t group) {
  STD_TORCH_CHECK(x.dim() == 2 && group >= 1 && x.size(1) >= 1 && x.size(1) % group == 0, op,
                  ": x must be [tokens, channels] with channels a multiple of the group size ",
                  group, "; it is ", ShapeText(x));
  GroupNormArguments arguments;
  arguments.channels = x.size(1);
  arguments.group = group;
  arguments.gain = Floats(gain);
  return arguments;
}

std::int64_t Grain(std::int64_t channels) { return std::max<std::int64_t>(1, 32768 / channels); }

std::tuple<Tensor, Tensor> GroupNorm(Tensor x, Tensor gain, std::int64_t group, double eps) {
  const char* op = "group_norm";
  GroupNormArguments arguments = Check(op, x, gain, group);
  const std::int64_t tokens = x.size(0);
  x = State(op, "x", x, {tokens, arguments.channels});
  gain = Float32(op, "gain", gain, {arguments.channels});
  Tensor y = NewLike(x, {tokens, arguments.channels});
  Tensor rho = NewFloats(x, {tokens, arguments.channels / group});
  arguments.gain = Floats(gain);
  arguments.eps = static_cast<float>(eps);
  arguments.x = Array(x);
  arguments.y = Out(y);
  arguments.rho = MutableFloats(rho);
  ParallelRanges(tokens, Grain(arguments.channels), GroupNormScratchFloats(arguments.channels),
                 [&](std::int64_t begin, std::int64_t end, float* scratch) {
                   Kernels().group_norm(arguments, begin, end, scratch);
                 });
  return {y, rho};
}

std::tuple<Tensor, Tensor> GroupNormBackward(Tensor gradient, Tensor x, Tensor gain, Tensor rho,
                                             std::int64_t group) {
  const char* op = "group_norm_backward";
  GroupNormArguments arguments = Check(op, x, gain, group);
  const std::int64_t tokens = x.size(0);
  x = State(op, "x", x, {tokens, arguments.channels});
  gradient = State(op, "the gradient", gradient, {tokens, arguments.channels});
  gain = Float32(op, "gain", gain, {arguments.channels});
  rho = torch::stable::clone(Float32(op, "rho", rho, {tokens, arguments.channels / group}));
  Tensor of_x = NewLike(x, {tokens, arguments.channels});
  Tensor of_gain = NewFloats(x, {arguments.channels});
  const std::int64_t chunk = ChunkTokens(tokens);
  const std::int64_t chunks = (tokens + chunk - 1) / chunk;
  const auto partial = std::make_unique_for_overwrite<float[]>(
      static_cast<std::size_t>(chunks * arguments.channels));
  arguments.gain = Floats(gain);
  arguments.x = Array(x);
  arguments.rho = MutableFloats(rho);
  arguments.gradient_y = Array(gradient);
  arguments.gradient_x = Out(of_x);
  arguments.partial = partial.get();
  arguments.chunk_tokens = chunk;
  ParallelRanges(chunks, 1, GroupNormScratchFloats(arguments.channels),
                 [&](std::int64_t begin, std::int64_t end, float* scratch) {
                   Kernels().group_norm_backward(arguments, begin * chunk,
                                                 std::min(tokens, end * chunk), scratch);
                 });
  const std::vector<float> total = SumOfChunks(partial.get(), chunks, arguments.channels);
  std::memcpy(of_gain.mutable_data_ptr(), total.data(), total.size() * sizeof(float));
  return {of_x, of_gain};
}

}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(widestream, m) {
  m.def("group_norm(Tensor x, Tensor gain, int group, float eps) -> (Tensor, Tensor)");
  m.def(
      "group_norm_backward(Tensor gradient, Tensor x, Tensor gain, Tensor rho, int group) -> "
      "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(widestream, CPU, m) {
  m.impl("group_norm", TORCH_BOX(&GroupNorm));
  m.impl("group_norm_backward", TORCH_BOX(&GroupNormBackward));
}

}  // namespace widestream::ops
