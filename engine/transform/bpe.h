// The tables of a byte-level BPE vocabulary and the merging of one word.
#pragma once

#include <xxhash.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
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

  // `readable` bytes from `word` on may be read; 16 make it fast.
  static WordKey Of(const char* word, std::size_t bytes, std::size_t readable) {
    WordKey key;
    if (readable >= 16) {
      std::memcpy(&key.low, word, 8);
      std::memcpy(&key.high, word + 8, 8);
      if (bytes < 8) {
        key.low &= (std::uint64_t{1} << (8 * bytes)) - 1;
        key.high = 0;
      } else {
        key.high &= (std::uint64_t{1} << (8 * (bytes - 8))) - 1;
      }
    } else {
      char padded[16] = {};
      std::memcpy(padded, word, bytes);
      std::memcpy(&key.low, padded, 8);
      std::memcpy(&key.high, padded + 8, 8);
    }
    key.high |= static_cast<std::uint64_t>(bytes) << 56;
    return key;
  }
  // `seed` comes from the file's own hash, so that no file can choose colliding words.
  std::uint64_t Hash(std::uint64_t seed) const {
    return Mix(low ^ seed, high ^ 0x9E3779B97F4A7C15ULL);
  }

 private:
  static std::uint64_t Mix(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
};

// Bytes -> id for whole tokens. Keeps views of the strings it is built from.
class WordTable {
 public:
  WordTable() = default;
  // Takes the tokens whose `included` flag is set; `tokens` must outlive the table.
  WordTable(const std::vector<std::string>& tokens, const std::vector<bool>& included,
            std::uint64_t seed);

  // kNoId when the word is no token. `readable`: see WordKey.
  std::uint32_t Find(const char* word, std::size_t bytes, std::size_t readable) const {
    if (bytes > WordKey::kMaxBytes) return FindLong(word, bytes);
    const WordKey key = WordKey::Of(word, bytes, readable);
    return FindShort(key, Hash(key));
  }
  std::uint64_t Hash(const WordKey& key) const { return key.Hash(seed_); }
  // `hash` is Hash(key).
  std::uint32_t FindShort(const WordKey& key, std::uint64_t hash) const {
    for (std::uint64_t slot = hash;; ++slot) {
      const ShortSlot& entry = short_slots_[slot & short_mask_];
      if (entry.key == key) return entry.id;
      if (entry.id == kNoId) return kNoId;
    }
  }
  // For words of more than WordKey::kMaxBytes.
  std::uint32_t FindLong(const char* word, std::size_t bytes) const;

 private:
  struct ShortSlot {
    WordKey key;
    std::uint32_t id = kNoId;
  };
  struct LongSlot {
    std::uint64_t hash = 0;
    std::uint32_t id = kNoId;
  };

  const std::vector<std::string>* tokens_ = nullptr;
  std::uint64_t seed_ = 0;
  std::size_t longest_ = 0;
  std::uint64_t short_mask_ = 0;
  std::uint64_t long_mask_ = 0;
  std::vector<ShortSlot> short_slots_;
  std::vector<LongSlot> long_slots_;
};

// (left id, right id) -> rank of their merge.
class PairTable {
 public:
  PairTable() = default;
  // False when two merges have the same pair; `duplicate` is then the rank of the second.
  bool Build(const std::vector<Merge>& merges, const std::vector<std::uint32_t>& ranks,
             std::uint64_t seed, std::size_t* duplicate);

  // kNoId when the two do not merge.
  std::uint32_t Find(std::uint32_t left, std::uint32_t right) const {
    for (std::uint64_t slot = Hash(left, right);; ++slot) {
      const Slot& entry = slots_[slot & mask_];
      if (entry.left == left && entry.right == right) return entry.rank;
      if (entry.rank == kNoId) return kNoId;
    }
  }

 private:
  struct Slot {
    std::uint32_t left = kNoId;
    std::uint32_t right = kNoId;
    std::uint32_t rank = kNoId;
  };
  std::uint64_t Hash(std::uint32_t left, std::uint32_t right) const {
    const std::uint64_t pair = (static_cast<std::uint64_t>(left) << 32) | right;
    const std::uint64_t mixed = (pair ^ seed_) * 0x9E3779B97F4A7C15ULL;
    return (mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93ULL >> 20;
  }

  std::uint64_t seed_ = 0;
  std::uint64_t mask_ = 0;
  std::vector<Slot> slots_;
};

// Merges one word. Immutable and thread-safe after Make.
class Bpe {
 public:
  // `name` is the file, for messages. Takes the vocabulary over.
  static Result<std::unique_ptr<const Bpe>> Make(Vocabulary vocabulary, const std::string& name);

  const Vocabulary& Contents() const { return vocabulary_; }
  // The words that need no merging.
  const WordTable& WholeWords() const { return whole_words_; }
  // Appends the ids that merging gives; bytes > 0. Never looks at whole words.
  void MergeWord(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const;
  // The two ways of MergeWord, of equal result. Short: quadratic, for at most kShortWordBytes,
  // which `ids` has room for; returns how many it wrote. Long: O(n log n) with a heap; Index is an
  // unsigned type that can count the bytes.
  static constexpr std::size_t kShortWordBytes = 64;
  std::size_t MergeShortWord(const char* word, std::size_t bytes, std::uint32_t* ids) const;
  template <typename Index>
  void MergeLongWord(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const;

 private:
  Bpe() = default;
  Status BuildPairs(const std::string& name);
  void BuildWholeWords();

  Vocabulary vocabulary_;
  std::uint64_t seed_ = 0;
  std::uint32_t byte_ids_[256] = {};
  std::vector<std::uint32_t> byte_pair_ranks_;  // [left byte * 256 + right byte], kNoId without
  std::vector<std::uint32_t> merged_ids_;       // by rank
  PairTable pairs_;
  WordTable whole_words_;
};

}  // namespace widestream::internal
