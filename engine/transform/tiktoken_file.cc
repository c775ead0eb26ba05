// Reads .tiktoken files: one line per token, the base64 of its bytes, a space, its rank. The rank
// is both the id and the merge priority. Special tokens and the pattern are not in such files: the
// published vocabularies that we know are recognised by their content, any other has no special
// tokens and needs the pattern from the caller.
#include <algorithm>
#include <array>
#include <unordered_map>

#include "engine/transform/vocabulary.h"

namespace widestream::internal {
namespace {

struct KnownVocabulary {
  const char* name;
  std::size_t tokens;
  const char* digest;  // TokensDigest
  Pattern pattern;
  std::vector<std::pair<const char*, std::uint32_t>> special_tokens;
};

const std::vector<KnownVocabulary>& KnownVocabularies() {
  static const auto* const known = new std::vector<KnownVocabulary>{
      {"r50k_base",
       50256,
       "5ab56ae7c2e726e9a817f8fa8fb37e35",
       Pattern::kGpt2,
       {{"<|endoftext|>", 50256}}},
      // The 50256 of r50k and, behind the special token, runs of 2 to 25 spaces.
      {"p50k_base",
       50281,
       "34c25016657e45670c11263b5f4c477d",
       Pattern::kGpt2,
       {{"<|endoftext|>", 50256}}},
      {"cl100k_base",
       100256,
       "ab365f4801b7b9023372e48a11c10760",
       Pattern::kCl100k,
       {{"<|endoftext|>", 100257},
        {"<|fim_prefix|>", 100258},
        {"<|fim_middle|>", 100259},
        {"<|fim_suffix|>", 100260},
        {"<|endofprompt|>", 100276}}},
      {"o200k_base",
       199998,
       "c397cfc4e2820183ad3dd0f4233e6ebe",
       Pattern::kO200k,
       {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}}},
  };
  return *known;
}

constexpr std::uint8_t kNoDigit = 255;
constexpr std::array<std::uint8_t, 256> MakeBase64Digits() {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  constexpr char kAlphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::uint8_t i = 0; i < 64; ++i) digits[static_cast<unsigned char>(kAlphabet[i])] = i;
  return digits;
}
constexpr std::array<std::uint8_t, 256> kBase64Digits = MakeBase64Digits();

// Only the canonical form: padded, no other characters, unused bits zero.
bool DecodeBase64(std::string_view text, std::string* bytes) {
  bytes->clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  std::size_t padding = 0;
  while (padding < 2 && text[text.size() - 1 - padding] == '=') ++padding;
  for (std::size_t i = 0; i < text.size(); i += 4) {
    std::uint32_t group = 0;
    const std::size_t digits = i + 4 == text.size() ? 4 - padding : 4;
    for (std::size_t k = 0; k < 4; ++k) {
      std::uint8_t digit = 0;
      if (k < digits) digit = kBase64Digits[static_cast<unsigned char>(text[i + k])];
      if (digit == kNoDigit) return false;
      group = (group << 6) | digit;
    }
    for (std::size_t k = 0; k + 1 < digits; ++k) {
      *bytes += static_cast<char>((group >> (16 - 8 * k)) & 0xFF);
    }
    if (digits < 4 && (group & (digits == 3 ? 0xFFU : 0xFFFFU)) != 0) return false;
  }
  return true;
}

// Decimal digits only; nothing when the value is above kMaxTokenId.
std::optional<std::uint32_t> ParseRank(std::string_view text) {
  if (text.empty() || text.size() > 8) return std::nullopt;
  std::uint32_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<std::uint32_t>(c - '0');
  }
  if (value > kMaxTokenId) return std::nullopt;
  return value;
}

struct Line {
  std::string token;
  std::uint32_t rank;
};

Result<Line> ParseLine(std::string_view line, const std::string& where) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    return Status::InvalidArgument(where + ": expected base64, a space and a rank, found " +
                                   Quoted(line) +
                                   ". The file is cut or not a .tiktoken file: get it again");
  }
  // The length of the base64 bounds the token before it is decoded.
  if (space > (kMaxTokenBytes + 2) / 3 * 4) {
    return Status::InvalidArgument(where + ": a token of more than " +
                                   std::to_string(kMaxTokenBytes) +
                                   " bytes; published vocabularies end at 128");
  }
  Line result;
  if (!DecodeBase64(line.substr(0, space), &result.token)) {
    return Status::InvalidArgument(
        where + ": " + Quoted(line.substr(0, space)) +
        " is not base64 (padded, not empty). The file is damaged: get it "
        "again");
  }
  const std::optional<std::uint32_t> rank = ParseRank(line.substr(space + 1));
  if (!rank) {
    return Status::InvalidArgument(where + ": the rank " + Quoted(line.substr(space + 1)) +
                                   " is not a whole number from 0 to " +
                                   std::to_string(kMaxTokenId) +
                                   ". The file is damaged: get it again");
  }
  result.rank = *rank;
  return result;
}

}  // namespace

