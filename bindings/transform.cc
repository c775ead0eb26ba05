// Python face of engine/transform: classes Tokenizer and EncodeOptions.
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
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/errors.h"
#include "bindings/text.h"
#include "bindings/texts.h"
#include "engine/transform/count_batch.h"
#include "engine/transform/tokenizer.h"

namespace widestream::python {
namespace {

namespace nb = nanobind;

using TokenizerPointer = std::shared_ptr<const Tokenizer>;
template <typename T>
using Array = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

TokenizerPointer FromFile(const std::filesystem::path& path, const std::string& pattern) {
  Result<TokenizerPointer> result = Status::Internal("not loaded");
  {
    nb::gil_scoped_release release;
    result = Tokenizer::FromFile(path.string(), {.pattern = pattern});
  }
  return ValueOrThrow(std::move(result));
}

// "all" or any iterable of names.
SpecialTokenSet SpecialsOf(nb::handle object) {
  if (PyUnicode_Check(object.ptr())) {
    const std::string name = nb::cast<std::string>(object);
    if (name == "all") return SpecialTokenSet::All();
    throw nb::type_error("special tokens must be \"all\" or a collection of names");
  }
  SpecialTokenSet set;
  for (const nb::handle name : nb::iter(object)) set.names.push_back(nb::cast<std::string>(name));
  return set;
}

EncodeOptions MakeOptions(nb::handle allowed, nb::handle disallowed, bool add_special_tokens,
                          std::optional<std::int64_t> max_tokens) {
  EncodeOptions options;
  options.allowed_special = SpecialsOf(allowed);
  options.disallowed_special = SpecialsOf(disallowed);
  options.add_special_tokens = add_special_tokens;
  if (max_tokens.has_value()) {
    if (*max_tokens < 0) throw nb::value_error("max_tokens must not be negative");
    options.max_tokens = static_cast<std::size_t>(*max_tokens);
  }
  return options;
}

EncodeOptions OrDefault(const EncodeOptions* options) {
  return options == nullptr ? EncodeOptions() : *options;
}

template <typename Id>
nb::object EncodeAs(const Tokenizer& tokenizer, std::string_view text,
                    const EncodeOptions& options) {
  IdBuffer<Id> ids;
  Status status;
  {
    nb::gil_scoped_release release;
    status = tokenizer.Encode(text, options, &ids);
  }
  ThrowIfError(status);
  return ToNumpy(std::move(ids));
}

nb::object Encode(const Tokenizer& tokenizer, nb::handle text, const EncodeOptions* options,
                  bool narrow) {
  const std::string_view bytes = TextOf(text);
  const EncodeOptions given = OrDefault(options);
  return narrow && tokenizer.FitsUint16() ? EncodeAs<std::uint16_t>(tokenizer, bytes, given)
                                          : EncodeAs<std::uint32_t>(tokenizer, bytes, given);
}

template <typename Id>
nb::tuple EncodeWithOffsetsAs(const Tokenizer& tokenizer, std::string_view text,
                              const EncodeOptions& options, bool characters) {
  IdBuffer<Id> ids;
  TokenOffsets offsets;
  Status status;
  {
    nb::gil_scoped_release release;
    status = tokenizer.Encode(text, options, &ids, &offsets);
    if (status.ok() && characters) {
      BytesToCharacters(text, /*round_up=*/false, offsets.begin);
      BytesToCharacters(text, /*round_up=*/true, offsets.end);
    }
  }
  ThrowIfError(status);
  return nb::make_tuple(ToNumpy(std::move(ids)), ToNumpy(std::move(offsets.begin)),
                        ToNumpy(std::move(offsets.end)));
}

nb::tuple EncodeWithOffsets(const Tokenizer& tokenizer, nb::handle text,
                            const EncodeOptions* options, bool narrow, bool characters) {
  const std::string_view bytes = TextOf(text);
  const EncodeOptions given = OrDefault(options);
  return narrow && tokenizer.FitsUint16()
             ? EncodeWithOffsetsAs<std::uint16_t>(tokenizer, bytes, given, characters)
             : EncodeWithOffsetsAs<std::uint32_t>(tokenizer, bytes, given, characters);
}

// Ends of consecutive texts as the offsets that Python shows: a zero before them.
std::vector<std::int64_t> OffsetsOf(const std::vector<std::uint64_t>& ends) {
  std::vector<std::int64_t> offsets;
  offsets.reserve(ends.size() + 1);
  offsets.push_back(0);
  for (const std::uint64_t end : ends) offsets.push_back(static_cast<std::int64_t>(end));
  return offsets;
}

template <typename Id>
nb::tuple EncodeBatchAs(const Tokenizer& tokenizer, const Texts& texts,
                        const EncodeOptions& options, unsigned threads) {
  IdBuffer<Id> ids;
  std::vector<std::int64_t> offsets;
  Status status;
  {
    nb::gil_scoped_release release;
    std::vector<std::uint64_t> ends;
    ends.reserve(texts.views.size());
    status = tokenizer.EncodeBatch<Id>(texts.views, options, threads, &ids, &ends);
    offsets = OffsetsOf(ends);
  }
  ThrowIfError(status);
  return nb::make_tuple(ToNumpy(std::move(ids)), ToNumpy(std::move(offsets)));
}

nb::tuple EncodeBatch(const Tokenizer& tokenizer, nb::handle texts, const EncodeOptions* options,
                      bool narrow, unsigned threads) {
  const Texts kept = Texts::Of(texts);
  const EncodeOptions given = OrDefault(options);
  return narrow && tokenizer.FitsUint16()
             ? EncodeBatchAs<std::uint16_t>(tokenizer, kept, given, threads)
             : EncodeBatchAs<std::uint32_t>(tokenizer, kept, given, threads);
}

std::uint64_t Count(const Tokenizer& tokenizer, nb::handle text, const EncodeOptions* options) {
  const std::string_view bytes = TextOf(text);
  const EncodeOptions given = OrDefault(options);
  Result<std::uint64_t> count = Status::Internal("not counted");
  {
    nb::gil_scoped_release release;
    count = tokenizer.Count(bytes, given);
  }
  return ValueOrThrow(std::move(count));
}

nb::object CountTexts(const Tokenizer& tokenizer, nb::handle texts, const EncodeOptions* options,
                      unsigned threads) {
  const Texts kept = Texts::Of(texts);
  const EncodeOptions given = OrDefault(options);
  Result<std::vector<std::int64_t>> counts = Status::Internal("not counted");
  {
    nb::gil_scoped_release release;
    counts = CountBatch(tokenizer, kept.views, given, threads);
  }
  return ToNumpy(ValueOrThrow(std::move(counts)));
}

template <typename Id>
nb::bytes Decode(const Tokenizer& tokenizer, const Array<Id>& ids) {
  std::string bytes;
  Status status;
  {
    nb::gil_scoped_release release;
    status = tokenizer.Decode(std::span<const Id>(ids.data(), ids.size()), &bytes);
  }
  ThrowIfError(status);
  return nb::bytes(bytes.data(), bytes.size());
}

template <typename Id>
nb::tuple DecodeBatch(const Tokenizer& tokenizer, const Array<Id>& ids,
                      const Array<std::int64_t>& offsets) {
  std::string bytes;
  std::vector<std::int64_t> byte_offsets;
  Status status;
  {
    nb::gil_scoped_release release;
    std::vector<std::uint64_t> ends(offsets.data() + (offsets.size() == 0 ? 0 : 1),
                                    offsets.data() + offsets.size());
    if (offsets.size() == 0 || offsets.data()[0] != 0) {
      status = Status::InvalidArgument(
          "the offsets of a batch begin with 0 and have one more "
          "entry than there are texts");
    } else {
      std::vector<std::uint64_t> byte_ends;
      status = tokenizer.DecodeBatch<Id>({ids.data(), ids.size()}, ends, &bytes, &byte_ends);
      byte_offsets = OffsetsOf(byte_ends);
    }
  }
  ThrowIfError(status);
  return nb::make_tuple(nb::bytes(bytes.data(), bytes.size()), ToNumpy(std::move(byte_offsets)));
}

nb::object TokenBytes(const Tokenizer& tokenizer, std::int64_t id) {
  if (id < 0 || id > std::int64_t{UINT32_MAX}) return nb::none();
  const auto bytes = tokenizer.TokenBytes(static_cast<std::uint32_t>(id));
  if (!bytes.has_value()) return nb::none();
  return nb::bytes(bytes->data(), bytes->size());
}

nb::dict SpecialTokens(const Tokenizer& tokenizer) {
  nb::dict out;
  for (const auto& [name, id] : tokenizer.SpecialTokens()) out[ToText(name)] = id;
  return out;
}

constexpr const char kEncodeSignature[] =
    "def encode(self, text: str | bytes, options: EncodeOptions | None = None, narrow: bool = "
    "False) -> numpy.typing.NDArray[numpy.uint16] | numpy.typing.NDArray[numpy.uint32]";
constexpr const char kOffsetsSignature[] =
    "def encode_with_offsets(self, text: str | bytes, options: EncodeOptions | None = None, "
    "narrow: bool = False, characters: bool = False) -> tuple[numpy.typing.NDArray[typing.Any], "
    "numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint64]]";
constexpr const char kBatchSignature[] =
    "def encode_batch(self, texts: typing.Any, options: EncodeOptions | None = None, narrow: bool "
    "= False, threads: int = 1) -> tuple[numpy.typing.NDArray[typing.Any], "
    "numpy.typing.NDArray[numpy.int64]]";
constexpr const char kCountSignature[] =
    "def count(self, text: str | bytes, options: EncodeOptions | None = None) -> int";
constexpr const char kCountBatchSignature[] =
    "def count_batch(self, texts: typing.Any, options: EncodeOptions | None = None, threads: int = "
    "1) -> numpy.typing.NDArray[numpy.int64]";
constexpr const char kDecodeSignature32[] =
    "def decode(self, ids: numpy.typing.NDArray[numpy.uint32]) -> bytes";
constexpr const char kDecodeSignature16[] =
    "def decode(self, ids: numpy.typing.NDArray[numpy.uint16]) -> bytes";
constexpr const char kDecodeBatchSignature32[] =
    "def decode_batch(self, ids: numpy.typing.NDArray[numpy.uint32], offsets: "
    "numpy.typing.NDArray[numpy.int64]) -> tuple[bytes, numpy.typing.NDArray[numpy.int64]]";
constexpr const char kDecodeBatchSignature16[] =
    "def decode_batch(self, ids: numpy.typing.NDArray[numpy.uint16], offsets: "
    "numpy.typing.NDArray[numpy.int64]) -> tuple[bytes, numpy.typing.NDArray[numpy.int64]]";

}  // namespace

void register_transform(nb::module_& module) {
  nb::class_<EncodeOptions>(module, "EncodeOptions",
                            "How to encode: special tokens by name (or \"all\"), the file's "
                            "post-processor, truncation. Immutable.")
      .def(
          "__init__",
          [](EncodeOptions* self, nb::handle allowed, nb::handle disallowed,
             bool add_special_tokens, std::optional<std::int64_t> max_tokens) {
            new (self)
                EncodeOptions(MakeOptions(allowed, disallowed, add_special_tokens, max_tokens));
          },
          nb::kw_only(), nb::arg("allowed_special") = nb::make_tuple(),
          nb::arg("disallowed_special") = nb::make_tuple(), nb::arg("add_special_tokens") = false,
          nb::arg("max_tokens") = nb::none(),
          nb::sig("def __init__(self, *, allowed_special: str | typing.Iterable[str] = (), "
                  "disallowed_special: str | typing.Iterable[str] = (), add_special_tokens: bool = "
                  "False, max_tokens: int | None = None) -> None"));
  nb::class_<Tokenizer>(
      module, "Tokenizer",
      "Byte-level BPE tokenizer with the ids of tiktoken and tokenizers. widestream.Tokenizer is "
      "its public face.\n\n"
      "Immutable; usable from any number of threads; releases the GIL while it works. `narrow` "
      "gives uint16 ids where every id of the vocabulary fits, else uint32.")
      .def_static("from_file", &FromFile, nb::arg("path"), nb::arg("pattern") = "",
                  "Reads a .tiktoken file or a tokenizer.json. `pattern` is needed only where the "
                  "file does not say it.\n\n"
                  "Raises NotFoundError, IoError, ResourceExhaustedError (above 64 MiB) or "
                  "InvalidArgumentError.",
                  nb::sig("def from_file(path: str | os.PathLike[str], pattern: str = '') -> "
                          "Tokenizer"))
      .def("encode", &Encode, nb::arg("text").none(), nb::arg("options") = nb::none(),
           nb::arg("narrow") = false,
           "The ids of a text: numpy array [T]. Raises UnicodeEncodeError for a str with lone "
           "surrogates.",
           nb::sig(kEncodeSignature))
      .def("encode_with_offsets", &EncodeWithOffsets, nb::arg("text").none(),
           nb::arg("options") = nb::none(), nb::arg("narrow") = false,
           nb::arg("characters") = false,
           "(ids [T], begin uint64 [T], end uint64 [T]) in bytes, or in characters.",
           nb::sig(kOffsetsSignature))
      .def("encode_batch", &EncodeBatch, nb::arg("texts").none(), nb::arg("options") = nb::none(),
           nb::arg("narrow") = false, nb::arg("threads") = 1,
           "The ids of N texts, one after the other: (ids [T], offsets int64 [N + 1]); text i has "
           "ids[offsets[i]:offsets[i + 1]].",
           nb::sig(kBatchSignature))
      .def("count", &Count, nb::arg("text").none(), nb::arg("options") = nb::none(),
           "The number of ids that encode would give.", nb::sig(kCountSignature))
      .def("count_batch", &CountTexts, nb::arg("texts").none(), nb::arg("options") = nb::none(),
           nb::arg("threads") = 1, "The number of ids of each text: int64 [N].",
           nb::sig(kCountBatchSignature))
      .def("decode", &Decode<std::uint32_t>, nb::arg("ids").noconvert(),
           "The bytes of ids [T]; a special token gives its name. Raises InvalidArgumentError for "
           "an id that is not in the vocabulary, TypeError for another dtype.",
           nb::sig(kDecodeSignature32))
      .def("decode", &Decode<std::uint16_t>, nb::arg("ids").noconvert(),
           nb::sig(kDecodeSignature16))
      .def("decode_batch", &DecodeBatch<std::uint32_t>, nb::arg("ids").noconvert(),
           nb::arg("offsets").noconvert(),
           "(bytes of all texts, byte offsets int64 [N + 1]) of what encode_batch gave.",
           nb::sig(kDecodeBatchSignature32))
      .def("decode_batch", &DecodeBatch<std::uint16_t>, nb::arg("ids").noconvert(),
           nb::arg("offsets").noconvert(), nb::sig(kDecodeBatchSignature16))
      .def(
          "special_token_id",
          [](const Tokenizer& t, const std::string& name) { return t.SpecialTokenId(name); },
          nb::arg("name"), "The id of a special token such as \"<|endoftext|>\", or None.")
      .def(
          "token_id", [](const Tokenizer& t, nb::handle text) { return t.TokenId(TextOf(text)); },
          nb::arg("token"), "The id of a token by its bytes, special tokens apart, or None.",
          nb::sig("def token_id(self, token: str | bytes) -> int | None"))
      .def("token_bytes", &TokenBytes, nb::arg("id"),
           "The bytes of an id, or None where no token has it.",
           nb::sig("def token_bytes(self, id: int) -> bytes | None"))
      .def_prop_ro("special_tokens", &SpecialTokens, "Special tokens by name.",
                   nb::sig("def special_tokens(self) -> dict[str, int]"))
      .def_prop_ro("vocabulary_size", &Tokenizer::VocabularySize,
                   "The largest id + 1, special tokens counted.")
      .def_prop_ro("fits_uint16", &Tokenizer::FitsUint16, "Every id fits 16 bits.")
      .def_prop_ro("pattern", &Tokenizer::PatternName, "How text is cut into words.")
      .def_prop_ro("digest", &Tokenizer::Digest,
                   "32 hexadecimal digits over everything that decides ids.");
}

}  // namespace widestream::python
