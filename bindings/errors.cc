#include "bindings/errors.h"

#include <nanobind/nanobind.h>

#include <string>

namespace widestream::python {
namespace {

namespace nb = nanobind;

const char* ClassName(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case StatusCode::kNotFound:
      return "NotFoundError";
    case StatusCode::kIoError:
      return "IoError";
    case StatusCode::kUnavailable:
      return "UnavailableError";
    case StatusCode::kDeadlineExceeded:
      return "DeadlineExceededError";
    case StatusCode::kDataCorruption:
      return "DataCorruptionError";
    case StatusCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case StatusCode::kCancelled:
      return "CancelledError";
    case StatusCode::kOk:
    case StatusCode::kInternal:
      break;
  }
  return "InternalError";
}

}  // namespace

void ThrowIfError(const Status& status) {
  if (status.ok()) return;
  std::string message = status.message();
  if (status.code() == StatusCode::kInternal) {
    message += "; this is a bug in Widestream, please report it";
  }
  // A path in a message may hold any bytes; an exception's text may not.
  const nb::object text = nb::steal(PyUnicode_DecodeUTF8(
      message.data(), static_cast<Py_ssize_t>(message.size()), "backslashreplace"));
  if (!text.is_valid()) throw nb::python_error();
  const nb::object type = nb::module_::import_("widestream.errors").attr(ClassName(status.code()));
  const bool os_error =
      status.error_number() != 0 && PyObject_IsSubclass(type.ptr(), PyExc_OSError) == 1;
  // OSError takes errno from its first argument of two.
  const nb::object error = os_error ? type(status.error_number(), text) : type(text);
  PyErr_SetObject(type.ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace widestream::python
