// The ids of words met lately, so that most words cost one look-up and no merging.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/transform/bpe.h"
#include "engine/transform/large_array.h"

namespace widestream::internal {

// Of one tokenizer and, at any time, one thread. Tables of fixed size whose slots are replaced,
// never searched, so no choice of words makes look-ups slow. Invariant: a slot holds nothing or
// what the tokenizer gives for its word.
class WordCache {
 public:
  // A word of up to 15 bytes with its ids: 7 of 16 bits, or 5 of 24 bits, little-endian. Empty
  // slots are zero; no word has the key 0.
  struct alignas(32) Slot {
    WordKey key;
    unsigned char ids[15];
    std::uint8_t count;
  };
  static_assert(sizeof(Slot) == 32);
  struct alignas(64) Bucket {
    Slot ways[2];
  };
  static constexpr int kBucketBits = 16;

  // Any word of up to kMaxLongBytes, or of up to kMaxLongestBytes, with up to kMaxLongIds ids.
  static constexpr std::size_t kMaxLongBytes = 46;
  static constexpr std::size_t kMaxLongestBytes = 174;
  static constexpr std::size_t kMaxLongIds = 20;
  static constexpr int kLongSlotBits = 13;
  static constexpr int kLongestSlotBits = 11;

  WordCache()
      : buckets_(std::size_t{1} << kBucketBits),
        long_slots_(std::size_t{1} << kLongSlotBits),
        longest_slots_(std::size_t{1} << kLongestSlotBits) {}

  Bucket* Buckets() { return buckets_.data(); }
  static std::uint32_t BucketOf(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash >> (64 - kBucketBits));
  }

  // `ids` is null when the word is not there; valid until the next KeepLong.
  struct Long {
    const std::uint32_t* ids;
    std::uint32_t count;
  };
  Long FindLong(const char* word, std::size_t bytes, std::uint64_t hash) const {
    if (bytes <= kMaxLongBytes)
      return Found(long_slots_[hash >> (64 - kLongSlotBits)], word, bytes);
    if (bytes > kMaxLongestBytes) return {nullptr, 0};
    return Found(longest_slots_[hash >> (64 - kLongestSlotBits)], word, bytes);
  }
  void PrefetchLong(std::size_t bytes, std::uint64_t hash) const {
    if (bytes <= kMaxLongBytes) {
      __builtin_prefetch(&long_slots_[hash >> (64 - kLongSlotBits)]);
    } else {
      __builtin_prefetch(&longest_slots_[hash >> (64 - kLongestSlotBits)]);
    }
  }
  // Keeps nothing of a word that is too long or has too many ids.
  void KeepLong(const char* word, std::size_t bytes, std::uint64_t hash, Long ids) {
    if (bytes > kMaxLongestBytes || ids.count > kMaxLongIds) return;
    if (bytes <= kMaxLongBytes) {
      Keep(&long_slots_[hash >> (64 - kLongSlotBits)], word, bytes, ids);
    } else {
      Keep(&longest_slots_[hash >> (64 - kLongestSlotBits)], word, bytes, ids);
    }
  }

 private:
  template <std::size_t kBytes>
  struct alignas(128) AnySlot {
    std::uint8_t bytes;  // 0: empty
    std::uint8_t count;
    char word[kBytes];
    std::uint32_t ids[kMaxLongIds];
  };
  using LongSlot = AnySlot<kMaxLongBytes>;
  static_assert(sizeof(LongSlot) == 128);
  using LongestSlot = AnySlot<kMaxLongestBytes>;
  static_assert(sizeof(LongestSlot) == 256);

  template <typename AnySlot>
  static Long Found(const AnySlot& slot, const char* word, std::size_t bytes) {
    if (slot.bytes != bytes || std::memcmp(slot.word, word, bytes) != 0) return {nullptr, 0};
    return {slot.ids, slot.count};
  }
  template <typename AnySlot>
  static void Keep(AnySlot* slot, const char* word, std::size_t bytes, Long ids) {
    slot->bytes = static_cast<std::uint8_t>(bytes);
    slot->count = static_cast<std::uint8_t>(ids.count);
    std::memcpy(slot->word, word, bytes);
    std::memcpy(slot->ids, ids.ids, ids.count * sizeof(ids.ids[0]));
  }

  LargeArray<Bucket> buckets_;
  LargeArray<LongSlot> long_slots_;
  LargeArray<LongestSlot> longest_slots_;
};

}  // namespace widestream::internal
