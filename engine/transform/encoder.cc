#include "engine/transform/encoder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <type_traits>

#include "engine/transform/long_merge.h"

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
  const Encoder* encoder;
};

namespace {

constexpr std::size_t kBatchWords = 1024;
constexpr std::size_t kGroupWords = 128;
// Copying a slot's ids writes as many.
constexpr std::size_t kSlotIds = 8;
constexpr std::size_t kGroupIds = kGroupWords * kSlotIds;

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

bool IsAscii(const char* word, std::size_t bytes) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080;
  std::uint64_t all = 0;
  std::size_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, word + i, 8);
    all |= eight;
  }
  for (; i < bytes; ++i) all |= std::uint64_t{static_cast<unsigned char>(word[i])};
  return (all & kHighBits) == 0;
}

// The words of a group that the cache does not have. Add them all, Resolve, use the slots that Add
// gave, then Keep, which changes the cache.
class Missed {
 public:
  // The count of a slot whose ids are not in it but given by Append.
  static constexpr std::uint8_t kElsewhere = 255;

  void Clear() {
    count_ = 0;
    ids_used_ = 0;
  }

  const WordCache::Slot* Add(const char* word, std::uint32_t bytes, const WordKey& key,
                             std::uint64_t hash) {
    Word& added = words_[count_];
    added.bytes = word;
    added.size = bytes;
    added.hash = hash;
    WordCache::Slot& slot = slots_[count_];
    slot.key = key;
    ++count_;
    return &slot;
  }

  template <bool kNarrow>
  void Resolve(const Encoder::Context& context);

  template <typename Id>
  void Append(const Encoder::Context& context, const WordCache::Slot& slot, IdSink<Id>* sink) {
    const Word& word = words_[&slot - slots_];
    if (word.count == 0) return ResolveAny(context, word.bytes, word.size, sink);
    sink->count += word.count;
    if (sink->buffer == nullptr) return;
    sink->buffer->Reserve(word.count);
    Id* const out = sink->buffer->data() + sink->buffer->size();
    for (std::uint32_t i = 0; i < word.count; ++i) out[i] = static_cast<Id>(word.ids[i]);
    sink->buffer->SetSize(sink->buffer->size() + word.count);
  }

  void Keep(WordCache* cache) {
    for (std::size_t i = 0; i < count_; ++i) {
      const Word& word = words_[i];
      if (slots_[i].count != kElsewhere) {
        WordCache::Bucket& bucket = cache->Buckets()[WordCache::BucketOf(word.hash)];
        bucket.ways[1] = bucket.ways[0];
        bucket.ways[0] = slots_[i];
      }
      if (!word.merged || word.count > WordCache::kMaxLongIds) continue;
      WordCache::LongSlot* const slot = cache->LongSlotOf(word.hash);
      slot->bytes = static_cast<std::uint8_t>(word.size);
      slot->count = static_cast<std::uint8_t>(word.count);
      std::memcpy(slot->word, word.bytes, word.size);
      std::memcpy(slot->ids, word.ids, word.count * sizeof(word.ids[0]));
    }
  }

 private:
  struct Word {
    const char* bytes;
    std::uint32_t size;
    std::uint32_t count;  // 0: longer than the cache takes
    std::uint64_t hash;
    bool merged;  // and not in a slot of its own
    const std::uint32_t* ids;
  };
  std::uint32_t* NewIds(std::size_t most) {
    std::uint32_t* const ids = ids_ + ids_used_;
    ids_used_ += most;
    return ids;
  }

  std::size_t count_ = 0;
  std::size_t ids_used_ = 0;
  Word words_[kGroupWords];
  WordCache::Slot slots_[kGroupWords];
  std::uint32_t ids_[kGroupWords * Bpe::kShortWordBytes];
  LongMerge long_merge_;
};

