// Input: one byte of choices, a tokenizer file, the byte sequence FF 00 FF, a text. A file that
// loads must encode the text to known ids that decode to exactly its bytes, and twice to the same
// ids.
//
// Seeds: fuzz/make_tokenizer_corpus.py FOLDER.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "engine/transform/tokenizer.h"

namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using widestream::Tokenizer;
  if (size == 0) return 0;
  const char* const kPatterns[] = {"", "gpt2", "cl100k", "unknown"};
  const Tokenizer::Options options{.pattern = kPatterns[data[0] % 4]};
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view separator("\xFF\x00\xFF", 3);
  const std::size_t cut = input.find(separator);
  const std::string_view file = input.substr(0, cut);
  const std::string_view text =
      cut == std::string_view::npos ? std::string_view() : input.substr(cut + separator.size());

  const auto tokenizer = Tokenizer::FromBytes(file, "fuzzed", options);
  if (!tokenizer.ok()) {
    Require(!tokenizer.status().message().empty());
    Require(tokenizer.status().code() != widestream::StatusCode::kInternal);
    return 0;
  }
  // Each part is a text of its own buffer, so that reading past its end is seen.
  for (const std::string_view part : {text, text.substr(0, text.size() / 2), file}) {
    const std::vector<char> exact(part.begin(), part.end());
    std::vector<std::uint32_t> ids;
    (*tokenizer)->Encode({exact.data(), exact.size()}, &ids);
    std::string decoded;
    Require((*tokenizer)->Decode(ids, &decoded).ok());
    Require(decoded == part);
    std::vector<std::uint32_t> again;
    (*tokenizer)->Encode(part, &again);
    Require(ids == again);
  }
  return 0;
}
