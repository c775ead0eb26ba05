// A second byte-level BPE tokenizer, as plain as can be, that the engine's is compared with: the
// published regular expressions are run as they are written, with back-tracking, a character at a
// time, and merging looks at all neighbours for each merge. Shares only the table of character
// classes with the engine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace widestream::reference {

// The published regular expressions, as tokenizer.json files carry them; those of DeepSeek V3 are
// three, run one after the other.
extern const char* const kGpt2Regex;
extern const char* const kLlama3Regex;
extern const char* const kQwen2Regex;
extern const char* const kO200kRegex;
extern const char* const kDeepSeek3Regexes[3];

// Cuts `text` into words. `pattern` is one of the engine's names. A byte that is not UTF-8 is one
// character of no class.
std::vector<std::string_view> Words(std::string_view pattern, std::string_view text);

// The byte at which each character of `text` begins, and its size; a bad byte is a character.
std::vector<std::size_t> CharacterBegins(std::string_view text);

// Not thread-safe while it is filled in.
struct Vocabulary {
  std::map<std::string, std::uint32_t, std::less<>> ids;  // token -> id
  // Two neighbours -> rank of their merge. Empty: any two whose bytes together are a token merge,
  // and the rank is the id.
  std::map<std::pair<std::string, std::string>, std::uint32_t> merges;
  bool whole_words_first = false;
  // Matched as a whole where a call allows it.
  std::map<std::string, std::uint32_t> special_tokens;

  std::vector<std::uint32_t> MergeWord(std::string_view word) const;
  // No special tokens.
  std::vector<std::uint32_t> Encode(std::string_view pattern, std::string_view text) const;
  // Where special tokens are spelled, the leftmost first and of those the longest, the allowed ones
  // get their id; one that is not allowed is text, in which no other is looked for.
  std::vector<std::uint32_t> EncodeWithSpecial(std::string_view pattern, std::string_view text,
                                               const std::vector<std::string>& allowed) const;
};

}  // namespace widestream::reference
