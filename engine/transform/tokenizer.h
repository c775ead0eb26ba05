// Byte-level BPE tokenizer: text to token ids and back, with the ids that tiktoken and tokenizers
// give.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/transform/id_buffer.h"

namespace widestream {

// Which special tokens a call means.
struct SpecialTokenSet {
  bool all = false;
  std::vector<std::string> names;  // besides `all`; an unknown name is an error

  static SpecialTokenSet All() { return {.all = true, .names = {}}; }
};

struct EncodeOptions {
  // Special tokens that get their id where the text spells them. Others are ordinary characters.
  SpecialTokenSet allowed_special;
  // Special tokens that the text must not spell: InvalidArgument names the first one found. Those
  // that are also allowed are allowed.
  SpecialTokenSet disallowed_special;
  // Runs the file's post-processor: for example <|begin_of_text|> before the text (Llama 3). Does
  // nothing for a file without one.
  bool add_special_tokens = false;
  // Stops after this many ids, those that the post-processor adds counted, as
  // tokenizers' truncation on the right does.
  std::size_t max_tokens = SIZE_MAX;
};

// Where the ids of one text came from. Id i covers the bytes [begin[i], end[i]) of the text; an id
// that the post-processor added covers none. Where normalization (NFC) changed a run of characters,
// every id of the run covers the whole run.
struct TokenOffsets {
  std::vector<std::uint64_t> begin;
  std::vector<std::uint64_t> end;
};

// Turns byte positions in `text`, in ascending order, into character positions (code points; a byte
// that is not UTF-8 is one). A position inside a character becomes the start of that character, or
// its end if `round_up`; so begins rounded down and ends rounded up are the offsets of tokenizers.
void BytesToCharacters(std::string_view text, bool round_up, std::span<std::uint64_t> positions);

// Reads a .tiktoken file or a tokenizer.json and encodes text with it.
//
// Thread safety: immutable after loading; all const methods may be called from any number of
// threads. Ownership: shared; the spans and strings passed in are not kept. Invariants:
// Decode(Encode(text)) is `text`, byte for byte, for any bytes, unless the file normalizes. Encode
// never gives a special token's id unless asked to: in text, "<|endoftext|>" is thirteen ordinary
// characters (tiktoken: encode_ordinary). The ids of a text do not depend on the thread, on earlier
// calls or on the machine.
//
// Files. A .tiktoken file holds neither pattern nor special tokens. The published vocabularies are
// recognised by their content and get theirs; any other needs Options::pattern and has no special
// tokens (use a tokenizer.json for those). A tokenizer.json must be what its own library would
// treat as byte-level BPE with a known normalizer and pre-tokenizer; anything else is refused by
// name. Its ids are those of encode(text, add_special_tokens=False) with encode_special_tokens set.
//
// Invalid UTF-8. Text is bytes. Each byte that is not part of a well-formed UTF-8 sequence (RFC
// 3629) counts as one character of class "other", which the pre-tokenizer treats like a punctuation
// mark; its ids come from the bytes themselves, so decoding gives them back.
class Tokenizer {
 public:
  struct Options {
    // "gpt2" (r50k, p50k), "cl100k", "o200k", "llama3", "qwen2", "deepseek3", or "" to take it from
    // the file; an error where the file does not say it, or says another.
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

  // Appends the ids of `text` to `ids`, no special tokens. Time is O(n log n) in the longest word
  // and linear in the number of words, whatever the text.
  void Encode(std::string_view text, std::vector<std::uint32_t>* ids) const;
  // The same into a buffer, with options. Id is uint16_t (InvalidArgument unless FitsUint16()) or
  // uint32_t. `offsets` may be null; otherwise those of the new ids are appended. On an error
  // nothing is appended.
  template <typename Id>
  Status Encode(std::string_view text, const EncodeOptions& options, IdBuffer<Id>* ids,
                TokenOffsets* offsets = nullptr) const;
  // Appends the ids of all texts to `ids` and, for each text, the size of `ids` after it to `ends`.
  // Up to `threads` threads work on contiguous slices of the texts; the result does not depend on
  // their number. An error names the text by its index and appends nothing.
  template <typename Id>
  Status EncodeBatch(std::span<const std::string_view> texts, const EncodeOptions& options,
                     unsigned threads, IdBuffer<Id>* ids, std::vector<std::uint64_t>* ends) const;
  // The number of ids that Encode would append.
  Result<std::uint64_t> Count(std::string_view text, const EncodeOptions& options = {}) const;
  // Appends the number of ids of each text.
  Status CountBatch(std::span<const std::string_view> texts, const EncodeOptions& options,
                    std::vector<std::uint64_t>* counts) const;

  // Appends the bytes of `ids` to `bytes`; a special token gives its name. InvalidArgument, with
  // `bytes` as it was, when an id is not in the vocabulary.
  Status Decode(std::span<const std::uint32_t> ids, std::string* bytes) const;
  Status Decode(std::span<const std::uint16_t> ids, std::string* bytes) const;
  // Decodes many texts: text i is ids[ends[i - 1], ends[i]). Appends the bytes of all of them to
  // `bytes` and the size of `bytes` after each to `byte_ends`.
  template <typename Id>
  Status DecodeBatch(std::span<const Id> ids, std::span<const std::uint64_t> ends,
                     std::string* bytes, std::vector<std::uint64_t>* byte_ends) const;

  // For example "<|endoftext|>"; nothing when there is no such special token.
  std::optional<std::uint32_t> SpecialTokenId(std::string_view name) const;
  // All special tokens by name. Other added tokens (of a tokenizer.json) are not among them.
  const std::map<std::string, std::uint32_t>& SpecialTokens() const;
  // The bytes of an id, a special token's name included; nothing when no token has the id. Valid
  // as long as the tokenizer.
  std::optional<std::string_view> TokenBytes(std::uint32_t id) const;
  // The id of a token by its bytes, special tokens apart; nothing when there is none.
  std::optional<std::uint32_t> TokenId(std::string_view bytes) const;
  // The largest id + 1, special tokens counted; ids below it may be unused.
  std::uint32_t VocabularySize() const;
  // Every id fits 16 bits.
  bool FitsUint16() const { return VocabularySize() <= 65536; }
  // "gpt2", "cl100k", ...: how text is cut into words.
  const char* PatternName() const;
  // 32 hexadecimal digits over everything that decides ids: tokens, merges, pattern, special
  // tokens. Equal for equal content, whatever the path.
  const std::string& Digest() const;

 private:
  class Implementation;
  explicit Tokenizer(std::unique_ptr<const Implementation> implementation);

  std::unique_ptr<const Implementation> implementation_;
};

// Decodes ids one at a time and gives text only up to the last whole UTF-8 character, so that what
// it has given may be shown at once. Not thread-safe. Keeps the tokenizer.
//
// Invariant: what Push and Finish give, joined, is Decode of all ids; Finish gives the bytes of a
// character that never became whole. A byte that cannot become part of a character is given as it
// is, without waiting.
class DecodeStream {
 public:
  explicit DecodeStream(std::shared_ptr<const Tokenizer> tokenizer);

  // Appends what became whole to `text`. InvalidArgument, with nothing changed, for an unknown id.
  Status Push(std::uint32_t id, std::string* text);
  // Appends what is left and starts anew.
  void Finish(std::string* text);

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string pending_;  // the first bytes of a character
};

}  // namespace widestream
