// The hot loop for one instruction set; encoder.cc includes this file once for each, inside a
// namespace of its own, with WS_TARGET as the attribute of its functions and
//   WS_TARGET WordKey LoadKey(const char* word, std::size_t bytes)
// which reads 16 bytes from `word` on.
// (No #pragma once: on purpose.)

template <bool kNarrow, typename Id>
WS_TARGET void EncodeText(const Encoder::Context& context, std::string_view text,
                          IdSink<Id>* sink) {
  const std::uint64_t seed = context.bpe->seed();
  WordCache::Bucket* const buckets = context.cache->Buckets();
  const char* p = text.data();
  const char* const end = p + text.size();
  std::uint32_t ends[kBatchWords + kWordSlack];
  WordKey keys[kGroupWords];
  std::uint64_t hashes[kGroupWords];
  std::uint32_t scratch[kScratchIds];
  Id discarded[kSlotIds];
  while (p != end && sink->count < sink->most) {
    const std::size_t count = context.scan(p, end, ends, kBatchWords);
    std::uint32_t begin = 0;
    for (std::size_t first = 0; first < count; first += kGroupWords) {
      const std::size_t group = std::min(kGroupWords, count - first);
      // The look-ups of a group are under way before the first is needed.
      std::uint32_t at = begin;
      for (std::size_t i = 0; i < group; ++i) {
        const std::uint32_t stop = ends[first + i];
        const std::uint32_t bytes = stop - at;
        const char* const word = p + at;
        at = stop;
        // A longer word gets a key that no slot has.
        const std::uint32_t kept = std::min<std::uint32_t>(bytes, 16);
        WordKey key;
        if (end - word >= 16) [[likely]] {
          key = LoadKey(word, std::min<std::uint32_t>(kept, 15));
        } else {
          key = WordKey::Of(word, std::min<std::uint32_t>(kept, 15));
        }
        key.high |= static_cast<std::uint64_t>(kept & 16) << 56;
        const std::uint64_t hash = key.Hash(seed);
        keys[i] = key;
        hashes[i] = hash;
        __builtin_prefetch(&buckets[WordCache::BucketOf(hash)]);
      }
      Id* out = discarded;
      if (sink->buffer != nullptr) {
        sink->buffer->Reserve(kGroupIds);
        out = sink->buffer->data() + sink->buffer->size();
      }
      std::uint64_t counted = 0;
      for (std::size_t i = 0; i < group; ++i) {
        const WordKey key = keys[i];
        const WordCache::Bucket& bucket = buckets[WordCache::BucketOf(hashes[i])];
        const std::uint64_t differs0 =
            (bucket.ways[0].key.low ^ key.low) | (bucket.ways[0].key.high ^ key.high);
        const std::uint64_t differs1 =
            (bucket.ways[1].key.low ^ key.low) | (bucket.ways[1].key.high ^ key.high);
        const WordCache::Slot& slot = bucket.ways[differs0 != 0 ? 1 : 0];
        const std::uint32_t stop = ends[first + i];
        if (differs0 == 0 || differs1 == 0) [[likely]] {
          if (sink->buffer != nullptr) {
            CopySlotIds<kNarrow>(slot, out);
            out += slot.count;
          } else {
            counted += slot.count;
          }
          begin = stop;
          continue;
        }
        const char* const word = p + begin;
        const std::size_t bytes = stop - begin;
        begin = stop;
        std::size_t found = 0;
        if (bytes <= WordKey::kMaxBytes) {
          found = ResolveShort<kNarrow>(context, word, bytes, key, hashes[i], scratch);
        } else if (bytes <= WordCache::kMaxLongBytes) {
          found = ResolveLong(context, word, bytes, scratch);
        } else {
          if (sink->buffer != nullptr) Commit(out, sink);
          ResolveAny(context, word, bytes, sink);
          if (sink->buffer != nullptr) {
            sink->buffer->Reserve(kGroupIds);
            out = sink->buffer->data() + sink->buffer->size();
          }
          continue;
        }
        if (sink->buffer != nullptr) {
          for (std::size_t k = 0; k < found; ++k) out[k] = static_cast<Id>(scratch[k]);
          out += found;
        } else {
          counted += found;
        }
      }
      if (sink->buffer != nullptr) {
        Commit(out, sink);
      } else {
        sink->count += counted;
      }
    }
    p += begin;
  }
}
