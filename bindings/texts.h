// Texts that Python holds, as views into its memory: str, bytes, lists of them, Arrow arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <vector>

namespace widestream::python {

// The bytes of a str (as UTF-8) or bytes object, valid while the object lives. Raises TypeError for
// anything else, and UnicodeEncodeError for a str with lone surrogates. Needs the GIL.
std::string_view TextOf(nanobind::handle object);

// Many texts without a copy. Keeps alive what they lie in. Made and destroyed with the GIL; `views`
// may be read without.
struct Texts {
  std::vector<std::string_view> views;
  std::vector<nanobind::object> owners;

  // A list or tuple of str and bytes, or whatever gives Arrow strings or binary by the Arrow
  // PyCapsule interface (pyarrow arrays and chunked arrays, polars and so on). An error names the
  // text by its index; a null in an Arrow array is one (ValueError).
  static Texts Of(nanobind::handle texts);
};

}  // namespace widestream::python
