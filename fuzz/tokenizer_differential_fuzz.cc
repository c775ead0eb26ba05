// Input: the number of a vocabulary, three bytes of choices, a text. The engine's tokenizer must
// give the ids of the plain one of reference_tokenizer.h, and all its calls must agree: decoding,
// streamed decoding, counting, offsets, truncation, batches, special tokens. Vocabularies are small
// generated ones of every pattern and kind of file, and the real r50k.
//
// Seeds: write_differential of fuzz/make_tokenizer_corpus.py, and fuzz/corpus.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/transform/test_vocabulary.h"
#include "engine/transform/tokenizer.h"
#include "fuzz/reference_tokenizer.h"

namespace {

using widestream::EncodeOptions;
using widestream::IdBuffer;
using widestream::SpecialTokenSet;
using widestream::Tokenizer;
using widestream::TokenOffsets;
using Ids = std::vector<std::uint32_t>;

constexpr const char* kPatterns[] = {"gpt2",  "cl100k", "cl100k-line-end",
                                     "o200k", "qwen2",  "deepseek3"};
constexpr std::size_t kPatternCount = std::size(kPatterns);
// Rank files, tokenizer.json, tokenizer.json with ignore_merges, and one that normalizes.
enum Kind : std::uint8_t { kRanks, kJson, kIgnoreMerges, kNfc, kKindCount };
constexpr std::size_t kGenerated = kPatternCount * kKindCount * 3;
constexpr std::size_t kSubjects = kGenerated + kPatternCount;  // the last are r50k
constexpr std::size_t kMostTextBytes = 1536;

// Texts are made of these where the input says so: what the patterns and merges treat specially.
constexpr const char* kPieces[] = {"a",
                                   "b",
                                   "Z",
                                   "ab",
                                   "aab",
                                   "the",
                                   " hello",
                                   "World",
                                   "'s",
                                   "'S",
                                   "'\xC5\xBF",
                                   "'ll",
                                   "'lL",
                                   "'VE",
                                   "'re",
                                   "'D",
                                   "'T",
                                   "'m",
                                   "'",
                                   "''",
                                   " ",
                                   "  ",
                                   "\t",
                                   "\n",
                                   "\r\n",
                                   "\r",
                                   " \n ",
                                   "\n\n",
                                   "\x0B",
                                   "\x1C",
                                   "\xC2\x85",
                                   "\xC2\xA0",
                                   "\xE1\x9A\x80",
                                   "\xE2\x80\x83",
                                   "\xE2\x80\xA8",
                                   "\xE3\x80\x80",
                                   "\xE2\x80\x8B",
                                   "\xEF\xBB\xBF",
                                   "\xC3\xA9",
                                   "e\xCC\x81",
                                   "\xCC\x81",
                                   "\xCC\xA3\xCC\x81",
                                   "\xC7\x85",
                                   "\xCA\xB0",
                                   "\xC2\xAA",
                                   "\xE4\xB8\xAD",
                                   "\xE6\x96\x87",
                                   "\xE3\x81\x82",
                                   "\xE3\x83\xBB",
                                   "\xE3\x82\xA0",
                                   "\xE3\x82\x99",
                                   "\xEA\xB0\x80",
                                   "\xE1\x84\x80\xE1\x85\xA1",
                                   "1",
                                   "12",
                                   "1234",
                                   "\xC2\xB2",
                                   "\xC2\xBD",
                                   "\xD9\xA3",
                                   "\xE2\x85\xA7",
                                   "\xF0\x9D\x9F\x98",
                                   "!",
                                   "...",
                                   "/",
                                   "//\n",
                                   "-",
                                   "_",
                                   "$",
                                   "+",
                                   "\"",
                                   "\xE2\x80\x94",
                                   "\xE2\x82\xAC",
                                   "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",
                                   "\xF0\x9F\x87\xA9\xF0\x9F\x87\xAA",
                                   "\xEE\x80\x80",
                                   "\xCD\xB8",
                                   "\xF4\x8F\xBF\xBF",
                                   "\x80",
                                   "\xBF",
                                   "\xC0\xAF",
                                   "\xE2\x82",
                                   "\xED\xA0\x80",
                                   "\xED\xBF\xBF",
                                   "\xF4\x90\x80\x80",
                                   "\xF0\x9F\x91",
                                   "\xFF",
                                   "<|endoftext|>",
                                   "<|end",
                                   "<|endoftext|>x",
                                   "\xD0\x9F\xD1\x80",
                                   "\xD0\x96",
                                   "\xD9\x85\xD8\xB1",
                                   "\xE0\xA4\xA8\xE0\xA4\xAE\xE0\xA5\x8D",
                                   "\x7F"};

[[noreturn]] void Fail(const char* what, std::string_view text, const Ids& found,
                       const Ids& expected) {
  std::fprintf(stderr, "%s: text of %zu bytes:", what, text.size());
  for (const char c : text) {
    std::fprintf(stderr, " %02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  const auto print = [](const char* name, const Ids& ids) {
    std::fprintf(stderr, "\n%s:", name);
    for (const std::uint32_t id : ids) std::fprintf(stderr, " %u", id);
  };
  print("found", found);
  print("expected", expected);
  std::fprintf(stderr, "\n");
  std::abort();
}

struct Subject {
  std::shared_ptr<const Tokenizer> tokenizer;
  widestream::reference::Vocabulary reference;
  const char* pattern;
  bool normalizes = false;
};

std::string JsonString(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    json += c;
  }
  return json + "\"";
}

std::string PreTokenizerJson(std::string_view pattern) {
  std::vector<const char*> regexes;
  if (pattern == "cl100k-line-end") regexes = {widestream::reference::kLlama3Regex};
  if (pattern == "qwen2") regexes = {widestream::reference::kQwen2Regex};
  if (pattern == "o200k") regexes = {widestream::reference::kO200kRegex};
  if (pattern == "deepseek3") {
    regexes.assign(std::begin(widestream::reference::kDeepSeek3Regexes),
                   std::end(widestream::reference::kDeepSeek3Regexes));
  }
  std::string json = R"({"type": "Sequence", "pretokenizers": [)";
  for (const char* const regex : regexes) {
    json += R"({"type": "Split", "pattern": {"Regex": )" + JsonString(regex) +
            R"(}, "behavior": "Isolated", "invert": false}, )";
  }
  return json +
         R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )" +
         (regexes.empty() ? "true}]}" : "false}]}");
}