template <bool kNarrow>
__attribute__((noinline)) void Missed::Resolve(const Encoder::Context& context) {
  // A slot holds as many ids.
  constexpr std::uint32_t kMostIds = kNarrow ? 7 : 5;
  constexpr std::size_t kIdBytes = kNarrow ? 2 : 3;
  const Bpe& bpe = *context.bpe;
  for (std::size_t i = 0; i < count_; ++i) {
    Word& word = words_[i];
    word.count = 0;
    word.merged = false;
    if (word.size > WordCache::kMaxLongBytes) continue;
    if (word.size > WordKey::kMaxBytes) {
      word.hash = bpe.HashOf(word.bytes, word.size);
      __builtin_prefetch(context.cache->LongSlotOf(word.hash));
    }
    bpe.PrefetchToken(word.hash);
  }
  // Words to merge, by length, since those of one call take as long as the longest.
  // Those outside ASCII are given as parts and are kinds of their own.
  constexpr int kLengths = 3;
  Bpe::ShortWord jobs[2 * kLengths][kGroupWords];
  std::uint32_t words_of[2 * kLengths][kGroupWords];
  std::size_t job_counts[2 * kLengths] = {};
  const auto add_job = [&](std::uint32_t i, const char* bytes, std::uint32_t size,
                           std::uint32_t* ids) {
    const int length = size <= 16 ? 0 : size <= 32 ? 1 : 2;
    const int kind = length + (bytes == nullptr ? kLengths : 0);
    words_[i].ids = ids;
    words_of[kind][job_counts[kind]] = i;
    jobs[kind][job_counts[kind]++] = {bytes, size, 0, ids};
  };
  const auto add_parts = [&](std::uint32_t i) {
    const Word& word = words_[i];
    constexpr std::uint32_t kMostParts = Bpe::kShortWordBytes;
    std::uint32_t parts[kMostParts];
    const std::uint32_t count =
        context.encoder->Parts().Split(word.bytes, word.size, kMostParts, parts);
    if (count == 0) return false;
    std::uint32_t* const ids = NewIds(count);
    std::copy_n(parts, count, ids);
    add_job(i, nullptr, count, ids);
    return true;
  };
  std::uint32_t long_words[kGroupWords];
  std::size_t long_count = 0;
  long_merge_.Clear();
  for (std::uint32_t i = 0; i < count_; ++i) {
    Word& word = words_[i];
    if (word.size > WordCache::kMaxLongBytes) {
      if (word.size > LongMerge::kMostBytes) continue;
      if (bpe.MayBeWhole(word.size) &&
          bpe.FindWhole(word.bytes, word.size, bpe.HashOf(word.bytes, word.size)) != kNoId) {
        continue;
      }
      if (!IsAscii(word.bytes, word.size) && add_parts(i)) continue;
      if (long_merge_.Add(word.bytes, word.size)) long_words[long_count++] = i;
      continue;
    }
    const std::uint32_t whole = bpe.FindWhole(word.bytes, word.size, word.hash);
    if (whole != kNoId) {
      std::uint32_t* const ids = NewIds(1);
      ids[0] = whole;
      word.ids = ids;
      word.count = 1;
      continue;
    }
    if (word.size > kMostIds) {
      const WordCache::LongSlot& slot = *context.cache->LongSlotOf(word.hash);
      if (slot.bytes == word.size && std::memcmp(slot.word, word.bytes, word.size) == 0) {
        word.ids = slot.ids;
        word.count = slot.count;
        continue;
      }
    }
    if (!IsAscii(word.bytes, word.size)) {
      add_parts(i);
      continue;
    }
    add_job(i, word.bytes, word.size, NewIds(word.size));
  }
  for (int kind = 0; kind < 2 * kLengths; ++kind) {
    bpe.MergeShortWords(jobs[kind], job_counts[kind]);
    for (std::size_t i = 0; i < job_counts[kind]; ++i) {
      Word& word = words_[words_of[kind][i]];
      word.count = jobs[kind][i].count;
      word.merged = word.size <= WordCache::kMaxLongBytes &&
                    (word.size > WordKey::kMaxBytes || word.count > kMostIds);
    }
  }
  long_merge_.Run(bpe);
  for (std::size_t i = 0; i < long_count; ++i) {
    const std::span<const std::uint32_t> ids = long_merge_.Ids(i);
    words_[long_words[i]].ids = ids.data();
    words_[long_words[i]].count = static_cast<std::uint32_t>(ids.size());
  }
  for (std::size_t i = 0; i < count_; ++i) {
    const Word& word = words_[i];
    WordCache::Slot& slot = slots_[i];
    slot.count = kElsewhere;
    if (word.count == 0 || word.count > kMostIds || word.size > WordKey::kMaxBytes) continue;
    slot.count = static_cast<std::uint8_t>(word.count);
    std::memset(slot.ids, 0, sizeof(slot.ids));
    for (std::uint32_t k = 0; k < word.count; ++k) {
      std::memcpy(slot.ids + k * kIdBytes, &word.ids[k], kIdBytes);
    }
  }
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
inline bool IsSlotOf(const WordCache::Slot& slot, const WordKey& key) {
  return ((slot.key.low ^ key.low) | (slot.key.high ^ key.high)) == 0;
}
template <bool kNarrow, typename Id>
inline void CopyIds(const WordCache::Slot& slot, Id* out) {
  if constexpr (kNarrow) {
    std::uint16_t ids[8];
    std::memcpy(ids, slot.ids, 16);
    for (int i = 0; i < 8; ++i) out[i] = ids[i];
  } else {
    for (std::size_t i = 0; i < 5; ++i) {
      // The last 4 bytes reach the count, which is cut off.
      std::uint32_t id = 0;
      std::memcpy(&id, slot.ids + 3 * i, 4);
      out[i] = id & 0xFFFFFF;
    }
  }
}
#include "engine/transform/encoder_body.h"
#undef WS_TARGET
}  // namespace portable

