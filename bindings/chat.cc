// Python face of engine/transform/chat.h: class ChatRenderer, function encode_chat.
#include "engine/transform/chat.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/errors.h"
#include "bindings/texts.h"

namespace widestream::python {
namespace {

namespace nb = nanobind;

using TokenizerPointer = std::shared_ptr<const Tokenizer>;
using Conversations = std::vector<std::vector<ChatMessage>>;

nb::object MaskToNumpy(const std::vector<std::uint8_t>& mask) {
  std::unique_ptr<bool[]> values(new bool[mask.size()]);
  std::transform(mask.begin(), mask.end(), values.get(), [](std::uint8_t m) { return m != 0; });
  bool* const data = values.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
  values.release();
  return nb::cast(nb::ndarray<nb::numpy, bool, nb::ndim<1>>(data, {mask.size()}, owner));
}

// `messages`: list of (role, content), str or bytes; the views live as long as it does.
std::vector<ChatMessage> MessagesOf(nb::handle messages) {
  std::vector<ChatMessage> out;
  for (const nb::handle message : nb::cast<nb::list>(messages)) {
    const auto pair = nb::cast<nb::tuple>(message);
    if (pair.size() != 2) throw nb::type_error("a message must be (role, content)");
    out.push_back({TextOf(pair[0]), TextOf(pair[1])});
  }
  return out;
}

std::shared_ptr<const ChatRenderer> MakeRenderer(TokenizerPointer tokenizer,
                                                 const std::string& format) {
  const ChatFormat known = ValueOrThrow(ChatFormatFromName(format));
  return ValueOrThrow(ChatRenderer::Make(std::move(tokenizer), known));
}

nb::tuple EncodeBatch(const ChatRenderer& renderer, const nb::list& conversations, bool prompt) {
  Conversations views;
  views.reserve(conversations.size());
  for (const nb::handle messages : conversations) views.push_back(MessagesOf(messages));
  ChatIds all;
  std::vector<std::int64_t> offsets{0};
  Status status;
  {
    const nb::gil_scoped_release release;
    ChatIds one;
    for (std::size_t i = 0; i < views.size() && status.ok(); ++i) {
      status = renderer.Encode(views[i], prompt, &one);
      if (!status.ok()) {
        status = status.WithContext("conversation " + std::to_string(i));
        break;
      }
      all.ids.insert(all.ids.end(), one.ids.begin(), one.ids.end());
      all.loss_mask.insert(all.loss_mask.end(), one.loss_mask.begin(), one.loss_mask.end());
      offsets.push_back(static_cast<std::int64_t>(all.ids.size()));
    }
  }
  ThrowIfError(status);
  return nb::make_tuple(ToNumpy(std::move(all.ids)), MaskToNumpy(all.loss_mask),
                        ToNumpy(std::move(offsets)));
}

nb::bytes Render(const ChatRenderer& renderer, const nb::list& messages, bool prompt) {
  ChatText text;
  ThrowIfError(renderer.Render(MessagesOf(messages), prompt, &text));
  return nb::bytes(text.text.data(), text.text.size());
}

std::vector<ByteRange> RangesOf(
    const std::vector<std::pair<std::uint64_t, std::uint64_t>>& ranges) {
  std::vector<ByteRange> out;
  out.reserve(ranges.size());
  for (const auto& [begin, end] : ranges) out.push_back({begin, end});
  return out;
}

nb::tuple Encode(const Tokenizer& tokenizer, nb::handle text,
                 const std::vector<std::pair<std::uint64_t, std::uint64_t>>& special,
                 const std::vector<std::pair<std::uint64_t, std::uint64_t>>& learned) {
  const ChatText chat{std::string(TextOf(text)), RangesOf(special), RangesOf(learned)};
  ChatIds ids;
  Status status;
  {
    const nb::gil_scoped_release release;
    status = EncodeChat(tokenizer, chat, &ids);
  }
  ThrowIfError(status);
  return nb::make_tuple(ToNumpy(std::move(ids.ids)), MaskToNumpy(ids.loss_mask));
}

}  // namespace

void register_chat(nb::module_& module) {
  nb::class_<ChatRenderer>(module, "ChatRenderer",
                           "Conversations in a fixed format; widestream.chat.FixedChat is its "
                           "public face. Immutable; usable from any number of threads.")
      .def(nb::new_(&MakeRenderer), nb::arg("tokenizer"), nb::arg("format"))
      .def("encode_batch", &EncodeBatch, nb::arg("conversations"),
           nb::arg("add_generation_prompt") = false,
           "(ids uint32 [T], loss mask bool [T], offsets int64 [N + 1]) of lists of (role, "
           "content).",
           nb::sig("def encode_batch(self, conversations: list[list[tuple[str, str]]], "
                   "add_generation_prompt: bool = False) -> "
                   "tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.bool_], "
                   "numpy.typing.NDArray[numpy.int64]]"))
      .def("render", &Render, nb::arg("messages"), nb::arg("add_generation_prompt") = false,
           "The conversation as text.",
           nb::sig("def render(self, messages: list[tuple[str, str]], add_generation_prompt: bool "
                   "= False) -> bytes"));
  module.def("encode_chat", &Encode, nb::arg("tokenizer"), nb::arg("text"), nb::arg("special"),
             nb::arg("learned"),
             "(ids uint32 [T], loss mask bool [T]) of a rendered conversation; `special` and "
             "`learned` are byte ranges of its text.",
             nb::sig("def encode_chat(tokenizer: Tokenizer, text: str | bytes, special: "
                     "list[tuple[int, int]], learned: list[tuple[int, int]]) -> "
                     "tuple[numpy.typing.NDArray[numpy.uint32], "
                     "numpy.typing.NDArray[numpy.bool_]]"));
}

}  // namespace widestream::python
