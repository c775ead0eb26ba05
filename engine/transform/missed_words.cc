#include "engine/transform/missed_words.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "engine/transform/encoder.h"
#include "engine/transform/first_parts.h"

namespace widestream::internal {
void MissedWords::Clear() {
  for (std::size_t i = 0; i < count_; ++i) index_[words_[i].index] = 0;
  count_ = 0;
  ids_used_ = 0;
  job_count_ = 0;
  if (long_count_ != 0) long_merge_.Clear();
  long_count_ = 0;
  long_ids_.clear();
}

const WordCache::Slot* MissedWords::Add(const char* word, std::uint32_t bytes, const WordKey& key,
                                        std::uint64_t hash) {
  const auto index = static_cast<std::uint16_t>(hash >> (64 - kIndexBits));
  std::uint16_t& known = index_[index];
  if (known != 0) {
    const Word& before = words_[known - 1U];
    if (before.size == bytes && slots_[known - 1U].key == key &&
        (bytes <= WordKey::kMaxBytes || std::memcmp(before.bytes, word, bytes) == 0)) {
      return &slots_[known - 1U];
    }
  }
  words_[count_] = {word, nullptr, hash, bytes, 0, index, false};
  WordCache::Slot& slot = slots_[count_];
  slot.key = key;
  known = static_cast<std::uint16_t>(++count_);
  return &slot;
}

// A token as a whole, or a word that the table of long words has.
bool MissedWords::FindKnown(const Bpe& bpe, WordCache* cache, std::size_t most_ids, Word* word) {
  if (bpe.MayBeWhole(word->size)) {
    const std::uint32_t whole = bpe.FindWhole(word->bytes, word->size, word->hash);
    if (whole != kNoId) {
      std::uint32_t* const ids = NewIds(1);
      ids[0] = whole;
      word->ids = ids;
      word->count = 1;
      return true;
    }
  }
  if (word->size <= most_ids) return false;
  const WordCache::Long found = cache->FindLong(word->bytes, word->size, word->hash);
  word->ids = found.ids;
  word->count = found.count;
  return found.ids != nullptr;
}

bool MissedWords::AddJob(const Encoder& encoder, std::uint32_t index) {
  const Word& word = words_[index];
  std::uint32_t* const ids = NewIds(0);
  const std::uint32_t count =
      encoder.Parts().Split(word.bytes, word.size, Bpe::kShortWordBytes, ids);
  if (count == 0) return false;
  jobs_[job_count_++] = {index, count, NewIds(count)};
  return true;
}

void MissedWords::MergeJobs(const Bpe& bpe) {
  // By length, since those of one call take as long as the longest.
  constexpr std::uint32_t kLengths = Bpe::kShortWordBytes + 1;
  std::uint16_t begins[kLengths + 1] = {};
  for (std::size_t i = 0; i < job_count_; ++i) ++begins[jobs_[i].parts + 1];
  for (std::uint32_t k = 0; k < kLengths; ++k) {
    begins[k + 1] = static_cast<std::uint16_t>(begins[k + 1] + begins[k]);
  }
  Bpe::ShortWord sorted[kMostWords];
  std::uint32_t words_of[kMostWords];
  std::uint16_t next[kLengths];
  std::copy_n(begins, kLengths, next);
  for (std::size_t i = 0; i < job_count_; ++i) {
    const Job& job = jobs_[i];
    const std::uint16_t at = next[job.parts]++;
    sorted[at] = {nullptr, job.parts, 0, job.ids};
    words_of[at] = job.word;
  }
  // Lengths that are merged with vectors of one width.
  constexpr std::uint32_t kWidths[] = {0, 17, 33, kLengths};
  for (std::size_t w = 0; w + 1 < std::size(kWidths); ++w) {
    const std::uint16_t begin = begins[kWidths[w]];
    const std::uint16_t end = begins[kWidths[w + 1]];
    bpe.MergeShortWords(sorted + begin, std::size_t{end} - begin);
  }
  for (std::size_t i = 0; i < job_count_; ++i) {
    Word& word = words_[words_of[i]];
    word.ids = sorted[i].ids;
    word.count = sorted[i].count;
    word.merged = true;
  }
}

void MissedWords::MergeLong(const Bpe& bpe) {
  if (long_count_ == 0) return;
  long_merge_.Run(bpe);
  for (std::size_t i = 0; i < long_count_; ++i) {
    Word& word = words_[long_words_[i]];
    const std::span<const std::uint32_t> ids = long_merge_.Ids(i);
    if (!ids.empty()) {
      word.ids = ids.data();
      word.count = static_cast<std::uint32_t>(ids.size());
      word.merged = true;
      continue;
    }
    if (word.size > WordCache::kMaxLongestBytes) continue;
    // Merged here and not where it is used, so that it is kept.
    long_ids_.reserve(kMostWords * WordCache::kMaxLongestBytes);
    const std::size_t begin = long_ids_.size();
    bpe.MergeWord(word.bytes, word.size, &long_ids_);
    word.ids = long_ids_.data() + begin;
    word.count = static_cast<std::uint32_t>(long_ids_.size() - begin);
    word.merged = true;
  }
}

void MissedWords::Resolve(const Bpe& bpe, const Encoder& encoder, WordCache* cache, bool narrow) {
  // A slot holds as many ids.
  const std::uint32_t most_ids = narrow ? 7 : 5;
  const std::size_t id_bytes = narrow ? 2 : 3;
  for (std::size_t i = 0; i < count_; ++i) {
    Word& word = words_[i];
    if (word.size > LongMerge::kMostBytes) continue;
    if (word.size > WordKey::kMaxBytes) word.hash = bpe.HashOf(word.bytes, word.size);
    if (word.size > most_ids) cache->PrefetchLong(word.size, word.hash);
    bpe.PrefetchToken(word.hash);
  }
  for (std::uint32_t i = 0; i < count_; ++i) {
    Word& word = words_[i];
    if (word.size > LongMerge::kMostBytes || FindKnown(bpe, cache, most_ids, &word)) continue;
    if (AddJob(encoder, i)) continue;
    if (long_merge_.Add(word.bytes, word.size)) long_words_[long_count_++] = i;
  }
  if (job_count_ != 0) MergeJobs(bpe);
  MergeLong(bpe);
  for (std::size_t i = 0; i < count_; ++i) {
    const Word& word = words_[i];
    WordCache::Slot& slot = slots_[i];
    slot.count = kElsewhere;
    if (word.count == 0 || word.count > most_ids || word.size > WordKey::kMaxBytes) continue;
    slot.count = static_cast<std::uint8_t>(word.count);
    std::memset(slot.ids, 0, sizeof(slot.ids));
    for (std::uint32_t k = 0; k < word.count; ++k) {
      std::memcpy(slot.ids + k * id_bytes, &word.ids[k], id_bytes);
    }
  }
}

void MissedWords::Keep(WordCache* cache) const {
  for (std::size_t i = 0; i < count_; ++i) {
    const Word& word = words_[i];
    if (slots_[i].count != kElsewhere) {
      WordCache::Bucket& bucket = cache->Buckets()[WordCache::BucketOf(word.hash)];
      bucket.ways[1] = bucket.ways[0];
      bucket.ways[0] = slots_[i];
    } else if (word.merged && word.count != 0) {
      cache->KeepLong(word.bytes, word.size, word.hash, {word.ids, word.count});
    }
  }
}

}  // namespace widestream::internal
