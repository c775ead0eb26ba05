// Bytes of unknown origin as Python text, and paths as bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace widestream::python {

// str; bytes that are not UTF-8 become \xNN. For names and messages, which quote what files hold.
nanobind::object ToText(const std::string& bytes);
// A path as str that Python can open again, whatever its bytes.
nanobind::object ToPath(const std::string& bytes);
// The bytes of a str, bytes or os.PathLike. Raises TypeError, or ValueError for a NUL inside.
std::string PathBytes(nanobind::handle path);

}  // namespace widestream::python