Result<Vocabulary> ReadTiktoken(std::string_view bytes, const std::string& name,
                                std::optional<Pattern> pattern) {
  std::unordered_map<std::string, std::size_t> line_of_token;
  std::unordered_map<std::uint32_t, std::pair<std::size_t, const std::string*>> by_rank;
  std::uint32_t largest = 0;
  std::size_t token_bytes = 0;
  std::size_t line_number = 0;
  for (std::size_t start = 0; start < bytes.size();) {
    const std::size_t stop = std::min(bytes.find('\n', start), bytes.size());
    std::string_view text = bytes.substr(start, stop - start);
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    start = stop + 1;
    const std::string where = name + ": line " + std::to_string(++line_number);
    WS_ASSIGN_OR_RETURN(Line line, ParseLine(text, where));
    token_bytes += line.token.size();
    if (token_bytes > kMaxVocabularyBytes) {
      return Status::ResourceExhausted(where + ": the tokens have more than " +
                                       std::to_string(kMaxVocabularyBytes) +
                                       " bytes together; this is no vocabulary we can load");
    }
    largest = std::max(largest, line.rank);
    const auto [token, new_token] = line_of_token.emplace(std::move(line.token), line_number);
    if (!new_token) {
      return Status::InvalidArgument(where + ": the token " + Quoted(token->first) +
                                     " was already on line " + std::to_string(token->second) +
                                     ". The file is damaged: get it again");
    }
    const auto [rank, new_rank] =
        by_rank.emplace(line.rank, std::make_pair(line_number, &token->first));
    if (!new_rank) {
      return Status::InvalidArgument(where + ": rank " + std::to_string(line.rank) +
                                     " was already on line " + std::to_string(rank->second.first) +
                                     ". The file is damaged: get it again");
    }
  }
  if (by_rank.empty()) {
    return Status::InvalidArgument(name + ": the file is empty; expected a .tiktoken vocabulary");
  }
  Vocabulary vocabulary;
  vocabulary.merge_by_id = true;
  vocabulary.whole_words_first = true;
  // With a gap the largest rank may be far above the number of tokens: tell it before allocating.
  // Only p50k_base has one, at the id of its special token.
  constexpr std::uint32_t kP50kGap = 50256;
  constexpr std::uint32_t kP50kRanks = 50280;
  const bool may_be_p50k = by_rank.size() == kP50kRanks && largest == kP50kRanks;
  const std::uint32_t expected = static_cast<std::uint32_t>(by_rank.size()) + (may_be_p50k ? 1 : 0);
  const auto gap = [&](std::uint32_t rank) {
    return Status::InvalidArgument(
        name + ": no line has rank " + std::to_string(rank) + " though line " +
        std::to_string(by_rank[largest].first) + " has rank " + std::to_string(largest) +
        "; ranks must run from 0 without a gap. The file may be cut: get it again");
  };
  for (std::uint32_t rank = 0; rank < expected; ++rank) {
    const auto found = by_rank.find(rank);
    if (found != by_rank.end()) {
      vocabulary.tokens.push_back(*found->second.second);
    } else if (may_be_p50k && rank == kP50kGap) {
      vocabulary.tokens.emplace_back();
    } else {
      return gap(rank);
    }
  }

  const std::string digest = TokensDigest(vocabulary.tokens);
  const auto known = std::find_if(
      KnownVocabularies().begin(), KnownVocabularies().end(), [&](const KnownVocabulary& one) {
        return vocabulary.tokens.size() == one.tokens && digest == one.digest;
      });
  if (known != KnownVocabularies().end()) {
    if (pattern && *pattern != known->pattern) {
      return Status::InvalidArgument(name + ": this is " + known->name + ", whose pattern is \"" +
                                     PatternName(known->pattern) + "\", not \"" +
                                     PatternName(*pattern) + "\"; leave the pattern out");
    }
    vocabulary.pattern = known->pattern;
    for (const auto& [special, id] : known->special_tokens) {
      vocabulary.special_tokens[special] = id;
      vocabulary.added_tokens.push_back({.name = special, .id = id});
    }
    WS_RETURN_IF_ERROR(CheckVocabulary(vocabulary, name));
    return vocabulary;
  }
  if (may_be_p50k) return gap(kP50kGap);
  WS_RETURN_IF_ERROR(CheckVocabulary(vocabulary, name));
  if (!pattern) {
    return Status::InvalidArgument(
        name +
        ": a .tiktoken file does not say how text is cut into words, and this one is none of "
        "r50k_base, p50k_base, cl100k_base and o200k_base; give the pattern it was trained with: " +
        PatternNames());
  }
  vocabulary.pattern = *pattern;
  return vocabulary;
}

}  // namespace widestream::internal
