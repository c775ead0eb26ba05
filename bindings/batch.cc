// Batch for Python.
#include "bindings/batch.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "bindings/columns.h"
#include "bindings/errors.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

nb::dlpack::dtype TypeOf(DataType type) {
  switch (type) {
    case DataType::kInt64:
      return nb::dtype<std::int64_t>();
    case DataType::kInt32:
      return nb::dtype<std::int32_t>();
    case DataType::kBool:
      return nb::dtype<bool>();
  }
  return nb::dtype<std::uint8_t>();
}

// A numpy view of a tensor; keeps the batch's memory leased for as long as it lives.
nb::object ToNumpy(const BatchPointer& batch, const TensorView& tensor) {
  auto* keep = new BatchPointer(batch);
  nb::capsule owner(keep, [](void* p) noexcept { delete static_cast<BatchPointer*>(p); });
  std::vector<std::size_t> shape(tensor.shape.begin(), tensor.shape.end());
  std::byte* data = batch->memory + tensor.offset_bytes;
  return nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(), owner, nullptr,
                                         TypeOf(tensor.type)));
}

nb::list Microbatches(const BatchPointer& batch) {
  nb::list out;
  for (const MicrobatchView& view : batch->microbatches) {
    nb::dict tensors;
    for (const TensorView& tensor : view.tensors)
      tensors[tensor.name.c_str()] = ToNumpy(batch, tensor);
    tensors["max_seqlen"] = view.max_seqlen;
    tensors["shape"] = nb::cast(view.shape);
    tensors["real_tokens"] = view.real_tokens;
    out.append(tensors);
  }
  return out;
}

std::shared_ptr<const StepPlan> PlanOf(const BatchPointer& batch) {
  Result<std::shared_ptr<const StepPlan>> plan = Status::Internal("not asked");
  {
    nb::gil_scoped_release release;
    plan = batch->plan();
  }
  return ValueOrThrow(std::move(plan));
}

}  // namespace

void register_batch(nb::module_& m) {
  nb::class_<BatchPointer>(m, "Batch",
                           "One step of one rank. Its arrays share the engine's memory.")
      .def_prop_ro("step", [](const BatchPointer& b) { return b->step; })
      .def_prop_ro("dp_rank", [](const BatchPointer& b) { return b->dp_rank; })
      .def_prop_ro("supervised_tokens", [](const BatchPointer& b) { return b->supervised_tokens; })
      .def_prop_ro("real_tokens", [](const BatchPointer& b) { return b->real_tokens; })
      .def_prop_ro("weights", [](const BatchPointer& b) { return b->weights; })
      .def_prop_ro("tokens_by_source", [](const BatchPointer& b) { return b->tokens_by_source; })
      .def_prop_ro("digest", [](const BatchPointer& b) { return b->digest; })
      .def_prop_ro("size_bytes", [](const BatchPointer& b) { return b->size_bytes; })
      .def_prop_ro("costs", [](const BatchPointer& b) { return b->costs; })
      .def("microbatches", &Microbatches)
      .def("pieces", [](const BatchPointer& b) { return PieceColumns(PlanOf(b)->pieces); })
      .def("layout", [](const BatchPointer& b) { return LayoutOf(*PlanOf(b)); });
}

}  // namespace widestream::python
