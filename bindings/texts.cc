#include "bindings/texts.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace widestream::python {
namespace {

namespace nb = nanobind;

// The structures of the Arrow C data and C stream interfaces, whose layout is fixed for ever.
struct ArrowSchema {
  const char* format;
  const char* name;
  const char* metadata;
  std::int64_t flags;
  std::int64_t n_children;
  ArrowSchema** children;
  ArrowSchema* dictionary;
  void (*release)(ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  std::int64_t length;
  std::int64_t null_count;
  std::int64_t offset;
  std::int64_t n_buffers;
  std::int64_t n_children;
  const void** buffers;
  ArrowArray** children;
  ArrowArray* dictionary;
  void (*release)(ArrowArray*);
  void* private_data;
};

struct ArrowArrayStream {
  int (*get_schema)(ArrowArrayStream*, ArrowSchema*);
  int (*get_next)(ArrowArrayStream*, ArrowArray*);
  const char* (*get_last_error)(ArrowArrayStream*);
  void (*release)(ArrowArrayStream*);
  void* private_data;
};

// An error raised while text `index` was looked at says so.
void AddIndex(const nb::python_error& error, std::size_t index) {
  const nb::object value = nb::borrow(error.value());
  if (nb::hasattr(value, "add_note")) {
    value.attr("add_note")("text " + std::to_string(index) + " of the batch");
  }
}

template <typename Offset>
void AddArrowTexts(const ArrowArray& array, std::vector<std::string_view>* views) {
  const auto* const valid = static_cast<const std::uint8_t*>(array.buffers[0]);
  const auto* const offsets = static_cast<const Offset*>(array.buffers[1]) + array.offset;
  const auto* const data = static_cast<const char*>(array.buffers[2]);
  for (std::int64_t i = 0; i < array.length; ++i) {
    const std::int64_t bit = array.offset + i;
    if (array.null_count != 0 && valid != nullptr && ((valid[bit >> 3] >> (bit & 7)) & 1) == 0) {
      const std::string message =
          "text " + std::to_string(views->size()) + " is null; drop it, or fill it with \"\"";
      throw nb::value_error(message.c_str());
    }
    const Offset begin = offsets[i];
    const Offset end = offsets[i + 1];
    if (begin < 0 || end < begin) throw nb::value_error("an Arrow array has descending offsets");
    views->emplace_back(begin == end ? "" : data + begin, static_cast<std::size_t>(end - begin));
  }
}

void AddArrowArray(const ArrowSchema& schema, const ArrowArray& array,
                   std::vector<std::string_view>* views) {
  const std::string_view format = schema.format;
  const bool small = format == "u" || format == "z";
  const bool large = format == "U" || format == "Z";
  if (!(small || large) || schema.dictionary != nullptr) {
    const std::string message = "an Arrow array of format \"" + std::string(format) +
                                (schema.dictionary != nullptr ? "\" with a dictionary" : "\"") +
                                " holds no plain texts; cast it to pa.large_string()";
    throw nb::type_error(message.c_str());
  }
  if (array.length == 0) return;
  if (array.n_buffers != 3) throw nb::value_error("an Arrow string array must have three buffers");
  if (small) {
    AddArrowTexts<std::int32_t>(array, views);
  } else {
    AddArrowTexts<std::int64_t>(array, views);
  }
}

template <typename T>
T* FromCapsule(nb::handle capsule, const char* name) {
  void* const pointer = PyCapsule_GetPointer(capsule.ptr(), name);
  if (pointer == nullptr) throw nb::python_error();
  return static_cast<T*>(pointer);
}

// A released structure that a consumer fills; given back when the capsule dies.
template <typename T>
nb::object OwnedStructure(T** out) {
  auto* const structure = new T();
  *out = structure;
  return nb::capsule(structure, [](void* p) noexcept {
    auto* const owned = static_cast<T*>(p);
    if (owned->release != nullptr) owned->release(owned);
    delete owned;
  });
}

void CheckStream(ArrowArrayStream* stream, int code) {
  if (code == 0) return;
  const char* const why = stream->get_last_error(stream);
  const std::string message =
      std::string("the Arrow stream failed: ") + (why == nullptr ? "no reason given" : why);
  throw nb::value_error(message.c_str());
}

void AddArrowStream(nb::handle source, Texts* texts) {
  const nb::object capsule = source.attr("__arrow_c_stream__")();
  auto* const stream = FromCapsule<ArrowArrayStream>(capsule, "arrow_array_stream");
  if (stream->release == nullptr) throw nb::value_error("the Arrow stream is used up");
  ArrowSchema* schema = nullptr;
  const nb::object schema_owner = OwnedStructure(&schema);
  CheckStream(stream, stream->get_schema(stream, schema));
  for (;;) {
    ArrowArray* array = nullptr;
    nb::object owner = OwnedStructure(&array);
    CheckStream(stream, stream->get_next(stream, array));
    if (array->release == nullptr) return;
    texts->owners.push_back(std::move(owner));
    AddArrowArray(*schema, *array, &texts->views);
  }
}

}  // namespace

std::string_view TextOf(nb::handle object) {
  if (PyBytes_Check(object.ptr())) {
    return {PyBytes_AS_STRING(object.ptr()),
            static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()))};
  }
  if (!PyUnicode_Check(object.ptr())) {
    const std::string message =
        "a text must be str or bytes, not " + std::string(Py_TYPE(object.ptr())->tp_name);
    PyErr_SetString(PyExc_TypeError, message.c_str());
    throw nb::python_error();
  }
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

Texts Texts::Of(nb::handle source) {
  Texts texts;
  if (PyList_Check(source.ptr()) || PyTuple_Check(source.ptr())) {
    // The tuple keeps the texts alive while other threads may change the list.
    const nb::object kept = nb::steal(PySequence_Tuple(source.ptr()));
    if (!kept.is_valid()) throw nb::python_error();
    const auto count = static_cast<std::size_t>(PyTuple_GET_SIZE(kept.ptr()));
    texts.views.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      try {
        texts.views.push_back(TextOf(PyTuple_GET_ITEM(kept.ptr(), static_cast<Py_ssize_t>(i))));
      } catch (nb::python_error& error) {
        AddIndex(error, i);
        throw;
      }
    }
    texts.owners.push_back(kept);
    return texts;
  }
  if (nb::hasattr(source, "__arrow_c_array__")) {
    const nb::object pair = source.attr("__arrow_c_array__")();
    const auto* const schema = FromCapsule<ArrowSchema>(nb::object(pair[0]), "arrow_schema");
    const auto* const array = FromCapsule<ArrowArray>(nb::object(pair[1]), "arrow_array");
    texts.owners.push_back(pair);
    AddArrowArray(*schema, *array, &texts.views);
    return texts;
  }
  if (nb::hasattr(source, "__arrow_c_stream__")) {
    AddArrowStream(source, &texts);
    return texts;
  }
  const std::string message =
      "texts must be a list or tuple of str and bytes, or an Arrow string array, not " +
      std::string(Py_TYPE(source.ptr())->tp_name);
  throw nb::type_error(message.c_str());
}

}  // namespace widestream::python
