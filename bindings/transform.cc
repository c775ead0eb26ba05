// Python face of engine/transform: class Tokenizer.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/errors.h"
#include "engine/transform/tokenizer.h"

namespace widestream::python {
namespace {

namespace nb = nanobind;

using TokenizerPointer = std::shared_ptr<const Tokenizer>;

// The numbers of a vector as a numpy array that owns them.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> ToNumpy(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* const data = owned->data();
  const std::size_t size = owned->size();
  nb::capsule owner(owned.get(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  owned.release();
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner);
}

// The bytes of a str (as UTF-8) or bytes object, valid while the object lives.
std::string_view TextOf(nb::handle object) {
  if (PyBytes_Check(object.ptr())) {
    return {PyBytes_AS_STRING(object.ptr()),
            static_cast<std::size_t>(PyBytes_GET_SIZE(object.ptr()))};
  }
  if (!PyUnicode_Check(object.ptr())) {
    throw nb::type_error("a text must be str or bytes");
  }
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<std::size_t>(size)};
}

TokenizerPointer FromFile(const std::filesystem::path& path, const std::string& pattern) {
  Result<TokenizerPointer> result = Status::Internal("not loaded");
  {
    nb::gil_scoped_release release;
    result = Tokenizer::FromFile(path.string(), {.pattern = pattern});
  }
  return ValueOrThrow(std::move(result));
}

auto Encode(const Tokenizer& tokenizer, nb::handle text) {
  const std::string_view bytes = TextOf(text);
  std::vector<std::uint32_t> ids;
  {
    nb::gil_scoped_release release;
    tokenizer.Encode(bytes, &ids);
  }
  return ToNumpy(std::move(ids));
}

auto EncodeBatch(const Tokenizer& tokenizer, const nb::list& texts) {
  // The tuple keeps the texts alive while other threads may change the list.
  const nb::tuple kept(texts);
  std::vector<std::string_view> bytes;
  bytes.reserve(kept.size());
  for (const nb::handle text : kept) bytes.push_back(TextOf(text));
  std::vector<std::uint32_t> ids;
  std::vector<std::int64_t> offsets{0};
  {
    nb::gil_scoped_release release;
    offsets.reserve(bytes.size() + 1);
    for (const std::string_view text : bytes) {
      tokenizer.Encode(text, &ids);
      offsets.push_back(static_cast<std::int64_t>(ids.size()));
    }
  }
  return nb::make_tuple(ToNumpy(std::move(ids)), ToNumpy(std::move(offsets)));
}

nb::bytes Decode(
    const Tokenizer& tokenizer,
    const nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& ids) {
  std::string bytes;
  Status status;
  {
    nb::gil_scoped_release release;
    status = tokenizer.Decode({ids.data(), ids.size()}, &bytes);
  }
  ThrowIfError(status);
  return nb::bytes(bytes.data(), bytes.size());
}

}  // namespace

void register_transform(nb::module_& module) {
  nb::class_<Tokenizer>(
      module, "Tokenizer",
      "Byte-level BPE tokenizer with the ids of tiktoken and tokenizers.\n\n"
      "Immutable; usable from any number of threads. Special tokens never arise from "
      "text. Bytes that are not UTF-8 keep their value and count as punctuation.")
      .def_static(
          "from_file", &FromFile, nb::arg("path"), nb::arg("pattern") = "",
          "Reads a .tiktoken file or a tokenizer.json. `pattern` is \"gpt2\" or \"cl100k\", "
          "needed only where the file does not say it.\n\n"
          "Raises NotFoundError, IoError, ResourceExhaustedError (above 64 MiB) or "
          "InvalidArgumentError.")
      .def("encode", &Encode, nb::arg("text"),
           "The ids of a str or bytes: numpy uint32 array [T]. Raises UnicodeEncodeError for a str "
           "with "
           "lone surrogates.",
           nb::sig("def encode(self, text: str | bytes) -> "
                   "numpy.typing.NDArray[numpy.uint32]"))
      .def("encode_batch", &EncodeBatch, nb::arg("texts"),
           "The ids of N texts, one after the other: (ids uint32 [T], offsets int64 [N + 1]); text "
           "i has "
           "ids[offsets[i]:offsets[i + 1]].",
           nb::sig("def encode_batch(self, texts: list[str | bytes]) -> "
                   "tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]"))
      .def("decode", &Decode, nb::arg("ids").noconvert(),
           "The bytes of ids (uint32 [T]); a special token gives its name. Raises "
           "InvalidArgumentError "
           "for an id that is not in the vocabulary, TypeError for another dtype.",
           nb::sig("def decode(self, ids: numpy.typing.NDArray[numpy.uint32]) -> bytes"))
      .def(
          "special_token_id",
          [](const Tokenizer& t, const std::string& name) { return t.SpecialTokenId(name); },
          nb::arg("name"), "The id of a special token such as \"<|endoftext|>\", or None.")
      .def_prop_ro("vocabulary_size", &Tokenizer::VocabularySize,
                   "The largest id + 1, special tokens counted.")
      .def_prop_ro("digest", &Tokenizer::Digest,
                   "32 hexadecimal digits over everything that decides ids.");
}

}  // namespace widestream::python
