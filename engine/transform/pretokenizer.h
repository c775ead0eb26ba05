// Cuts text into words, the units that byte-pair merges never cross. Hand-written scanners, each
// equal to one published regular expression; linear in the text whatever it holds.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace widestream::internal {

enum class Pattern : std::uint8_t {
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  kGpt2,
  // '(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*
  //   |\s+$|\s*[\r\n]|\s+(?!\S)|\s
  kCl100k,
  // The same without \s+$: white space at the end of the text is cut after its last line end. This
  // is what tokenizer.json files carry; tiktoken had it until \s+$ was added.
  kCl100kLineEnd,
};

// "gpt2", "cl100k", "cl100k-line-end".
const char* PatternName(Pattern pattern);
// The pattern of a regular expression from a tokenizer.json: only the exact strings known to mean
// the same, nothing for any other.
std::optional<Pattern> PatternOfRegex(std::string_view regex);

// The end of the word that starts at `p`; p < end is required, and the result is in (p, end].
// Every byte that is not part of a well-formed UTF-8 sequence (RFC 3629: no surrogates, no overlong
// forms, nothing above U+10FFFF) counts as one character that is no letter, number or white space,
// like a punctuation mark.
const char* Gpt2WordEnd(const char* p, const char* end);
// `kSpaceToEnd`: white space that reaches the end of the text is one word (kCl100k).
template <bool kSpaceToEnd>
const char* Cl100kWordEnd(const char* p, const char* end);

}  // namespace widestream::internal