#if defined(__x86_64__)
namespace avx2 {
#define WS_TARGET __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt")))
WS_TARGET inline WordKey LoadKey(const char* word, std::size_t bytes) {
  // Row n keeps n bytes and holds n in the last.
  alignas(64) static constexpr auto kMasks = [] {
    std::array<std::array<unsigned char, 32>, 16> rows{};
    for (unsigned n = 0; n < 16; ++n) {
      for (unsigned i = 0; i < n; ++i) rows[n][i] = 0xFF;
      rows[n][31] = static_cast<unsigned char>(n);
    }
    return rows;
  }();
  const __m128i* const row = reinterpret_cast<const __m128i*>(kMasks[bytes].data());
  const __m128i loaded = _mm_loadu_si128(reinterpret_cast<const __m128i*>(word));
  const __m128i key =
      _mm_or_si128(_mm_and_si128(loaded, _mm_load_si128(row)), _mm_load_si128(row + 1));
  return {static_cast<std::uint64_t>(_mm_cvtsi128_si64(key)),
          static_cast<std::uint64_t>(_mm_extract_epi64(key, 1))};
}
WS_TARGET inline bool IsSlotOf(const WordCache::Slot& slot, const WordKey& key) {
  const __m128i differs = _mm_xor_si128(_mm_load_si128(reinterpret_cast<const __m128i*>(&slot.key)),
                                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(&key)));
  return _mm_testz_si128(differs, differs) != 0;
}
template <bool kNarrow, typename Id>
WS_TARGET inline void CopyIds(const WordCache::Slot& slot, Id* out) {
  const __m128i packed = _mm_load_si128(reinterpret_cast<const __m128i*>(slot.ids));
  if constexpr (kNarrow && sizeof(Id) == 2) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), packed);
  } else if constexpr (kNarrow) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_cvtepu16_epi32(packed));
  } else {
    const __m256i order =
        _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1,  //
                         12, 13, 14, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(packed), order));
  }
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

const CharacterParts& Encoder::Parts() const {
  std::call_once(parts_made_, [this] { parts_ = std::make_unique<const CharacterParts>(*bpe_); });
  return *parts_;
}

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
  // The scanner counts in 32 bits.
  if (text.size() > 0xFFFFFFFF) return EncodeHuge(text, cache, sink);
  const Context context{bpe_, cache, scan_, this};
  const auto encode = [&]<bool kNarrow>() {
    const bool count = sink->buffer == nullptr;
#if defined(__x86_64__)
    if (isa_ != Isa::kPortable) {
      return count ? avx2::EncodeText<kNarrow, true>(context, text, sink)
                   : avx2::EncodeText<kNarrow, false>(context, text, sink);
    }
#endif
    return count ? portable::EncodeText<kNarrow, true>(context, text, sink)
                 : portable::EncodeText<kNarrow, false>(context, text, sink);
  };
  if (sizeof(Id) == 2 || narrow_ids_) {
    encode.template operator()<true>();
  } else if constexpr (sizeof(Id) == 4) {
    encode.template operator()<false>();
  }
}

template <typename Id>
void Encoder::EncodeHuge(std::string_view text, WordCache* cache, IdSink<Id>* sink) const {
  const Context context{bpe_, cache, scan_, this};
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
