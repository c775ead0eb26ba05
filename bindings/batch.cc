// Batch for Python.
#include "bindings/batch.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/columns.h"
#include "bindings/errors.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

// numpy's own words, looked up once. Never freed: views may outlive the module.
struct Numpy {
  nb::object array, int64, int32, boolean;

  static const Numpy& Get() {
    static const Numpy* numpy = [] {
      const nb::module_ module = nb::module_::import_("numpy");
      const nb::object dtype = module.attr("dtype");
      return new Numpy{module.attr("ndarray"), dtype("int64"), dtype("int32"), dtype("bool")};
    }();
    return *numpy;
  }
  [[nodiscard]] const nb::object& TypeOf(DataType type) const {
    switch (type) {
      case DataType::kInt64:
        return int64;
      case DataType::kInt32:
        return int32;
      case DataType::kBool:
        return boolean;
    }
    return int64;
  }
};

nb::tuple ToTuple(const std::vector<std::int64_t>& shape) {
  nb::object tuple = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(shape.size())));
  for (std::size_t i = 0; i < shape.size(); ++i) {
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), PyLong_FromLongLong(shape[i]));
  }
  return nb::borrow<nb::tuple>(tuple);
}

// All bytes that the batch's tensors lie in, as one array; keeps them leased for as long as it or
// a view of it lives.
nb::object Memory(const BatchPointer& batch) {
  std::size_t size_bytes = 0;
  for (const MicrobatchView& view : *batch->microbatches) {
    for (const TensorView& tensor : view.tensors) {
      size_bytes = std::max(size_bytes, tensor.offset_bytes + tensor.size_bytes());
    }
  }
  nb::capsule owner(new BatchPointer(batch),
                    [](void* p) noexcept { delete static_cast<BatchPointer*>(p); });
  return nb::cast(
      nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>(batch->memory, {size_bytes}, owner));
}

nb::list Microbatches(const BatchPointer& batch) {
  const Numpy& numpy = Numpy::Get();
  const nb::object memory = Memory(batch);
  nb::list out;
  for (const MicrobatchView& view : *batch->microbatches) {
    nb::dict tensors;
    for (const TensorView& tensor : view.tensors) {
      tensors[tensor.name.c_str()] = numpy.array(ToTuple(tensor.shape), numpy.TypeOf(tensor.type),
                                                 memory, tensor.offset_bytes);
    }
    tensors["max_seqlen"] = view.max_seqlen;
    tensors["shape"] = ToTuple(view.shape);
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
