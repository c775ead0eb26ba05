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
  // is what tokenizer.json files carry (Llama 3); tiktoken had it until \s+$ was added.
  kCl100kLineEnd,
  // [^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|...|'d)?
  //   |[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:...)?
  //   |\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
  kO200k,
  // kCl100kLineEnd with one number a word: \p{N}. Qwen 2 and 3, which also normalize to NFC.
  kQwen2,
  // DeepSeek V3: first cut at \p{N}{1,3}, then at runs of Han and Kana, then every piece by
  // [!-/:-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*
  //   |\s*[\r\n]+|\s+(?!\S)|\s+ ; what none of these matches is a word too.
  kDeepSeek3,
};
inline constexpr int kPatterns = 6;

// "gpt2", "cl100k", "cl100k-line-end", "o200k", "qwen2", "deepseek3".
const char* PatternName(Pattern pattern);
// The pattern that a caller may name: these and "llama3"; nothing for another.
std::optional<Pattern> PatternOfName(std::string_view name);
// The names that PatternOfName knows, for messages.
const char* PatternNames();
// The pattern of a regular expression from a tokenizer.json: only the exact strings known to mean
// the same, nothing for any other.
std::optional<Pattern> PatternOfRegex(std::string_view regex);
// The same for the three of DeepSeek V3, in order: whether `regex` is number `index`.
bool IsDeepSeek3Regex(std::size_t index, std::string_view regex);

// The end of the word that starts at `p`; p < end is required, and the result is in (p, end].
// Every byte that is not part of a well-formed UTF-8 sequence (RFC 3629: no surrogates, no overlong
// forms, nothing above U+10FFFF) counts as one character that is no letter, number or white space,
// like a control character. Scalar: word_scanner.h gives the same words faster.
const char* WordEnd(Pattern pattern, const char* p, const char* end);

}  // namespace widestream::internal
