#include "engine/transform/encoder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <type_traits>

#if defined(__x86_64__)
#if defined(__GNUC__) && !defined(__clang__)
// A false alarm in the compiler's own header, GCC bug 105593.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#endif

namespace widestream::internal {

// What the hot loop works with.
struct Encoder::Context {
  const Bpe* bpe;
  WordCache* cache;
  ScanWordsFunction scan;
};

namespace {

constexpr std::size_t kBatchWords = 1024;
constexpr std::size_t kGroupWords = 32;
// Copying a slot's ids writes up to this many.
constexpr std::size_t kSlotIds = 8;

// Room for the ids of one word, and of a group whose words are of kMaxLongBytes.
constexpr std::size_t kScratchIds = 64;
constexpr std::size_t kGroupIds = kGroupWords * 48 + kScratchIds;

template <bool kNarrow>
constexpr std::size_t kMostSlotIds = kNarrow ? 7 : 5;

template <bool kNarrow>
void PackIds(const std::uint32_t* ids, std::size_t count, WordCache::Slot* slot) {
  constexpr std::size_t kBytes = kNarrow ? 2 : 3;
  std::memset(slot->ids, 0, sizeof(slot->ids));
  for (std::size_t i = 0; i < count; ++i) std::memcpy(slot->ids + i * kBytes, &ids[i], kBytes);
  slot->count = static_cast<std::uint8_t>(count);
}

// Writes kMostSlotIds<kNarrow> ids, of which the slot's count are valid; room for kSlotIds.
template <bool kNarrow, typename Id>
inline void CopySlotIds(const WordCache::Slot& slot, Id* out) {
  if constexpr (kNarrow) {
    std::uint16_t ids[8];
    std::memcpy(ids, slot.ids, 16);
    for (int i = 0; i < 8; ++i) out[i] = ids[i];
  } else {
    for (int i = 0; i < 4; ++i) {
      std::uint32_t id = 0;
      std::memcpy(&id, slot.ids + 3 * i, 4);
      out[i] = id & 0xFFFFFF;
    }
    std::uint32_t last = 0;
    std::memcpy(&last, slot.ids + 11, 4);
    out[4] = last >> 8;
  }
}

// The ids of a word of up to kMaxLongBytes by merging, through the table of long words. Writes them
// to `scratch` and returns how many.
std::size_t MergeCached(const Encoder::Context& context, const char* word, std::size_t bytes,
                        std::uint64_t hash, std::uint32_t* scratch) {
  WordCache::LongSlot* const slot = context.cache->LongSlotOf(hash);
  if (slot->bytes == bytes && std::memcmp(slot->word, word, bytes) == 0) {
    std::memcpy(scratch, slot->ids, sizeof(slot->ids));
    return slot->count;
  }
  std::size_t count = 1;
  if (bytes > WordKey::kMaxBytes) {
    scratch[0] = context.bpe->FindWhole(word, bytes, hash);
  } else {
    scratch[0] = kNoId;  // the caller has looked
  }
  if (scratch[0] == kNoId) count = context.bpe->MergeShortWord(word, bytes, scratch);
  if (count <= WordCache::kMaxLongIds) {
    slot->bytes = static_cast<std::uint8_t>(bytes);
    slot->count = static_cast<std::uint8_t>(count);
    std::memcpy(slot->word, word, bytes);
    std::memcpy(slot->ids, scratch, count * sizeof(scratch[0]));
  }
  return count;
}

// The ids of a word that is not in the table of short words; puts it there if they fit.
template <bool kNarrow>
__attribute__((noinline)) std::size_t ResolveShort(const Encoder::Context& context,
                                                   const char* word, std::size_t bytes,
                                                   const WordKey& key, std::uint64_t hash,
                                                   std::uint32_t* scratch) {
  std::size_t count = 1;
  scratch[0] = context.bpe->FindWhole(word, bytes, hash);
  if (scratch[0] == kNoId) {
    count = bytes <= kMostSlotIds<kNarrow> ? context.bpe->MergeShortWord(word, bytes, scratch)
                                           : MergeCached(context, word, bytes, hash, scratch);
  }
  if (count <= kMostSlotIds<kNarrow>) {
    WordCache::Bucket& bucket = context.cache->Buckets()[WordCache::BucketOf(hash)];
    bucket.ways[1] = bucket.ways[0];
    bucket.ways[0].key = key;
    PackIds<kNarrow>(scratch, count, &bucket.ways[0]);
  }
  return count;
}

// The same for a word of more than 15 bytes and up to kMaxLongBytes.
__attribute__((noinline)) std::size_t ResolveLong(const Encoder::Context& context, const char* word,
                                                  std::size_t bytes, std::uint32_t* scratch) {
  return MergeCached(context, word, bytes, context.bpe->HashOf(word, bytes), scratch);
}

// Appends the ids of any word to the sink.
template <typename Id>
void ResolveAny(const Encoder::Context& context, const char* word, std::size_t bytes,
                IdSink<Id>* sink) {
  std::vector<std::uint32_t> ids;
  const std::uint32_t whole = context.bpe->FindWhole(word, bytes, context.bpe->HashOf(word, bytes));
  if (whole != kNoId) {
    ids.push_back(whole);
  } else {
    context.bpe->MergeWord(word, bytes, &ids);
  }
  sink->count += ids.size();
  if (sink->buffer == nullptr) return;
  sink->buffer->Reserve(ids.size());
  Id* const out = sink->buffer->data() + sink->buffer->size();
  for (std::size_t i = 0; i < ids.size(); ++i) out[i] = static_cast<Id>(ids[i]);
  sink->buffer->SetSize(sink->buffer->size() + ids.size());
}

// The ids up to `out` are there.
template <typename Id>
inline void Commit(const Id* out, IdSink<Id>* sink) {
  const auto size = static_cast<std::size_t>(out - sink->buffer->data());
  sink->count += size - sink->buffer->size();
  sink->buffer->SetSize(size);
}

namespace portable {
#define WS_TARGET
inline WordKey LoadKey(const char* word, std::size_t bytes) {
  WordKey key;
  std::memcpy(&key.low, word, 8);
  std::memcpy(&key.high, word + 8, 8);
  if (bytes < 8) {
    key.low &= (std::uint64_t{1} << (8 * bytes)) - 1;
    key.high = 0;
  } else {
    key.high &= (std::uint64_t{1} << (8 * (bytes - 8))) - 1;
  }
  key.high |= static_cast<std::uint64_t>(bytes) << 56;
  return key;
}
#include "engine/transform/encoder_body.h"
#undef WS_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#define WS_TARGET __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
WS_TARGET inline WordKey LoadKey(const char* word, std::size_t bytes) {
  WordKey key;
  std::memcpy(&key.low, word, 8);
  std::memcpy(&key.high, word + 8, 8);
  const unsigned bits = static_cast<unsigned>(bytes) * 8;
  key.low = _bzhi_u64(key.low, bits);
  key.high = _bzhi_u64(key.high, bits > 64 ? bits - 64 : 0);
  key.high |= static_cast<std::uint64_t>(bytes) << 56;
  return key;
}
#include "engine/transform/encoder_body.h"
#undef WS_TARGET
}  // namespace avx2
#endif

}  // namespace

Encoder::Encoder(const Bpe* bpe, Pattern pattern, Isa isa, bool narrow_ids)
    : bpe_(bpe),
      pattern_(pattern),
      isa_(isa),
      narrow_ids_(narrow_ids),
      scan_(ScanWordsFor(pattern, isa)) {}

Encoder::~Encoder() {
  for (std::atomic<WordCache*>& cache : idle_) delete cache.load();
}

WordCache* Encoder::Take() const {
  // Each thread looks first where it gave its cache back.
  const std::size_t begin = std::hash<std::thread::id>()(std::this_thread::get_id());
  for (std::size_t i = 0; i < idle_.size(); ++i) {
    std::atomic<WordCache*>& place = idle_[(begin + i) % idle_.size()];
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (WordCache* const cache = place.exchange(nullptr, std::memory_order_acquire)) return cache;
  }
  return new WordCache;
}

void Encoder::GiveBack(WordCache* cache) const {
  const std::size_t begin = std::hash<std::thread::id>()(std::this_thread::get_id());
  for (std::size_t i = 0; i < idle_.size(); ++i) {
    WordCache* expected = nullptr;
    if (idle_[(begin + i) % idle_.size()].compare_exchange_strong(expected, cache,
                                                                  std::memory_order_release)) {
      return;
    }
  }
  delete cache;
}

template <typename Id>
void Encoder::Encode(std::string_view text, WordCache* cache, IdSink<Id>* sink) const {
  const Context context{bpe_, cache, scan_};
  // The scanner counts in 32 bits.
  if (text.size() > 0xFFFFFFFF) return EncodeHuge(text, cache, sink);
#if defined(__x86_64__)
  if (isa_ != Isa::kPortable) {
    if constexpr (sizeof(Id) == 2) {
      return avx2::EncodeText<true>(context, text, sink);
    } else {
      return narrow_ids_ ? avx2::EncodeText<true>(context, text, sink)
                         : avx2::EncodeText<false>(context, text, sink);
    }
  }
#endif
  if constexpr (sizeof(Id) == 2) {
    return portable::EncodeText<true>(context, text, sink);
  } else {
    return narrow_ids_ ? portable::EncodeText<true>(context, text, sink)
                       : portable::EncodeText<false>(context, text, sink);
  }
}

template <typename Id>
void Encoder::EncodeHuge(std::string_view text, WordCache* cache, IdSink<Id>* sink) const {
  const Context context{bpe_, cache, scan_};
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end && sink->count < sink->most) {
    const char* const stop = WordEnd(pattern_, p, end);
    ResolveAny(context, p, static_cast<std::size_t>(stop - p), sink);
    p = stop;
  }
}

template void Encoder::Encode(std::string_view, WordCache*, IdSink<std::uint16_t>*) const;
template void Encoder::Encode(std::string_view, WordCache*, IdSink<std::uint32_t>*) const;

}  // namespace widestream::internal
