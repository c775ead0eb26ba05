#include "bindings/text.h"

namespace widestream::python {

namespace nb = nanobind;

nb::object ToText(const std::string& bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

nb::object ToPath(const std::string& bytes) {
  PyObject* path =
      PyUnicode_DecodeFSDefaultAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
  if (path == nullptr) throw nb::python_error();
  return nb::steal(path);
}

std::string PathBytes(nb::handle path) {
  PyObject* bytes = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), static_cast<void*>(&bytes)) == 0) {
    throw nb::python_error();
  }
  const nb::object owner = nb::steal(bytes);
  return {PyBytes_AS_STRING(bytes), static_cast<std::size_t>(PyBytes_GET_SIZE(bytes))};
}

}  // namespace widestream::python
