// The tables of a byte-level BPE vocabulary and the merging of one word.
#pragma once

#include <xxhash.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/transform/isa.h"
#include "engine/transform/large_array.h"
#include "engine/transform/vocabulary.h"

namespace widestream::internal {

static_assert(std::endian::native == std::endian::little,
              "word keys are read as little-endian words");

inline constexpr std::uint32_t kNoId = 0xFFFFFFFF;

// A word of at most 15 bytes as two integers; the top byte holds the length, so equal keys are
// equal words.
struct WordKey {
  static constexpr std::size_t kMaxBytes = 15;
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const WordKey&) const = default;

  // Reads only the word.
  static WordKey Of(const char* word, std::size_t bytes) {
    char padded[16] = {};
    std::memcpy(padded, word, bytes);
    WordKey key;
    std::memcpy(&key.low, padded, 8);
    std::memcpy(&key.high, padded + 8, 8);
    key.high |= static_cast<std::uint64_t>(bytes) << 56;
    return key;
  }
  std::uint64_t Hash(std::uint64_t seed) const {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(low ^ seed) * (high ^ 0x9E3779B97F4A7C15ULL);
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
};

// Tables in lines of 64 bytes: an entry is in the line that its hash names or, where that is full,
// in the next. `hash` spreads over `lines` by its upper half.
inline std::uint32_t LineOf(std::uint64_t hash, std::uint32_t lines) {
  return static_cast<std::uint32_t>(((hash >> 32) * lines) >> 32);
}

// Pairs of neighbours that merge, each with its rank.
class PairTable {
 public:
  static constexpr std::size_t kLineEntries = 8;
  static constexpr int kIdBits = 20;
  static constexpr int kRankBits = 24;
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  // An id that is in no pair, and a pair of such.
  static constexpr std::uint32_t kNeverId = (1U << kIdBits) - 1;
  static constexpr std::uint64_t kNoPair =
      (std::uint64_t{kNeverId - 1} << kIdBits) | (kNeverId - 1);
  struct alignas(64) Line {
    std::uint64_t entries[kLineEntries];
  };

  PairTable() = default;
  PairTable(std::size_t most_pairs, std::uint64_t seed);

  // False when the pair is there already.
  bool Insert(std::uint32_t left, std::uint32_t right, std::uint32_t rank);
  // kNoId when the two do not merge.
  std::uint32_t Find(std::uint32_t left, std::uint32_t right) const {
    return Find(Pair(left, right));
  }
  std::uint32_t Find(std::uint64_t pair) const {
    for (std::uint32_t line = LineOf(Hash(pair), line_count_);; line = Next(line)) {
      const Line& entries = lines_[line];
      for (const std::uint64_t entry : entries.entries) {
        if (entry >> kRankBits == pair) return static_cast<std::uint32_t>(entry & 0xFFFFFF);
      }
      if (entries.entries[kLineEntries - 1] == kEmpty) return kNoId;
    }
  }

  // For the vectorised search.
  static std::uint64_t Pair(std::uint32_t left, std::uint32_t right) {
    return (static_cast<std::uint64_t>(left) << kIdBits) | right;
  }
  std::uint64_t Hash(std::uint64_t pair) const {
    const std::uint64_t mixed = (pair ^ seed_) * 0x9E3779B97F4A7C15ULL;
    return mixed ^ (mixed << 25);
  }
  const Line* Lines() const { return lines_.data(); }
  std::uint32_t LineCount() const { return line_count_; }
  std::uint32_t Next(std::uint32_t line) const { return line + 1 == line_count_ ? 0 : line + 1; }

 private:
  std::uint64_t seed_ = 0;
  std::uint32_t line_count_ = 0;
  LargeArray<Line> lines_;
};

// Merges words. Immutable and thread-safe after Make, but for a memo of its own.
class Bpe {
 public:
  // `name` is the file, for messages.
  static Result<std::unique_ptr<const Bpe>> Make(const Vocabulary& vocabulary,
                                                 const std::string& name, Isa isa);

  std::uint32_t TokenCount() const { return static_cast<std::uint32_t>(token_ends_.size()) - 1; }
  // Empty for an id without a token. kReadableAfterToken bytes after it may be read.
  std::string_view TokenBytes(std::uint32_t id) const {
    return {token_bytes_.data() + token_ends_[id], token_ends_[id + 1] - token_ends_[id]};
  }
  static constexpr std::size_t kReadableAfterToken = 64;

