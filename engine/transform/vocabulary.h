// What a tokenizer file says, read and checked but not yet laid out for speed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/transform/added_tokens.h"
#include "engine/transform/pretokenizer.h"

namespace widestream::internal {

// Bounds on what a file may ask for. The largest published vocabularies stay far below: 33 MB
// files, 262,144 ids, tokens of 128 bytes.
inline constexpr std::uint64_t kMaxTokenizerFileBytes = std::uint64_t{64} << 20;
inline constexpr std::uint32_t kMaxTokenId = (1U << 24) - 1;
inline constexpr std::uint32_t kMaxTokens = 1000000;  // special tokens apart
inline constexpr std::size_t kMaxTokenBytes = 1023;
inline constexpr std::size_t kMaxVocabularyBytes = std::size_t{16} << 20;
// Pairs that merge; the published vocabularies have up to about a million.
inline constexpr std::size_t kMaxMerges = std::size_t{4} << 20;

struct Merge {
  std::uint32_t left;
  std::uint32_t right;
  std::uint32_t merged;
};

// Invariants once a reader has returned it: every single byte is a token, no two ids have the same
// bytes, ids below tokens.size() are either a token or a special token.
struct Vocabulary {
  std::vector<std::string> tokens;                      // by id; empty: the id is a special token's
  std::map<std::string, std::uint32_t> special_tokens;  // name -> id
  // All that are matched in the text as a whole, the special ones included.
  std::vector<AddedToken> added_tokens;
  // A special token that is not allowed still takes its place, so no other is found inside it.
  bool special_tokens_hide = false;
  // The text is normalized to NFC first.
  bool normalize_nfc = false;
  // Ids that the post-processor puts before and after those of a text.
  std::vector<std::uint32_t> ids_before;
  std::vector<std::uint32_t> ids_after;
  Pattern pattern = Pattern::kGpt2;
  // .tiktoken: any two neighbours whose bytes together are a token merge, the lowest id first.
  // Otherwise `merges` lists the pairs, best first.
  bool merge_by_id = false;
  std::vector<Merge> merges;
  // A word that is a token gets its id even where merging would not reach it.
  bool whole_words_first = false;
};

// `name` is for messages only. `pattern`: what the caller asked for, nothing to take it from the
// file.
Result<Vocabulary> ReadTiktoken(std::string_view bytes, const std::string& name,
                                std::optional<Pattern> pattern);
Result<Vocabulary> ReadTokenizerJson(std::string_view bytes, const std::string& name,
                                     std::optional<Pattern> pattern);

// Checks the single bytes and the use of ids; both readers end with it.
Status CheckVocabulary(const Vocabulary& vocabulary, const std::string& name);

// A hash of the tokens and their ids, to know the published vocabularies again.
std::string TokensDigest(const std::vector<std::string>& tokens);

// `bytes` in quotes, cut to a length that fits a message, anything unprintable as \xNN.
std::string Quoted(std::string_view bytes);

}  // namespace widestream::internal
