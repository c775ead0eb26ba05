#include "engine/transform/pretokenizer.h"

#include <array>
#include <utility>

#include "engine/transform/characters.h"

namespace widestream::internal {
namespace {

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

// \s*[\r\n]+|\s+(?!\S)|\s+ , with \s+$ before it if `kToEnd`.
template <bool kToEnd>
const char* SpaceWordEnd(const char* p, const char* end) {
  const SpaceRun run = ScanSpace(p, end);
  if (kToEnd && run.end == end) return end;
  if (run.line_end_stop != nullptr) return run.line_end_stop;
  return SpaceBeforeWord(run, p, end);
}

// Up to `most` numbers from q on, of which one is already behind.
template <int kMost>
const char* NumbersEnd(const char* q, const char* end) {
  for (int numbers = 1; numbers < kMost && q != end; ++numbers) {
    const Character next = CharacterAt(q, end);
    if (next.character_class != CharacterClass::kNumber) break;
    q += next.bytes;
  }
  return q;
}

const char* Gpt2WordEnd(const char* p, const char* end) {
  const char* q = p;
  if (*p == ' ' && end - p > 1) {
    ++q;
  } else if (*p == '\'') {
    if (const char* stop = ContractionEnd<false>(p, end)) return stop;
  }
  const Character character = CharacterAt(q, end);
  const CharacterClass c = character.character_class;
  q += character.bytes;
  if (IsIn(c, kLetterClasses)) return SkipRun(q, end, kLetterClasses);
  if (IsIn(c, kOtherClasses)) return SkipRun(q, end, kOtherClasses);
  if (IsIn(c, kNumberClasses)) return SkipRun(q, end, kNumberClasses);
  return SpaceBeforeWord(ScanSpace(p, end), p, end);
}

template <bool kSpaceToEnd, int kMostNumbers>
const char* Cl100kWordEnd(const char* p, const char* end) {
  if (*p == '\'') {
    if (const char* stop = ContractionEnd<true>(p, end)) return stop;
  }
  const Character first = CharacterAt(p, end);
  const char* q = p + first.bytes;
  if (IsIn(first.character_class, kLetterClasses)) return SkipRun(q, end, kLetterClasses);
  if (first.character_class == CharacterClass::kNumber) return NumbersEnd<kMostNumbers>(q, end);
  bool marks = IsIn(first.character_class, kOtherClasses);
  if (q != end && !IsLineEnd(*p)) {
    const Character next = CharacterAt(q, end);
    if (IsIn(next.character_class, kLetterClasses)) {
      return SkipRun(q + next.bytes, end, kLetterClasses);
    }
    marks = marks || (*p == ' ' && IsIn(next.character_class, kOtherClasses));
  }
  if (!marks) return SpaceWordEnd<kSpaceToEnd>(p, end);
  q = SkipRun(q, end, kOtherClasses);
  while (q != end && IsLineEnd(*q)) ++q;
  return q;
}

// The classes of [\p{Lm}\p{Lo}\p{M}], and with those of either case.
constexpr ClassSet kCaselessClasses = SetOf(CharacterClass::kLetter, CharacterClass::kMark);
constexpr ClassSet kUpperClasses = kCaselessClasses | SetOf(CharacterClass::kUpper);
constexpr ClassSet kLowerClasses = kCaselessClasses | SetOf(CharacterClass::kLower);

// The letters of a word of o200k from q on. `lower` is the end of [Lu Lt Lm Lo M]*[Ll Lm Lo M]+,
// `upper` that of [Lu Lt Lm Lo M]+[Ll Lm Lo M]*; null where it does not match. The second is
// tried only where the first fails, so it is not told otherwise.
struct CasedWord {
  const char* lower;
  const char* upper;
};
CasedWord ScanCasedWord(const char* q, const char* end) {
  const char* const begin = q;
  const char* caseless_end = nullptr;
  while (q != end) {
    const Character character = CharacterAt(q, end);
    if (!IsIn(character.character_class, kUpperClasses)) {
      if (character.character_class != CharacterClass::kLower) break;
      return {SkipRun(q + character.bytes, end, kLowerClasses), nullptr};
    }
    q += character.bytes;
    if (IsIn(character.character_class, kCaselessClasses)) caseless_end = q;
  }
  // Without a lower-case letter the first set gives back all after its last caseless one.
  return {caseless_end, q != begin ? q : nullptr};
}

const char* O200kWordEnd(const char* p, const char* end) {
  const Character first = CharacterAt(p, end);
  const char* const q = p + first.bytes;
  const CharacterClass c = first.character_class;
  const bool letter = IsIn(c, kLetterClasses);
  const char* stop = nullptr;
  if (c == CharacterClass::kNumber) return NumbersEnd<3>(q, end);
  if (letter || c == CharacterClass::kMark) {
    CasedWord led{nullptr, nullptr};
    if (!letter) led = ScanCasedWord(q, end);
    stop = led.lower;
    if (stop == nullptr) {
      const CasedWord word = ScanCasedWord(p, end);
      stop = word.lower != nullptr ? word.lower : led.upper != nullptr ? led.upper : word.upper;
    }
  } else if (!IsLineEnd(*p)) {
    const CasedWord led = ScanCasedWord(q, end);
    stop = led.lower != nullptr ? led.lower : led.upper;
  }
  if (stop != nullptr) {
    if (stop == end || *stop != '\'') return stop;
    const char* const contraction = ContractionEnd<true>(stop, end);
    return contraction != nullptr ? contraction : stop;
  }
  const bool marks =
      IsIn(c, kOtherClasses) ||
      (*p == ' ' && q != end && IsIn(CharacterAt(q, end).character_class, kOtherClasses));
  if (!marks) return SpaceWordEnd<false>(p, end);
  const char* r = SkipRun(q, end, kOtherClasses);
  while (r != end && (IsLineEnd(*r) || *r == '/')) ++r;
  return r;
}

// [U+4E00-U+9FA5 U+3040-U+309F U+30A0-U+30FF]
bool IsHanOrKana(const char* p, const char* end) {
  if (end - p < 3 || !IsContinuation(p[1]) || !IsContinuation(p[2])) return false;
  const auto byte = [p](int i) -> std::uint32_t { return static_cast<unsigned char>(p[i]); };
  if ((byte(0) & 0xF0U) != 0xE0) return false;
  const std::uint32_t code_point =
      ((byte(0) & 0x0FU) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU);
  return (code_point >= 0x4E00 && code_point <= 0x9FA5) ||
         (code_point >= 0x3040 && code_point <= 0x30FF);
}

constexpr ClassSet kWordClasses = kLetterClasses | SetOf(CharacterClass::kMark);
constexpr ClassSet kSignClasses = SetOf(CharacterClass::kPunctuation, CharacterClass::kSymbol);

// Text is cut three times: at numbers, at runs of Han and Kana, and each piece by the rest, those
// runs too, which hold a few signs and marks. A piece ends at a number and where `kana` changes.
template <bool kKana>
class DeepSeekPiece {
 public:
  explicit DeepSeekPiece(const char* end) : end_(end) {}

