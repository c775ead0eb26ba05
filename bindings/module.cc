// The Python extension widestream._core: glue only, one register_x function a topic.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace widestream::python {
void register_transform(nb::module_& module);
void register_batch(nb::module_& module);
void register_delivery(nb::module_& module);
void register_chat(nb::module_& module);
void register_convert(nb::module_& module);
void register_host(nb::module_& module);
void register_inspect(nb::module_& module);
void register_journal(nb::module_& module);
void register_place_tree(nb::module_& module);
void register_planning(nb::module_& module);
}  // namespace widestream::python

NB_MODULE(_core, m) {
  m.doc() = "The C++ engine of Widestream.";
  widestream::python::register_transform(m);
  widestream::python::register_batch(m);
  widestream::python::register_delivery(m);
  widestream::python::register_chat(m);
  widestream::python::register_convert(m);
  widestream::python::register_host(m);
  widestream::python::register_inspect(m);
  widestream::python::register_journal(m);
  widestream::python::register_place_tree(m);
  widestream::python::register_planning(m);
}