  // Every file has its own, so that no file can choose colliding words.
  std::uint64_t seed() const { return seed_; }
  std::uint64_t HashOf(const char* word, std::size_t bytes) const {
    if (bytes <= WordKey::kMaxBytes) return WordKey::Of(word, bytes).Hash(seed_);
    return XXH3_64bits_withSeed(word, bytes, seed_);
  }
  // The id of a token by its bytes; kNoId without one. `hash` is HashOf.
  std::uint32_t FindToken(const char* word, std::size_t bytes, std::uint64_t hash) const;
  // False when no token has so many bytes.
  bool MayBeWhole(std::size_t bytes) const { return bytes <= longest_token_; }
  void PrefetchToken(std::uint64_t hash) const {
    __builtin_prefetch(&token_lines_[LineOf(hash, token_line_count_)]);
  }
  // The id of a word that needs no merging; kNoId for any other.
  std::uint32_t FindWhole(const char* word, std::size_t bytes, std::uint64_t hash) const {
    const std::uint32_t id = FindToken(word, bytes, hash);
    if (id == kNoId || whole_words_first_ || IsReachable(id)) return id;
    return kNoId;
  }

  // Appends the ids that merging gives; bytes > 0. Never looks at whole words. Time is linear in
  // practice and O(n log n) at most, memory is that of the ids.
  void MergeWord(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const;
  // Words of 1 to kShortWordBytes bytes; `ids` has room for as many ids, `count` becomes their
  // number. Quadratic, but with vectors; several at once are faster than one by one, most of all if
  // of about one length.
  static constexpr std::size_t kShortWordBytes = 64;
  // In a call either all words have `bytes`, or none: then `ids` holds `size` parts to begin with.
  struct ShortWord {
    const char* bytes;
    std::uint32_t size;
    std::uint32_t count;
    std::uint32_t* ids;
  };
  void MergeShortWords(ShortWord* words, std::size_t count) const {
    merge_short_(*this, words, count);
  }
  // For words of up to 4 GB, of the same result; O(n log n) with a heap.
  void MergeByHeap(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const;

  // For the implementations of MergeShortWords.
  using MergeShortFunction = void (*)(const Bpe& bpe, ShortWord* words, std::size_t count);
  const PairTable& Pairs() const { return pairs_; }
  const std::uint32_t* ByteIds() const { return byte_ids_; }
  const std::uint32_t* BytePairRanks() const { return byte_pair_ranks_.data(); }
  // By rank; null when a rank is the id.
  const std::uint32_t* MergedIds() const {
    return merged_ids_.empty() ? nullptr : merged_ids_.data();
  }

 private:
  struct alignas(64) TokenLine {
    std::uint32_t entries[16];  // tag of 12 bits, id of 20
  };

  Bpe() = default;
  Status BuildPairs(const std::vector<Merge>& merges, const std::string& name);
  void BuildPairsById();
  void NoteBytePair(std::uint32_t left, std::uint32_t right, std::uint32_t rank);
  void BuildTokens();
  std::uint32_t NextLine(std::uint32_t line) const {
    return line + 1 == token_line_count_ ? 0 : line + 1;
  }
  bool IsReachable(std::uint32_t id) const;
  bool IsValidPair(std::uint32_t left, std::uint32_t right) const;
  void MergeByWindows(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const;

  bool whole_words_first_ = false;
  std::uint64_t seed_ = 0;
  std::vector<char> token_bytes_;
  std::vector<std::uint32_t>
      token_ends_;  // from the second on; a token begins where the one before ends
  MergeShortFunction merge_short_ = nullptr;
  std::uint32_t byte_ids_[256] = {};
  std::vector<std::uint32_t> byte_pair_ranks_;  // [left byte * 256 + right byte], kNoId without
  std::vector<std::uint32_t> merged_ids_;
  PairTable pairs_;
  std::size_t longest_token_ = 0;
  std::uint32_t token_line_count_ = 0;
  LargeArray<TokenLine> token_lines_;
  // Whether merging a token's bytes gives the token: 0 not known yet, 1 yes, 2 no.
  std::unique_ptr<std::atomic<std::uint8_t>[]> reachable_;
};

// merge_short.cc
Bpe::MergeShortFunction MergeShortFor(Isa isa);

}  // namespace widestream::internal