  // The end of the word that starts at p, which is no number.
  const char* WordEnd(const char* p) const {
    const Character first = CharacterAt(p, end_);
    const char* q = p + first.bytes;
    const CharacterClass c = first.character_class;
    const bool sign = IsIn(c, kSignClasses);
    if (sign && first.bytes == 1 && IsAsciiLetter(q)) {
      while (IsAsciiLetter(q)) ++q;
      return q;
    }
    if (IsIn(c, kLetterClasses)) return LettersEnd(q);
    if (!sign && !IsLineEnd(*p)) {
      const char* const letters = LettersEnd(q);
      if (letters != q || c == CharacterClass::kMark) return letters;
    }
    if (sign || (*p == ' ' && IsIn(ClassAt(q), kSignClasses))) {
      while (IsIn(ClassAt(q), kSignClasses)) q += CharacterAt(q, end_).bytes;
      while (!kKana && q != end_ && IsLineEnd(*q)) ++q;
      return q;
    }
    if (c == CharacterClass::kSpace) {
      const SpaceRun run = ScanSpace(p, end_);
      if (run.line_end_stop != nullptr) return run.line_end_stop;
      const bool piece_ends = IsIn(ClassAt(run.end), kNumberClasses);
      return piece_ends || run.last == p ? run.end : run.last;
    }
    // A run that no alternative matches; its last character may lead letters.
    while (ClassAt(q) == CharacterClass::kOther) {
      const char* const next = q + CharacterAt(q, end_).bytes;
      if (LettersEnd(next) != next) break;
      q = next;
    }
    return q;
  }