void Replace(std::string* text, std::string_view from, std::string_view to) {
  const std::size_t at = text->find(from);
  if (at == std::string::npos) std::abort();
  text->replace(at, from.size(), to);
}

// The 256 bytes and tokens made of neighbours that the pieces above have, of bytes in any order,
// and a few that no merge reaches.
std::vector<std::pair<std::string, std::string>> GeneratedMerges(std::mt19937_64* random,
                                                                 std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < 400; ++i) text += kPieces[(*random)() % std::size(kPieces)];
  std::vector<std::string> tokens = widestream::testing::ByteTokens();
  std::vector<std::pair<std::string, std::string>> merges;
  while (merges.size() < count) {
    std::string left;
    std::string right;
    if ((*random)() % 3 == 0) {
      left = tokens[(*random)() % tokens.size()];
      right = tokens[(*random)() % tokens.size()];
    } else {  // a stretch of text as one pair of tokens that are there
      const std::size_t at = (*random)() % text.size();
      for (const std::string& token : tokens) {
        if (text.compare(at, token.size(), token) == 0 && token.size() > left.size()) left = token;
      }
      for (const std::string& token : tokens) {
        const std::size_t next = at + left.size();
        if (next < text.size() && text.compare(next, token.size(), token) == 0 &&
            token.size() > right.size()) {
          right = token;
        }
      }
    }
    if (left.empty() || right.empty() || left.size() + right.size() > 90) continue;
    if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
    if ((left + right).starts_with("<|end")) continue;  // the special tokens
    tokens.push_back(left + right);
    merges.emplace_back(left, right);
  }
  return merges;
}

std::shared_ptr<const Tokenizer> Load(const std::string& file, const std::string& pattern) {
  auto loaded = Tokenizer::FromBytes(file, "generated", {.pattern = pattern});
  if (!loaded.ok()) {
    std::fprintf(stderr, "a vocabulary of this fuzzer does not load: %s\n",
                 std::string(loaded.status().message()).c_str());
    std::abort();
  }
  return *std::move(loaded);
}

