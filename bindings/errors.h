// The only way from a Status to a Python exception. The classes are those of
// python/widestream/errors.py.
#pragma once

#include <utility>

#include "engine/base/status.h"

namespace widestream::python {

// Raises the Python exception of a failed status (as nanobind::python_error). Needs the GIL.
void ThrowIfError(const Status& status);

// The value of a result, or its error raised. Needs the GIL.
template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return std::move(result).value();
}

}  // namespace widestream::python