 private:
  bool IsAsciiLetter(const char* at) const {
    return at != end_ && static_cast<unsigned char>((*at | 0x20) - 'a') < 26;
  }
  // A number where the piece ends: it is like the end of the text.
  CharacterClass ClassAt(const char* at) const {
    return at == end_ || IsHanOrKana(at, end_) != kKana ? CharacterClass::kNumber
                                                        : CharacterAt(at, end_).character_class;
  }
  // The end of [\p{L}\p{M}]* from p on.
  const char* LettersEnd(const char* p) const {
    while (IsIn(ClassAt(p), kWordClasses)) p += CharacterAt(p, end_).bytes;
    return p;
  }

  const char* end_;
};

const char* DeepSeek3WordEnd(const char* p, const char* end) {
  const Character first = CharacterAt(p, end);
  if (first.character_class == CharacterClass::kNumber) return NumbersEnd<3>(p + first.bytes, end);
  return IsHanOrKana(p, end) ? DeepSeekPiece<true>(end).WordEnd(p)
                             : DeepSeekPiece<false>(end).WordEnd(p);
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
    case Pattern::kO200k:
      return "o200k";
    case Pattern::kQwen2:
      return "qwen2";
    case Pattern::kDeepSeek3:
      return "deepseek3";
  }
  return "unknown";
}

std::optional<Pattern> PatternOfName(std::string_view name) {
  for (int i = 0; i < kPatterns; ++i) {
    const auto pattern = static_cast<Pattern>(i);
    if (name == PatternName(pattern)) return pattern;
  }
  if (name == "llama3") return Pattern::kCl100kLineEnd;
  return std::nullopt;
}

const char* PatternNames() {
  return R"("gpt2" (also for r50k and p50k), "cl100k", "o200k", "llama3", "qwen2" or "deepseek3")";
}

std::optional<Pattern> PatternOfRegex(std::string_view regex) {
  // The second of kCl100kLineEnd is how tiktoken wrote the first before it added \s+$.
  static constexpr std::array<std::pair<std::string_view, Pattern>, 5> kRegexes = {{
      {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
       Pattern::kGpt2},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Pattern::kCl100kLineEnd},
      {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
       Pattern::kCl100kLineEnd},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Pattern::kQwen2},
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Pattern::kO200k},
  }};
  for (const auto& [known, pattern] : kRegexes) {
    if (regex == known) return pattern;
  }
  return std::nullopt;
}

bool IsDeepSeek3Regex(std::size_t index, std::string_view regex) {
  static constexpr std::array<std::string_view, 3> kRegexes = {
      R"(\p{N}{1,3})",
      // Han, Hiragana, Katakana.
      "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
  return index < kRegexes.size() && regex == kRegexes[index];
}

const char* WordEnd(Pattern pattern, const char* p, const char* end) {
  switch (pattern) {
    case Pattern::kGpt2:
      return Gpt2WordEnd(p, end);
    case Pattern::kCl100k:
      return Cl100kWordEnd<true, 3>(p, end);
    case Pattern::kCl100kLineEnd:
      return Cl100kWordEnd<false, 3>(p, end);
    case Pattern::kO200k:
      return O200kWordEnd(p, end);
    case Pattern::kQwen2:
      return Cl100kWordEnd<false, 1>(p, end);
    case Pattern::kDeepSeek3:
      return DeepSeek3WordEnd(p, end);
  }
  return end;
}

}  // namespace widestream::internal
