// The words that the cache does not have: their ids by other ways, many words at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/transform/bpe.h"
#include "engine/transform/long_merge.h"
#include "engine/transform/word_cache.h"

namespace widestream::internal {

class Encoder;

// Clear, Add words, Resolve, use the slots that Add gave and Ids, then Keep, which changes the
// cache. Not thread-safe. The bytes of the words must outlive that; memory is bounded.
class MissedWords {
 public:
  // The count of a slot whose ids are not in it but given by Ids.
  static constexpr std::uint8_t kElsewhere = 255;
  static constexpr std::size_t kMostWords = 256;

  void Clear();
  // The same slot for the same word. At most kMostWords calls.
  const WordCache::Slot* Add(const char* word, std::uint32_t bytes, const WordKey& key,
                             std::uint64_t hash);
  // `narrow`: a slot holds ids of 16 bits.
  void Resolve(const Bpe& bpe, const Encoder& encoder, WordCache* cache, bool narrow);
  // Of a word whose slot says kElsewhere; `ids` is null when the word is too long for this.
  struct Found {
    const char* word;
    std::uint32_t bytes;
    std::uint32_t count;
    const std::uint32_t* ids;
  };
  Found Ids(const WordCache::Slot* slot) const {
    const Word& word = words_[slot - slots_];
    return {word.bytes, word.size, word.count, word.ids};
  }
  void Keep(WordCache* cache) const;

 private:
  struct Word {
    const char* bytes;
    const std::uint32_t* ids;
    std::uint64_t hash;
    std::uint32_t size;
    std::uint32_t count;
    std::uint16_t index;
    bool merged;  // and in no table yet
  };
  // A word to merge from `parts` parts, which are in `ids`.
  struct Job {
    std::uint32_t word;
    std::uint32_t parts;
    std::uint32_t* ids;
  };
  static constexpr std::size_t kIndexBits = 9;

  bool FindKnown(const Bpe& bpe, WordCache* cache, std::size_t most_ids, Word* word);
  bool AddJob(const Encoder& encoder, std::uint32_t index);
  void MergeJobs(const Bpe& bpe);
  void MergeLong(const Bpe& bpe);
  std::uint32_t* NewIds(std::size_t most) {
    std::uint32_t* const ids = ids_ + ids_used_;
    ids_used_ += most;
    return ids;
  }

  std::size_t count_ = 0;
  std::size_t ids_used_ = 0;
  std::size_t job_count_ = 0;
  std::size_t long_count_ = 0;
  // 1 + the word that has such a hash.
  std::array<std::uint16_t, std::size_t{1} << kIndexBits> index_ = {};
  Word words_[kMostWords];
  Job jobs_[kMostWords];
  std::uint32_t long_words_[kMostWords];
  WordCache::Slot slots_[kMostWords];
  std::uint32_t ids_[kMostWords * Bpe::kShortWordBytes];
  LongMerge long_merge_;
  std::vector<std::uint32_t> long_ids_;
};

}  // namespace widestream::internal
