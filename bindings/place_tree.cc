// ClientPlaceTree for Python.
#include "engine/plan/place_tree.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bindings/errors.h"
#include "engine/job/spec.h"

namespace nb = nanobind;

namespace widestream::python {
namespace {

// A wrong rank from Python is an IndexError, as of a list.
const Place& PlaceAt(const ClientPlaceTree& tree, std::uint32_t rank) {
  if (rank >= tree.world()) {
    throw nb::index_error(
        ("rank " + std::to_string(rank) + " of a world of " + std::to_string(tree.world()))
            .c_str());
  }
  return tree.place(rank);
}

}  // namespace

void register_place_tree(nb::module_& m) {
  nb::class_<Place>(m, "Place", "One trainer rank of a mesh.")
      .def_ro("rank", &Place::rank)
      .def_ro("dp", &Place::dp)
      .def_ro("cp", &Place::cp)
      .def_ro("tp", &Place::tp)
      .def_ro("pp", &Place::pp)
      .def_ro("fetches", &Place::fetches)
      .def_ro("leader", &Place::leader)
      .def_ro("first_stage", &Place::first_stage)
      .def_ro("last_stage", &Place::last_stage)
      .def_ro("leads_cp", &Place::leads_cp)
      .def_ro("leads_pp", &Place::leads_pp);

  nb::class_<ClientPlaceTree>(m, "PlaceTree", "The places of a mesh; immutable.")
      .def(nb::new_([](const std::string& mesh_json) {
             return ValueOrThrow(ClientPlaceTree::Make(ValueOrThrow(ParseMesh(mesh_json))));
           }),
           nb::arg("mesh_json"))
      .def_prop_ro("world", &ClientPlaceTree::world)
      .def("place", &PlaceAt, nb::arg("rank"), nb::rv_policy::copy)
      .def("ranks_of_dp", &ClientPlaceTree::ranks_of_dp, nb::arg("dp"))
      .def("fetching_ranks_of_dp", &ClientPlaceTree::fetching_ranks_of_dp, nb::arg("dp"))
      .def("groups",
           [](const ClientPlaceTree& tree) {
             std::vector<std::vector<std::uint32_t>> groups;
             for (BroadcastGroup& group : tree.groups()) groups.push_back(std::move(group.ranks));
             return groups;
           })
      .def(
          "check_world",
          [](const ClientPlaceTree& tree, std::uint32_t world) {
            ThrowIfError(tree.CheckWorld(world));
          },
          nb::arg("world"))
      .def("__str__", &ClientPlaceTree::ToString);
}

}  // namespace widestream::python
