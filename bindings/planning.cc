// Balancing, packing and costs for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/errors.h"
#include "engine/plan/balance.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/exact_balance.h"
#include "engine/plan/packing.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

template <typename T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> SpanOf(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

Result<BalanceMethod> MethodNamed(const std::string& name) {
  if (name == "lpt") return BalanceMethod::kLpt;
  if (name == "multifit") return BalanceMethod::kMultifit;
  if (name == "karmarkar_karp") return BalanceMethod::kKarmarkarKarp;
  if (name == "none") return BalanceMethod::kNone;
  return Status::InvalidArgument("balance: found method " + name +
                                 ", expected lpt, multifit, karmarkar_karp or none");
}

nb::tuple ToPython(Assignment assignment) {
  const std::uint64_t most = assignment.max_load;
  const std::uint64_t bound = assignment.lower_bound;
  return nb::make_tuple(ToNumpy(std::move(assignment.bin_of)), ToNumpy(std::move(assignment.loads)),
                        most, bound);
}

// `method` "longest_first" is plain LPT, "exact" branch and bound of a million placements.
nb::tuple Balance(const Column<std::uint64_t>& costs, std::uint32_t bins, const std::string& method,
                  std::uint32_t group_size, std::uint32_t atoms_cap, std::uint64_t tokens_cap,
                  const std::optional<Column<std::uint64_t>>& tokens) {
  constexpr std::uint64_t kNodes = 1'000'000;
  BalanceInput input{.costs = SpanOf(costs),
                     .tokens = {},
                     .memory = {},
                     .bins = bins,
                     .caps = {.atoms = atoms_cap, .tokens = tokens_cap}};
  if (tokens) input.tokens = SpanOf(*tokens);
  Result<Assignment> found = Status::Internal("balance: no result");
  bool proven = false;
  {
    const nb::gil_scoped_release unlocked;
    if (method == "longest_first") {
      found = LongestFirst(input);
    } else if (method == "exact") {
      Result<ExactAssignment> exact = ExactBalance(input, kNodes);
      if (exact.ok()) {
        proven = exact->proven;
        found = std::move(exact->assignment);
      } else {
        found = exact.status();
      }
    } else {
      const Result<BalanceMethod> known = MethodNamed(method);
      found = known.ok() ? BalanceInGroups(input, *known, group_size == 0 ? bins : group_size)
                         : Result<Assignment>(known.status());
    }
  }
  Assignment assignment = ValueOrThrow(std::move(found));
  // What is proven best is its own bound.
  if (proven) assignment.lower_bound = assignment.max_load;
  return ToPython(std::move(assignment));
}

// The row of each piece; 2^32 - 1 where there was no room.
nb::object PackInto(const Column<std::uint32_t>& lengths, std::uint32_t rows,
                    std::uint32_t row_tokens) {
  constexpr std::uint32_t kMaxRows = 1U << 24;
  if (rows > kMaxRows) {
    ValueOrThrow(Result<int>(Status::InvalidArgument("pack: more than 2^24 rows")));
  }
  std::vector<std::uint32_t> row_of;
  {
    const nb::gil_scoped_release unlocked;
    row_of = RowsOfPieces(SpanOf(lengths), 0, rows, row_tokens);
  }
  return ToNumpy(std::move(row_of));
}

nb::dict CostDict(const CostSpec& cost) {
  nb::dict result;
  result["linear_tokens"] = cost.linear_tokens;
  result["constant_tokens"] = cost.constant_tokens;
  result["window_tokens"] = cost.window_tokens;
  result["window_layers"] = cost.window_layers;
  result["layers"] = cost.layers;
  return result;
}

}  // namespace

void register_planning(nb::module_& m) {
  m.def("balance", &Balance, nb::arg("costs"), nb::arg("bins"), nb::arg("method") = "lpt",
        nb::arg("group_size") = 0, nb::arg("atoms_cap") = 0, nb::arg("tokens_cap") = 0,
        nb::arg("tokens").none() = nb::none(),
        "Atoms to bins: (bin of each atom, load of each bin, largest load, lower bound).");
  m.def("pack_rows", &PackInto, nb::arg("lengths"), nb::arg("rows"), nb::arg("row_tokens"),
        "Best-fit decreasing: the row of each piece, 2**32 - 1 where there was no room.");

  nb::class_<TransformerShape>(m, "TransformerShape", "A model's shape, for its cost.")
      .def(nb::init<>())
      .def_rw("layers", &TransformerShape::layers)
      .def_rw("hidden_size", &TransformerShape::hidden_size)
      .def_rw("heads", &TransformerShape::heads)
      .def_rw("kv_heads", &TransformerShape::kv_heads)
      .def_rw("head_size", &TransformerShape::head_size)
      .def_rw("intermediate_size", &TransformerShape::intermediate_size)
      .def_rw("gated", &TransformerShape::gated)
      .def_rw("experts", &TransformerShape::experts)
      .def_rw("active_experts", &TransformerShape::active_experts)
      .def_rw("vocabulary", &TransformerShape::vocabulary)
      .def_rw("window_tokens", &TransformerShape::window_tokens)
      .def_rw("window_layers", &TransformerShape::window_layers)
      .def_rw("causal", &TransformerShape::causal);
  m.def(
      "transformer_cost",
      [](const TransformerShape& shape) { return CostDict(ValueOrThrow(CostOf(shape))); },
      nb::arg("shape"), "The planner's integers for pieces of text under this model.");
  m.def(
      "sequence_flops",
      [](const TransformerShape& shape, std::uint64_t length) {
        return ValueOrThrow(SequenceFlops(shape, length));
      },
      nb::arg("shape"), nb::arg("length"), "Operations of a forward pass of one sequence.");
  m.def(
      "activation_bytes",
      [](const TransformerShape& shape, std::uint64_t length, std::uint32_t tensor_parallel) {
        return ValueOrThrow(ActivationBytes(shape, length, tensor_parallel));
      },
      nb::arg("shape"), nb::arg("length"), nb::arg("tensor_parallel") = 1,
      "Bytes kept for the backward pass, without recomputation.");
}

}  // namespace widestream::python
