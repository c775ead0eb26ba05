// Byte-level BPE tokenizer: text to token ids and back, with the ids that tiktoken and tokenizers
// give.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

// Reads a .tiktoken file or a tokenizer.json and encodes text with it.
//
// Thread safety: immutable after loading; all const methods may be called from any number of
// threads. Ownership: shared; the spans and strings passed in are not kept. Invariants:
// Decode(Encode(text)) is `text`, byte for byte, for any bytes. Encode never gives a special
// token's id: in text, "<|endoftext|>" is thirteen ordinary characters (tiktoken: encode_ordinary).
// The ids of a text do not depend on the thread, on earlier calls or on the machine.
//
// Files. A .tiktoken file holds neither pattern nor special tokens. r50k_base and cl100k_base are
// recognised by their content and get theirs; any other needs Options::pattern and has no special
// tokens (use a tokenizer.json for those). A tokenizer.json must be what its own library would
// treat as plain byte-level BPE: no normalizer, a known pre-tokenizer, no unk_token, byte_fallback,
// dropout or word affixes; anything else is refused by name. Its post-processor is not run: the ids
// are those of encode(text, add_special_tokens=False).
//
// Invalid UTF-8. Text is bytes. Each byte that is not part of a well-formed UTF-8 sequence (RFC
// 3629) counts as one character of class "other", which the pre-tokenizer treats like a punctuation
// mark; its ids come from the bytes themselves, so decoding gives them back.
class Tokenizer {
 public:
  struct Options {
    // "gpt2" (r50k), "cl100k", or "" to take it from the file; an error where the file does not say
    // it, or says another.
    std::string pattern;
  };

  // NotFound or IoError when the file cannot be read, ResourceExhausted when it is above 64 MiB,
  // InvalidArgument when it is damaged or asks for something unsupported.
  static Result<std::shared_ptr<const Tokenizer>> FromFile(const std::string& path,
                                                           const Options& options);
  // The kind is told by the first byte: '{' starts a tokenizer.json.
  static Result<std::shared_ptr<const Tokenizer>> FromBytes(std::string_view bytes,
                                                            std::string_view file_name_for_messages,
                                                            const Options& options);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of `text` to `ids`. Time is O(n log n) in the longest word and linear in the
  // number of words, whatever the text.
  void Encode(std::string_view text, std::vector<std::uint32_t>* ids) const;
  // Appends the bytes of `ids` to `bytes`; a special token gives its name. InvalidArgument, with
  // `bytes` as it was, when an id is not in the vocabulary.
  Status Decode(std::span<const std::uint32_t> ids, std::string* bytes) const;
  // For example "<|endoftext|>"; nothing when there is no such special token.
  std::optional<std::uint32_t> SpecialTokenId(std::string_view name) const;
  // The largest id + 1, special tokens counted; ids below it may be unused.
  std::uint32_t VocabularySize() const;
  // 32 hexadecimal digits over everything that decides ids: tokens, merges, pattern, special
  // tokens. Equal for equal content, whatever the path.
  const std::string& Digest() const;

 private:
  class Implementation;
  explicit Tokenizer(std::unique_ptr<const Implementation> implementation);

  std::unique_ptr<const Implementation> implementation_;
};

}  // namespace widestream
