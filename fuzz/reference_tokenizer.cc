#include "fuzz/reference_tokenizer.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <optional>

#include "engine/transform/unicode_tables.h"

namespace widestream::reference {

const char* const kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kO200kRegex =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kDeepSeek3Regexes[3] = {
    R"(\p{N}{1,3})",
    "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

namespace {

using internal::CharacterClass;

constexpr std::uint32_t kBadByte = 0xFFFFFFFF;

struct Letter {
  std::uint32_t code_point;  // kBadByte where it is none
  CharacterClass category;
  std::size_t begin;  // byte
};
using Text = std::vector<Letter>;

// The code point at `at` and its bytes, by the definition: the shortest form of a number that is
// one.
std::pair<std::uint32_t, std::size_t> Decode(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  if (byte(0) < 0x80) return {byte(0), 1};
  struct Form {
    std::uint32_t mask, lead, least;
  };
  const Form forms[] = {{0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
  for (std::size_t more = 1; more <= 3; ++more) {
    const Form& form = forms[more - 1];
    if ((byte(0) & form.mask) != form.lead) continue;
    std::uint32_t value = byte(0) & ~form.mask & 0xFFU;
    for (std::size_t i = 1; i <= more; ++i) {
      if ((byte(i) & 0xC0U) != 0x80) return {kBadByte, 1};
      value = (value << 6) | (byte(i) & 0x3FU);
    }
    const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (value < form.least || value > 0x10FFFF || surrogate) return {kBadByte, 1};
    return {value, more + 1};
  }
  return {kBadByte, 1};
}

Text Letters(std::string_view text) {
  Text letters;
  for (std::size_t at = 0; at < text.size();) {
    const auto [code_point, bytes] = Decode(text, at);
    const CharacterClass category =
        code_point == kBadByte ? CharacterClass::kOther : internal::ClassOfCodePoint(code_point);
    letters.push_back({code_point, category, at});
    at += bytes;
  }
  return letters;
}

// Part of a regular expression: `least` to `most` characters of a set, as many as possible first.
using Set = std::function<bool(const Letter&)>;
struct Repeat {
  Set set;
  std::size_t least;
  std::size_t most;
};
enum class Then { kAnything, kNoVisible, kTextEnd, kContraction };
struct Alternative {
  std::vector<Repeat> parts;
  Then then = Then::kAnything;
};
using Regex = std::vector<Alternative>;
using Span = std::pair<std::size_t, std::size_t>;  // of characters

constexpr std::size_t kMany = SIZE_MAX;

Set Is(const char* ascii) {
  const std::string characters(ascii);
  return [characters](const Letter& l) {
    return l.code_point < 0x80 && characters.find(static_cast<char>(l.code_point)) != kMany;
  };
}
Set Of(const std::vector<CharacterClass>& categories) {
  return [categories](const Letter& l) {
    return std::find(categories.begin(), categories.end(), l.category) != categories.end();
  };
}
Set Either(const Set& a, const Set& b) {
  return [a, b](const Letter& l) { return a(l) || b(l); };
}
Set Not(const Set& a) {
  return [a](const Letter& l) { return !a(l); };
}
const Set& L() {
  static const Set set_of =
      Of({CharacterClass::kUpper, CharacterClass::kLower, CharacterClass::kLetter});
  return set_of;
}
const Set& N() {
  static const Set set_of = Of({CharacterClass::kNumber});
  return set_of;
}
const Set& Space() {
  static const Set set_of = Of({CharacterClass::kSpace});
  return set_of;
}
const Set& LineEnd() {
  static const Set set_of = Is("\r\n");
  return set_of;
}

// 's 't 're 've 'm 'll 'd at `at`: the end, or nothing.
std::optional<std::size_t> Contraction(const Text& text, std::size_t at, std::size_t end,
                                       bool any_case) {
  for (const std::string_view word : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (end - at < word.size()) continue;
    bool equal = true;
    for (std::size_t i = 0; i < word.size() && equal; ++i) {
      const std::uint32_t c = text[at + i].code_point;
      const auto wanted = static_cast<std::uint32_t>(static_cast<unsigned char>(word[i]));
      const bool upper = i > 0 && c == wanted - ('a' - 'A');
      const bool long_s = word[i] == 's' && c == 0x17F;  // its simple case folding is s
      equal = c == wanted || (any_case && (upper || long_s));
    }
    if (equal) return at + word.size();
  }
  return std::nullopt;
}

// The end of a match of parts [part, ...) at `at`.
std::optional<std::size_t> Match(const Alternative& alternative, std::size_t part, const Text& text,
                                 std::size_t at, std::size_t end) {
  if (part == alternative.parts.size()) {
    switch (alternative.then) {
      case Then::kAnything:
        return at;
      case Then::kNoVisible:
        return at == end || Space()(text[at]) ? std::optional(at) : std::nullopt;
      case Then::kTextEnd:
        return at == end ? std::optional(at) : std::nullopt;
      case Then::kContraction:
        return Contraction(text, at, end, true).value_or(at);
    }
  }
  const Repeat& repeat = alternative.parts[part];
  std::size_t count = 0;
  while (count < repeat.most && at + count < end && repeat.set(text[at + count])) ++count;
  for (;; --count) {
    if (count < repeat.least) return std::nullopt;
    if (const auto found = Match(alternative, part + 1, text, at + count, end)) return found;
    if (count == 0) return std::nullopt;
  }
}

struct Splitter {
  enum class Contractions { kNone, kLowerCase, kAnyCase };
  Contractions contractions = Contractions::kNone;  // the first alternative
  Regex alternatives;
};

// Cuts [begin, end) at every match; what lies between two is a piece too.
void Cut(const Splitter& splitter, const Text& text, Span span, std::vector<Span>* pieces) {
  std::size_t unmatched = span.first;
  for (std::size_t at = span.first; at < span.second;) {
    std::optional<std::size_t> stop;
    if (splitter.contractions != Splitter::Contractions::kNone) {
      stop = Contraction(text, at, span.second,
                         splitter.contractions == Splitter::Contractions::kAnyCase);
    }
    for (const Alternative& alternative : splitter.alternatives) {
      if (!stop) stop = Match(alternative, 0, text, at, span.second);
    }
    if (!stop) {
      ++at;
      continue;
    }
    if (unmatched < at) pieces->emplace_back(unmatched, at);
    pieces->emplace_back(at, *stop);
    at = unmatched = *stop;
  }
  if (unmatched < span.second) pieces->emplace_back(unmatched, span.second);
}

const Alternative& SpaceBeforeVisible() {
  static const Alternative alternative{{{Space(), 1, kMany}}, Then::kNoVisible};
  return alternative;
}

std::vector<Splitter> SplittersOf(std::string_view pattern) {
  using C = Splitter::Contractions;
  const Set other = Not(Either(Space(), Either(L(), N())));
  const Set leader = Not(Either(LineEnd(), Either(L(), N())));
  const Set blank = Is(" ");
  const Alternative spaces{{{Space(), 1, kMany}}};
  const Alternative lines{{{Space(), 0, kMany}, {LineEnd(), 1, kMany}}};
  if (pattern == "gpt2") {
    return {{C::kLowerCase,
             {{{{blank, 0, 1}, {L(), 1, kMany}}},
              {{{blank, 0, 1}, {N(), 1, kMany}}},
              {{{blank, 0, 1}, {other, 1, kMany}}},
              SpaceBeforeVisible(),
              spaces}}};
  }
  const Alternative led_word{{{leader, 0, 1}, {L(), 1, kMany}}};
  const Alternative marks{{{blank, 0, 1}, {other, 1, kMany}, {LineEnd(), 0, kMany}}};
  if (pattern == "cl100k") {
    return {{C::kAnyCase,
             {led_word,
              {{{N(), 1, 3}}},
              marks,
              {{{Space(), 1, kMany}}, Then::kTextEnd},
              {{{Space(), 0, kMany}, {LineEnd(), 1, 1}}},
              SpaceBeforeVisible(),
              {{{Space(), 1, 1}}}}}};
  }
  if (pattern == "cl100k-line-end" || pattern == "qwen2") {
    const std::size_t most = pattern == "qwen2" ? 1 : 3;
    return {
        {C::kAnyCase, {led_word, {{{N(), 1, most}}}, marks, lines, SpaceBeforeVisible(), spaces}}};
  }
  using K = CharacterClass;
  if (pattern == "o200k") {
    const Set upper = Of({K::kUpper, K::kLetter, K::kMark});
    const Set lower = Of({K::kLower, K::kLetter, K::kMark});
    return {{C::kNone,
             {{{{leader, 0, 1}, {upper, 0, kMany}, {lower, 1, kMany}}, Then::kContraction},
              {{{leader, 0, 1}, {upper, 1, kMany}, {lower, 0, kMany}}, Then::kContraction},
              {{{N(), 1, 3}}},
              {{{blank, 0, 1}, {other, 1, kMany}, {Is("\r\n/"), 0, kMany}}},
              lines,
              SpaceBeforeVisible(),
              spaces}}};
  }
  if (pattern == "deepseek3") {
    const Set sign = Of({K::kPunctuation, K::kSymbol});
    const Set word = Either(L(), Of({K::kMark}));
    const Set han_or_kana = [](const Letter& l) {
      return (l.code_point >= 0x4E00 && l.code_point <= 0x9FA5) ||
             (l.code_point >= 0x3040 && l.code_point <= 0x309F) ||
             (l.code_point >= 0x30A0 && l.code_point <= 0x30FF);
    };
    const Set ascii_sign = Is("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~");
    const Set ascii_letter = Is("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
    return {{C::kNone, {{{{N(), 1, 3}}}}},
            {C::kNone, {{{{han_or_kana, 1, kMany}}}}},
            {C::kNone,
             {{{{ascii_sign, 1, 1}, {ascii_letter, 1, kMany}}},
              {{{Not(Either(LineEnd(), Either(L(), sign))), 0, 1}, {word, 1, kMany}}},
              {{{blank, 0, 1}, {sign, 1, kMany}, {LineEnd(), 0, kMany}}},
              lines,
              SpaceBeforeVisible(),
              spaces}}};
  }
  std::abort();  // the caller names a pattern that does not exist
}

}  // namespace

std::vector<std::string_view> Words(std::string_view pattern, std::string_view text) {
  static std::map<std::string, std::vector<Splitter>, std::less<>> known;
  auto found = known.find(pattern);
  if (found == known.end()) {
    found = known.emplace(std::string(pattern), SplittersOf(pattern)).first;
  }
  const Text letters = Letters(text);
  std::vector<Span> pieces;
  if (!letters.empty()) pieces.emplace_back(0, letters.size());
  for (const Splitter& splitter : found->second) {
    std::vector<Span> cut;
    for (const Span& piece : pieces) Cut(splitter, letters, piece, &cut);
    pieces = std::move(cut);
  }
  std::vector<std::string_view> words;
  for (const auto& [begin, end] : pieces) {
    const std::size_t first = letters[begin].begin;
    const std::size_t last = end == letters.size() ? text.size() : letters[end].begin;
    words.push_back(text.substr(first, last - first));
  }
  return words;
}

std::vector<std::size_t> CharacterBegins(std::string_view text) {
  std::vector<std::size_t> begins;
  for (const Letter& letter : Letters(text)) begins.push_back(letter.begin);
  begins.push_back(text.size());
  return begins;
}

std::vector<std::uint32_t> Vocabulary::MergeWord(std::string_view word) const {
  constexpr std::uint32_t kNever = 0xFFFFFFFF;
  if (whole_words_first) {
    const auto whole = ids.find(word);
    if (whole != ids.end()) return {whole->second};
  }
  // Where each token begins, and the rank of its merge with the next one.
  std::vector<std::size_t> begins;
  for (std::size_t i = 0; i <= word.size(); ++i) begins.push_back(i);
  std::vector<std::uint32_t> ranks(word.size(), kNever);
  const auto token = [&](std::size_t i) {
    return word.substr(begins[i], begins[i + 1] - begins[i]);
  };
  const auto look = [&](std::size_t i) {
    ranks[i] = kNever;
    if (i + 2 >= begins.size()) return;
    if (merges.empty()) {
      const auto both = ids.find(word.substr(begins[i], begins[i + 2] - begins[i]));
      if (both != ids.end()) ranks[i] = both->second;
    } else {
      const auto merge = merges.find({std::string(token(i)), std::string(token(i + 1))});
      if (merge != merges.end()) ranks[i] = merge->second;
    }
  };
  for (std::size_t i = 0; i < ranks.size(); ++i) look(i);
  while (true) {
    const auto best = std::min_element(ranks.begin(), ranks.end());  // the leftmost of the lowest
    if (best == ranks.end() || *best == kNever) break;
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    begins.erase(begins.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    look(i);
    if (i > 0) look(i - 1);
  }
  std::vector<std::uint32_t> result;
  for (std::size_t i = 0; i + 1 < begins.size(); ++i) result.push_back(ids.find(token(i))->second);
  return result;
}

std::vector<std::uint32_t> Vocabulary::Encode(std::string_view pattern,
                                              std::string_view text) const {
  std::vector<std::uint32_t> result;
  for (const std::string_view word : Words(pattern, text)) {
    const std::vector<std::uint32_t> part = MergeWord(word);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

std::vector<std::uint32_t> Vocabulary::EncodeWithSpecial(
    std::string_view pattern, std::string_view text,
    const std::vector<std::string>& allowed) const {
  std::vector<std::uint32_t> result;
  const auto plain = [&](std::size_t begin, std::size_t end) {
    const std::vector<std::uint32_t> part = Encode(pattern, text.substr(begin, end - begin));
    result.insert(result.end(), part.begin(), part.end());
  };
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::string_view longest;
    for (const auto& [name, id] : special_tokens) {
      if (text.substr(at, name.size()) == name && name.size() > longest.size()) longest = name;
    }
    if (longest.empty()) {
      ++at;
      continue;
    }
    if (std::find(allowed.begin(), allowed.end(), longest) != allowed.end()) {
      plain(done, at);
      result.push_back(special_tokens.find(std::string(longest))->second);
      done = at + longest.size();
    }
    at += longest.size();
  }
  plain(done, text.size());
  return result;
}

}  // namespace widestream::reference