Subject RankSubject(const std::vector<std::string>& tokens, const char* pattern) {
  Subject subject;
  subject.pattern = pattern;
  subject.tokenizer = Load(widestream::testing::TiktokenFile(tokens), pattern);
  subject.reference.whole_words_first = true;
  for (std::uint32_t id = 0; id < tokens.size(); ++id) subject.reference.ids[tokens[id]] = id;
  return subject;
}

Subject JsonSubject(std::mt19937_64* random, const char* pattern, Kind kind, std::size_t count) {
  Subject subject;
  subject.pattern = pattern;
  subject.normalizes = kind == kNfc;
  auto merges = GeneratedMerges(random, count);
  std::vector<std::string> tokens = widestream::testing::ByteTokens();
  for (const auto& [left, right] : merges) tokens.push_back(left + right);
  tokens.emplace_back("unreachable");
  std::shuffle(tokens.begin(), tokens.end(), *random);
  if ((*random)() % 2 == 0) std::shuffle(merges.begin(), merges.end(), *random);
  std::string file = widestream::testing::JsonFile(tokens, merges);
  // The special tokens: one begins another, and text has their parts.
  const auto next = static_cast<std::uint32_t>(tokens.size());
  subject.reference.special_tokens = {
      {"<|endoftext|>", next}, {"<|endoftext|>x", next + 1}, {"<|end", next + 2}};
  const std::string flags =
      R"(, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})";
  for (const auto& [name, id] : subject.reference.special_tokens) {
    if (id == next) continue;
    std::string entry = R"(, {"id": )" + std::to_string(id);
    entry.append(R"(, "content": ")").append(name).append("\"").append(flags);
    Replace(&file, "],\n\"normalizer\"", entry + "],\n\"normalizer\"");
  }
  const std::size_t begin = file.find("{\"type\": \"ByteLevel\"");
  file.replace(begin, file.find('}', begin) + 1 - begin, PreTokenizerJson(pattern));
  if (kind == kIgnoreMerges)
    Replace(&file, R"("ignore_merges": false)", R"("ignore_merges": true)");
  if (kind == kNfc) Replace(&file, R"("normalizer": null)", R"("normalizer": {"type": "NFC"})");
  subject.tokenizer = Load(file, "");
  subject.reference.whole_words_first = kind == kIgnoreMerges;
  for (std::uint32_t id = 0; id < tokens.size(); ++id) subject.reference.ids[tokens[id]] = id;
  for (std::uint32_t rank = 0; rank < merges.size(); ++rank)
    subject.reference.merges[merges[rank]] = rank;
  return subject;
}

Subject GeneratedSubject(std::size_t number) {
  std::mt19937_64 random(number * 7919 + 1);
  const char* const pattern = kPatterns[number % kPatternCount];
  const auto kind = static_cast<Kind>(number / kPatternCount % kKindCount);
  const std::size_t counts[] = {20, 200, 900};
  const std::size_t count = counts[number / kPatternCount / kKindCount];
  // The first of the two spellings that tokenizer.json files do not have.
  if (kind != kRanks && std::string_view(pattern) != "cl100k") {
    return JsonSubject(&random, pattern, kind, count);
  }
  std::vector<std::string> tokens = widestream::testing::ByteTokens();
  for (const auto& [left, right] : GeneratedMerges(&random, count)) tokens.push_back(left + right);
  tokens.emplace_back("unreachable");
  // In the order of a trained vocabulary, or any.
  if (random() % 2 == 0) std::shuffle(tokens.begin(), tokens.end(), random);
  return RankSubject(tokens, pattern);
}

