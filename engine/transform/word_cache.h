// The ids of words met lately, so that most words cost one look-up and no merging.
#pragma once

#include <cstdint>

#include "engine/transform/bpe.h"
#include "engine/transform/id_buffer.h"
#include "engine/transform/large_array.h"

namespace widestream::internal {

// Of one tokenizer and, at any time, one thread. Two tables of fixed size whose slots are replaced,
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

  // Any word of up to kMaxLongBytes with up to kMaxLongIds ids.
  static constexpr std::size_t kMaxLongBytes = 46;
  static constexpr std::size_t kMaxLongIds = 20;
  struct alignas(128) LongSlot {
    std::uint8_t bytes;  // 0: empty
    std::uint8_t count;
    char word[kMaxLongBytes];
    std::uint32_t ids[kMaxLongIds];
  };
  static_assert(sizeof(LongSlot) == 128);
  static constexpr int kLongSlotBits = 13;

  WordCache()
      : buckets_(std::size_t{1} << kBucketBits), long_slots_(std::size_t{1} << kLongSlotBits) {}

  // Scratch of the call that has the cache.
  IdBuffer<std::uint32_t> ids;

  Bucket* Buckets() { return buckets_.data(); }
  static std::uint32_t BucketOf(std::uint64_t hash) {
    return static_cast<std::uint32_t>(hash >> (64 - kBucketBits));
  }
  LongSlot* LongSlotOf(std::uint64_t hash) { return &long_slots_[hash >> (64 - kLongSlotBits)]; }

 private:
  LargeArray<Bucket> buckets_;
  LargeArray<LongSlot> long_slots_;
};

}  // namespace widestream::internal
