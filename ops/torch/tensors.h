#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ops/cpu/kernels.h"

// Tensors to the kernels' arrays: checks with shapes in the message, and parallel ranges on torch's
// threads.
namespace widestream::ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

inline std::string ShapeText(const Tensor& tensor) {
  std::string text = "[";
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    text += (i != 0 ? ", " : "") + std::to_string(tensor.size(i));
  }
  return text + "]";
}

inline std::string ShapeText(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i)
    text += (i != 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

inline bool IsState(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Float || tensor.scalar_type() == ScalarType::BFloat16;
}

// A contiguous float32 or bfloat16 tensor of this shape.
inline Tensor State(const char* op, const char* name, const Tensor& tensor,
                    const std::vector<std::int64_t>& shape) {
  STD_TORCH_CHECK(tensor.is_cpu(), op, ": ", name, " must be on the CPU, like the state");
  STD_TORCH_CHECK(IsState(tensor), op, ": ", name,
                  " must be float32 or bfloat16, not dtype number ",
                  static_cast<int>(tensor.scalar_type()), "; its shape is ", ShapeText(tensor));
  STD_TORCH_CHECK(ShapeText(tensor) == ShapeText(shape), op, ": ", name, " must be ",
                  ShapeText(shape), "; it is ", ShapeText(tensor));
  return torch::stable::contiguous(tensor);
}

inline Tensor Float32(const char* op, const char* name, const Tensor& tensor,
                      const std::vector<std::int64_t>& shape) {
  STD_TORCH_CHECK(tensor.is_cpu(), op, ": ", name, " must be on the CPU, like the state");
  STD_TORCH_CHECK(
      tensor.scalar_type() == ScalarType::Float, op, ": ", name,
      " must be float32 (coefficients and parameters never have less), not dtype number ",
      static_cast<int>(tensor.scalar_type()));
  STD_TORCH_CHECK(ShapeText(tensor) == ShapeText(shape), op, ": ", name, " must be ",
                  ShapeText(shape), "; it is ", ShapeText(tensor));
  return torch::stable::contiguous(tensor);
}

inline Number NumberOf(const Tensor& tensor) {
  return tensor.scalar_type() == ScalarType::Float ? Number::kFloat32 : Number::kBFloat16;
}

// The tensor's numbers from `offset` on.
inline ConstArray Array(const Tensor& tensor, std::int64_t offset = 0) {
  const Number number = NumberOf(tensor);
  const std::int64_t bytes = offset * (number == Number::kFloat32 ? 4 : 2);
  return {static_cast<const char*>(tensor.const_data_ptr()) + bytes, number};
}

inline MutableArray Out(const Tensor& tensor, std::int64_t offset = 0) {
  const Number number = NumberOf(tensor);
  const std::int64_t bytes = offset * (number == Number::kFloat32 ? 4 : 2);
  return {static_cast<char*>(tensor.mutable_data_ptr()) + bytes, number};
}

inline const float* Floats(const Tensor& tensor) {
  return static_cast<const float*>(tensor.const_data_ptr());
}
inline float* MutableFloats(const Tensor& tensor) {
  return static_cast<float*>(tensor.mutable_data_ptr());
}

inline Tensor NewFloats(const Tensor& like, std::initializer_list<std::int64_t> shape) {
  return torch::stable::new_empty(like, shape, ScalarType::Float);
}

inline Tensor NewLike(const Tensor& like, std::initializer_list<std::int64_t> shape) {
  return torch::stable::new_empty(like, shape, like.scalar_type());
}

// body(begin, end, scratch) over [0, count) on torch's threads; each range has `scratch_floats` of
// its own.
template <class Body>
void ParallelRanges(std::int64_t count, std::int64_t grain, std::int64_t scratch_floats,
                    const Body& body) {
  if (count == 0) return;
  torch::stable::parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    // Not filled with zeros: most of it is not touched with float32 states.
    const auto scratch =
        std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(scratch_floats));
    body(begin, end, scratch.get());
  });
}

// The second stage of a parameter gradient: the chunks' sums, added in order.
inline std::vector<float> SumOfChunks(const float* partial, std::int64_t chunks,
                                      std::int64_t size) {
  std::vector<float> total(static_cast<std::size_t>(size));
  ParallelRanges(size, 8192, 0, [&](std::int64_t begin, std::int64_t end, float*) {
    Kernels().sum_chunks(partial, chunks, size, begin, end, total.data());
  });
  return total;
}

}  // namespace widestream::ops
