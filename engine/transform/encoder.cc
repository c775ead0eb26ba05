#include "engine/transform/encoder.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>
#include <type_traits>

#include "engine/transform/missed_words.h"

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
  MissedWords* missed;
  ScanWordsFunction scan;
  const Encoder* encoder;
};

namespace {

constexpr std::size_t kBatchWords = 1024;
constexpr std::size_t kGroupWords = 128;
// At most so many texts end in a batch.
constexpr std::size_t kBatchTexts = 256;
// The scanner wants room for as many words.
constexpr std::size_t kLeastScanned = 64;
// Copying a slot's ids writes as many.
constexpr std::size_t kSlotIds = 8;

// Words of one or more texts, in order.
struct WordBatch {
  const char* bytes[kBatchWords];  // of each word; 16 bytes can be read
  std::uint32_t sizes[kBatchWords];
  std::size_t words;
  // How many words there are up to the end of each text that ends here.
  std::uint32_t text_end_words[kBatchTexts];
  std::size_t text_ends;
  char tails[kBatchTexts][32];
};

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

template <typename Id>
void AppendMissed(const Encoder::Context& context, const MissedWords& missed,
                  const WordCache::Slot* slot, IdSink<Id>* sink) {
  const MissedWords::Found found = missed.Ids(slot);
  if (found.ids == nullptr) return ResolveAny(context, found.word, found.bytes, sink);
  sink->count += found.count;
  if (sink->buffer == nullptr) return;
  sink->buffer->Reserve(found.count);
  Id* const out = sink->buffer->data() + sink->buffer->size();
  for (std::uint32_t i = 0; i < found.count; ++i) out[i] = static_cast<Id>(found.ids[i]);
  sink->buffer->SetSize(sink->buffer->size() + found.count);
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

const FirstParts& Encoder::Parts() const {
  std::call_once(parts_made_, [this] { parts_ = std::make_unique<const FirstParts>(*bpe_); });
  return *parts_;
}

Encoder::~Encoder() {
  for (std::atomic<EncoderMemory*>& memory : idle_) delete memory.load();
}

EncoderMemory* Encoder::Take() const {
  // Each thread looks first where it gave its cache back.
  const std::size_t begin = std::hash<std::thread::id>()(std::this_thread::get_id());
  for (std::size_t i = 0; i < idle_.size(); ++i) {
    std::atomic<EncoderMemory*>& place = idle_[(begin + i) % idle_.size()];
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (EncoderMemory* const memory = place.exchange(nullptr, std::memory_order_acquire))
      return memory;
  }
  return new EncoderMemory;
}

void Encoder::GiveBack(EncoderMemory* memory) const {
  const std::size_t begin = std::hash<std::thread::id>()(std::this_thread::get_id());
  for (std::size_t i = 0; i < idle_.size(); ++i) {
    EncoderMemory* expected = nullptr;
    if (idle_[(begin + i) % idle_.size()].compare_exchange_strong(expected, memory,
                                                                  std::memory_order_release)) {
      return;
    }
  }
  delete memory;
}

template <typename Id>
void Encoder::Encode(std::span<const std::string_view> texts, EncoderMemory* memory,
                     IdSink<Id>* sink, std::uint64_t* counts) const {
  // The scanner counts in 32 bits.
  const auto is_huge = [](std::string_view text) { return text.size() > 0xFFFFFFFF; };
  if (std::any_of(texts.begin(), texts.end(), is_huge)) {
    for (std::size_t i = 0; i < texts.size() && sink->count < sink->most; ++i) {
      if (is_huge(texts[i])) {
        EncodeHuge(texts[i], memory, sink);
      } else {
        Encode(texts.subspan(i, 1), memory, sink, nullptr);
      }
      if (counts != nullptr) counts[i] = sink->count;
    }
    return;
  }
  const Context context{bpe_, &memory->cache, &memory->missed, scan_, this};
  // What an earlier call left that was stopped by an exception.
  memory->missed.Clear();
  const auto encode = [&]<bool kNarrow>() {
    const bool count = sink->buffer == nullptr;
#if defined(__x86_64__)
    if (isa_ != Isa::kPortable) {
      return count ? avx2::EncodeTexts<kNarrow, true>(context, texts, sink, counts)
                   : avx2::EncodeTexts<kNarrow, false>(context, texts, sink, counts);
    }
#endif
    return count ? portable::EncodeTexts<kNarrow, true>(context, texts, sink, counts)
                 : portable::EncodeTexts<kNarrow, false>(context, texts, sink, counts);
  };
  if (sizeof(Id) == 2 || narrow_ids_) {
    encode.template operator()<true>();
  } else if constexpr (sizeof(Id) == 4) {
    encode.template operator()<false>();
  }
}

template <typename Id>
void Encoder::EncodeHuge(std::string_view text, EncoderMemory* memory, IdSink<Id>* sink) const {
  const Context context{bpe_, &memory->cache, &memory->missed, scan_, this};
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end && sink->count < sink->most) {
    const char* const stop = WordEnd(pattern_, p, end);
    ResolveAny(context, p, static_cast<std::size_t>(stop - p), sink);
    p = stop;
  }
}

template void Encoder::Encode(std::span<const std::string_view>, EncoderMemory*,
                              IdSink<std::uint16_t>*, std::uint64_t*) const;
template void Encoder::Encode(std::span<const std::string_view>, EncoderMemory*,
                              IdSink<std::uint32_t>*, std::uint64_t*) const;

}  // namespace widestream::internal