Subject RealSubject(const char* pattern) {
  std::ifstream file(WS_R50K_PATH, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto whole = Load(bytes, "");
  std::vector<std::string> tokens;
  // Without its last token r50k is not known by its content, and may have any pattern.
  for (std::uint32_t id = 0; id < 50255; ++id) {
    const auto token = whole->TokenBytes(id);
    if (!token) std::abort();
    tokens.emplace_back(*token);
  }
  return RankSubject(tokens, pattern);
}

const Subject& SubjectOf(std::size_t number) {
  static std::unique_ptr<const Subject> subjects[kSubjects];
  std::unique_ptr<const Subject>& subject = subjects[number];
  if (subject == nullptr) {
    subject = std::make_unique<const Subject>(number < kGenerated
                                                  ? GeneratedSubject(number)
                                                  : RealSubject(kPatterns[number - kGenerated]));
  }
  return *subject;
}

std::string TextOf(std::string_view input, unsigned choices) {
  std::string text;
  for (const char c : input) {
    const auto b = static_cast<unsigned char>(c);
    if ((choices & 1U) == 0) {
      text += c;
    } else if (b == 255) {  // the NUL, which ends a C string
      text += '\0';
    } else {
      text += kPieces[b % std::size(kPieces)];
    }
    if (text.size() > kMostTextBytes) break;
  }
  // Long words and many words of one kind.
  const std::size_t times[] = {1, 1, 1, 2, 5, 17, 64, 300};
  const std::string once = text;
  for (std::size_t i = 1; i < times[(choices >> 1U) % 8]; ++i) {
    if (text.size() + once.size() > kMostTextBytes) break;
    text += once;
  }
  text.resize(std::min(text.size(), kMostTextBytes));
  return text;
}

void Require(bool condition, const char* what, std::string_view text, const Ids& found,
             const Ids& expected = {}) {
  if (!condition) Fail(what, text, found, expected);
}

template <typename Id>
Ids Wide(const IdBuffer<Id>& buffer) {
  return {buffer.ids().begin(), buffer.ids().end()};
}

// Ids cover `text` from its start to its end; exactly their bytes, unless it was normalized.
void CheckOffsets(const Subject& subject, std::string_view text, const Ids& ids,
                  const TokenOffsets& offsets) {
  Require(offsets.begin.size() == ids.size() && offsets.end.size() == ids.size(), "offsets", text,
          ids);
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool follows =
        subject.normalizes ? offsets.begin[i] <= covered : offsets.begin[i] == covered;
    Require(follows && offsets.end[i] >= offsets.begin[i] && offsets.end[i] >= covered, "an offset",
            text, ids);
    covered = offsets.end[i];
    if (subject.normalizes) continue;
    const std::string_view bytes = text.substr(offsets.begin[i], offsets.end[i] - offsets.begin[i]);
    Require(subject.tokenizer->TokenBytes(ids[i]) == bytes, "the bytes of an offset", text, ids);
  }
  Require(covered == text.size(), "the end of the offsets", text, ids);
  const std::vector<std::size_t> begins = widestream::reference::CharacterBegins(text);
  for (const bool round_up : {false, true}) {
    std::vector<std::uint64_t> positions = round_up ? offsets.end : offsets.begin;
    const std::vector<std::uint64_t> at_bytes = positions;
    widestream::BytesToCharacters(text, round_up, positions);
    for (std::size_t i = 0; i < positions.size(); ++i) {
      // The first character that begins there or later; for a begin, the one that holds the byte.
      auto character = std::lower_bound(begins.begin(), begins.end(), at_bytes[i]);
      if (*character != at_bytes[i] && !round_up) --character;
      Require(positions[i] == static_cast<std::uint64_t>(character - begins.begin()),
              "a character offset", text, ids);
    }
  }
}

template <typename Id>
void CheckCalls(const Subject& subject, std::string_view text, const Ids& ids, std::size_t most,
                std::size_t cut) {
  const Tokenizer& tokenizer = *subject.tokenizer;
  IdBuffer<Id> buffer;
  TokenOffsets offsets;
  Require(tokenizer.Encode(text, {}, &buffer, &offsets).ok() && Wide(buffer) == ids,
          "encode with offsets", text, Wide(buffer), ids);
  CheckOffsets(subject, text, ids, offsets);
  const auto count = tokenizer.Count(text);
  Require(count.ok() && *count == ids.size(), "count", text, ids);

  EncodeOptions truncate;
  truncate.max_tokens = most;
  const Ids first(ids.begin(),
                  ids.begin() + static_cast<std::ptrdiff_t>(std::min(most, ids.size())));
  buffer.Clear();
  TokenOffsets first_offsets;
  Require(tokenizer.Encode(text, truncate, &buffer, &first_offsets).ok() && Wide(buffer) == first,
          "truncation", text, Wide(buffer), first);
  Require(first_offsets.end.size() == first.size() &&
              std::equal(first_offsets.end.begin(), first_offsets.end.end(), offsets.end.begin()),
          "truncated offsets", text, first);
  const auto first_count = tokenizer.Count(text, truncate);
  Require(first_count.ok() && *first_count == first.size(), "truncated count", text, first);

  cut = std::min(cut, text.size());
  const std::vector<std::string_view> texts = {text.substr(0, cut), text, text.substr(cut), ""};
  Ids expected;
  std::vector<std::uint64_t> expected_ends;
  std::vector<std::uint64_t> expected_counts;
  for (const std::string_view part : texts) {
    const std::size_t before = expected.size();
    tokenizer.Encode(part, &expected);
    expected_ends.push_back(expected.size());
    expected_counts.push_back(expected.size() - before);
  }
  buffer.Clear();
  std::vector<std::uint64_t> ends;
  Require(tokenizer.EncodeBatch<Id>(texts, {}, 1, &buffer, &ends).ok() &&
              Wide(buffer) == expected && ends == expected_ends,
          "a batch", text, Wide(buffer), expected);
  std::vector<std::uint64_t> counts;
  Require(tokenizer.CountBatch(texts, {}, &counts).ok() && counts == expected_counts,
          "counts of a batch", text, ids);
}

