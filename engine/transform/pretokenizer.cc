#include "engine/transform/pretokenizer.h"

#include <array>

#include "engine/transform/unicode_tables.h"

namespace widestream::internal {
namespace {

// The class of a byte below 0x80; kNotAscii above.
constexpr std::uint8_t kNotAscii = 4;
constexpr std::array<std::uint8_t, 256> MakeByteClasses() {
  std::array<std::uint8_t, 256> table{};
  for (unsigned b = 0; b < 256; ++b) {
    const unsigned lower = b | 0x20U;
    CharacterClass c = CharacterClass::kOther;
    if (lower >= 'a' && lower <= 'z') c = CharacterClass::kLetter;
    if (b >= '0' && b <= '9') c = CharacterClass::kNumber;
    if (b == ' ' || (b >= '\t' && b <= '\r')) c = CharacterClass::kSpace;
    table[b] = b < 0x80 ? static_cast<std::uint8_t>(c) : kNotAscii;
  }
  return table;
}
constexpr std::array<std::uint8_t, 256> kByteClasses = MakeByteClasses();

struct Character {
  CharacterClass character_class;
  std::uint32_t bytes;
};

bool IsContinuation(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

// The character at p, whose first byte is 0x80 or above.
Character DecodeLong(const char* p, const char* end) {
  constexpr Character kBadByte{CharacterClass::kOther, 1};
  const std::uint32_t first = static_cast<unsigned char>(*p);
  const std::uint32_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (first < 0xC2 || first > 0xF4 || end - p < static_cast<std::ptrdiff_t>(bytes)) return kBadByte;
  std::uint32_t code_point = first & (0x7FU >> bytes);
  for (std::uint32_t i = 1; i < bytes; ++i) {
    if (!IsContinuation(p[i])) return kBadByte;
    code_point = (code_point << 6) | (static_cast<unsigned char>(p[i]) & 0x3FU);
  }
  constexpr std::array<std::uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code_point >= 0xD800 && code_point < 0xE000;
  if (code_point < kSmallest[bytes] || code_point > 0x10FFFF || surrogate) return kBadByte;
  return {ClassOfCodePoint(code_point), bytes};
}

inline Character CharacterAt(const char* p, const char* end) {
  const std::uint8_t c = kByteClasses[static_cast<unsigned char>(*p)];
  if (c != kNotAscii) return {static_cast<CharacterClass>(c), 1};
  return DecodeLong(p, end);
}

// The end of the longest run of characters of class `wanted` from p on.
inline const char* SkipRun(const char* p, const char* end, CharacterClass wanted) {
  while (p != end) {
    const std::uint8_t c = kByteClasses[static_cast<unsigned char>(*p)];
    if (c == static_cast<std::uint8_t>(wanted)) {
      ++p;
      continue;
    }
    if (c != kNotAscii) break;
    const Character character = DecodeLong(p, end);
    if (character.character_class != wanted) break;
    p += character.bytes;
  }
  return p;
}

bool IsLineEnd(char c) { return c == '\r' || c == '\n'; }

struct SpaceRun {
  const char* end;
  const char* last;           // its last character
  const char* line_end_stop;  // after its last \r or \n; null without one
};

SpaceRun ScanSpace(const char* p, const char* end) {
  SpaceRun run{p, p, nullptr};
  while (run.end != end) {
    const Character character = CharacterAt(run.end, end);
    if (character.character_class != CharacterClass::kSpace) break;
    run.last = run.end;
    run.end += character.bytes;
    if (IsLineEnd(*run.last)) run.line_end_stop = run.end;
  }
  return run;
}

// \s+(?!\S)|\s+ : white space before a word leaves its last character to it.
const char* SpaceBeforeWord(const SpaceRun& run, const char* p, const char* end) {
  return run.end == end || run.last == p ? run.end : run.last;
}

// 's|'t|'re|'ve|'m|'ll|'d at the apostrophe p: its end, or null. `kAnyCase` is (?i:), which also
// takes U+017F (long s), the only character outside ASCII that folds to one of these letters.
template <bool kAnyCase>
const char* ContractionEnd(const char* p, const char* end) {
  const auto letter = [&](std::ptrdiff_t i) -> char {
    if (end - p <= i) return '\0';
    if (!kAnyCase) return p[i];
    return kByteClasses[static_cast<unsigned char>(p[i])] ==
                   static_cast<std::uint8_t>(CharacterClass::kLetter)
               ? static_cast<char>(p[i] | 0x20)
               : '\0';
  };
  switch (letter(1)) {
    case 's':
    case 'd':
    case 'm':
    case 't':
      return p + 2;
    case 'l':
      return letter(2) == 'l' ? p + 3 : nullptr;
    case 'v':
    case 'r':
      return letter(2) == 'e' ? p + 3 : nullptr;
    default:
      break;
  }
  if (kAnyCase && end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
  return nullptr;
}

}  // namespace

const char* PatternName(Pattern pattern) {
  switch (pattern) {
    case Pattern::kGpt2:
      return "gpt2";
    case Pattern::kCl100k:
      return "cl100k";
    case Pattern::kCl100kLineEnd:
      return "cl100k-line-end";
  }
  return "unknown";
}

std::optional<Pattern> PatternOfRegex(std::string_view regex) {
  constexpr std::string_view kGpt2Regex =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  // The second is how tiktoken wrote the first before it added \s+$.
  constexpr std::array<std::string_view, 2> kCl100kRegexes = {
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"};
  if (regex == kGpt2Regex) return Pattern::kGpt2;
  for (const std::string_view known : kCl100kRegexes) {
    if (regex == known) return Pattern::kCl100kLineEnd;
  }
  return std::nullopt;
}

const char* Gpt2WordEnd(const char* p, const char* end) {
  const char* q = p;
  if (*p == ' ' && end - p > 1) {
    ++q;
  } else if (*p == '\'') {
    if (const char* stop = ContractionEnd<false>(p, end)) return stop;
  }
  const Character character = CharacterAt(q, end);
  if (character.character_class != CharacterClass::kSpace) {
    return SkipRun(q + character.bytes, end, character.character_class);
  }
  return SpaceBeforeWord(ScanSpace(p, end), p, end);
}

template <bool kSpaceToEnd>
const char* Cl100kWordEnd(const char* p, const char* end) {
  if (*p == '\'') {
    if (const char* stop = ContractionEnd<true>(p, end)) return stop;
  }
  const Character first = CharacterAt(p, end);
  const char* q = p + first.bytes;
  if (first.character_class == CharacterClass::kLetter)
    return SkipRun(q, end, first.character_class);
  if (first.character_class == CharacterClass::kNumber) {
    for (int digits = 1; digits < 3 && q != end; ++digits) {
      const Character next = CharacterAt(q, end);
      if (next.character_class != CharacterClass::kNumber) break;
      q += next.bytes;
    }
    return q;
  }
  bool marks = first.character_class == CharacterClass::kOther;
  if (q != end && !IsLineEnd(*p)) {
    const Character next = CharacterAt(q, end);
    if (next.character_class == CharacterClass::kLetter) {
      return SkipRun(q + next.bytes, end, CharacterClass::kLetter);
    }
    marks = marks || (*p == ' ' && next.character_class == CharacterClass::kOther);
  }
  if (marks) {
    q = SkipRun(q, end, CharacterClass::kOther);
    while (q != end && IsLineEnd(*q)) ++q;
    return q;
  }
  const SpaceRun run = ScanSpace(p, end);
  if (kSpaceToEnd && run.end == end) return end;
  if (run.line_end_stop != nullptr) return run.line_end_stop;
  return SpaceBeforeWord(run, p, end);
}

template const char* Cl100kWordEnd<true>(const char* p, const char* end);
template const char* Cl100kWordEnd<false>(const char* p, const char* end);

}  // namespace widestream::internal