void CheckDecoding(const Subject& subject, std::string_view text, const Ids& ids) {
  std::string decoded;
  Require(subject.tokenizer->Decode(ids, &decoded).ok() && decoded == text, "decoding", text, ids);
  widestream::DecodeStream stream(subject.tokenizer);
  const std::vector<std::size_t> begins = widestream::reference::CharacterBegins(text);
  std::string streamed;
  for (const std::uint32_t id : ids) {
    Require(stream.Push(id, &streamed).ok(), "a streamed id", text, ids);
    const bool whole = std::binary_search(begins.begin(), begins.end(), streamed.size());
    Require(whole, "a streamed character", text, ids);
  }
  stream.Finish(&streamed);
  Require(streamed == text, "streamed decoding", text, ids);
}

void CheckSpecialTokens(const Subject& subject, std::string_view text, unsigned choice) {
  const auto& special = subject.reference.special_tokens;
  if (special.empty()) return;
  EncodeOptions options;
  std::vector<std::string> allowed;
  for (const auto& [name, id] : special) {
    if ((choice & 1U) != 0) allowed.push_back(name);
    choice >>= 1U;
  }
  options.allowed_special.names = allowed;
  const Ids expected = subject.reference.EncodeWithSpecial(subject.pattern, text, allowed);
  IdBuffer<std::uint32_t> buffer;
  Require(subject.tokenizer->Encode(text, options, &buffer).ok() && Wide(buffer) == expected,
          "special tokens", text, Wide(buffer), expected);
  const auto count = subject.tokenizer->Count(text, options);
  Require(count.ok() && *count == expected.size(), "count with special tokens", text, expected);

  EncodeOptions refuse;
  refuse.disallowed_special = SpecialTokenSet::All();
  const bool spelled = std::any_of(special.begin(), special.end(), [&](const auto& token) {
    return text.find(token.first) != std::string_view::npos;
  });
  buffer.Clear();
  Require(subject.tokenizer->Encode(text, refuse, &buffer).ok() != spelled,
          "disallowed special tokens", text, expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kHead = 4;
  if (size < kHead) return 0;
  const Subject& subject = SubjectOf(data[0] % kSubjects);
  const std::string made =
      TextOf({reinterpret_cast<const char*>(data) + kHead, size - kHead}, data[1]);
  // A buffer of its own size, so that reading past its end is seen.
  const std::vector<char> exact(made.begin(), made.end());
  const std::string_view text(exact.data(), exact.size());

  Ids ids;
  subject.tokenizer->Encode(text, &ids);
  // What the ids stand for.
  std::string normalized(text);
  if (subject.normalizes) {
    normalized.clear();
    Require(subject.tokenizer->Decode(ids, &normalized).ok(), "decoding", text, ids);
    Ids again;
    subject.tokenizer->Encode(normalized, &again);
    Require(again == ids, "normalizing twice", text, again, ids);
  }
  const Ids expected = subject.reference.Encode(subject.pattern, normalized);
  Require(ids == expected, "ids", text, ids, expected);
  CheckDecoding(subject, normalized, ids);
  if (subject.tokenizer->FitsUint16()) {
    CheckCalls<std::uint16_t>(subject, text, ids, data[2], data[3]);
  }
  CheckCalls<std::uint32_t>(subject, text, ids, data[2], data[3]);
  if (!subject.normalizes) CheckSpecialTokens(subject, text, data[2] >> 4U);
  return 0;
}
