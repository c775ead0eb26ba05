// The hot loop for one instruction set; encoder.cc includes this file once for each, inside a
// namespace of its own, with WS_TARGET as the attribute of its functions and
//   WS_TARGET WordKey LoadKey(const char* word, std::size_t bytes): reads 16 bytes from `word` on
//   WS_TARGET bool IsSlotOf(const WordCache::Slot&, const WordKey&)
//   template <bool kNarrow, typename Id> WS_TARGET void CopyIds(const WordCache::Slot&, Id* out):
//     writes kSlotIds ids, of which the slot's count are valid
// (No #pragma once: on purpose.)

// Words are looked up in groups, each step for all words of a group, so that the machine fetches
// for many words at once and no step waits for a branch that cannot be foreseen. Groups make
// rounds, whose missing words are found together.
template <bool kNarrow, bool kCount, typename Id>
WS_TARGET void EncodeText(const Encoder::Context& context, std::string_view text,
                          IdSink<Id>* sink) {
  const std::uint64_t seed = context.bpe->seed();
  WordCache::Bucket* const buckets = context.cache->Buckets();
  const char* p = text.data();
  const char* const end = p + text.size();
  std::uint32_t ends[kBatchWords + kWordSlack];
  WordKey keys[kGroupWords];
  std::uint64_t hashes[kGroupWords];
  const WordCache::Slot* slots[kBatchWords];
  std::uint32_t misses[kGroupWords + 1];
  MissedWords& missed = *context.missed;
  while (p != end && sink->count < sink->most) {
    const std::size_t count = context.scan(p, end, ends, kBatchWords);
    std::uint32_t begin = 0;
    std::size_t first = 0;
    while (first < count) {
      const std::size_t round_first = first;
      std::size_t missed_words = 0;
      while (first < count && missed_words + kGroupWords <= MissedWords::kMostWords) {
        const std::size_t group = std::min(kGroupWords, count - first);
        const std::uint32_t* const group_ends = ends + first;
        const WordCache::Slot** const group_slots = slots + first;
        std::uint32_t at = begin;
        for (std::size_t i = 0; i < group; ++i) {
          const char* const word = p + at;
          const std::uint32_t bytes = group_ends[i] - at;
          at = group_ends[i];
          const std::uint32_t kept = std::min<std::uint32_t>(bytes, WordKey::kMaxBytes);
          WordKey key;
          if (end - word >= 16) [[likely]] {
            key = LoadKey(word, kept);
          } else {
            key = WordKey::Of(word, kept);
          }
          // A longer word gets a key that no slot has.
          key.high |= std::uint64_t{bytes > kept ? 1U : 0U} << 63;
          const std::uint64_t hash = key.Hash(seed);
          keys[i] = key;
          hashes[i] = hash;
          __builtin_prefetch(&buckets[WordCache::BucketOf(hash)]);
        }
        std::size_t miss_count = 0;
        for (std::size_t i = 0; i < group; ++i) {
          const WordCache::Bucket& bucket = buckets[WordCache::BucketOf(hashes[i])];
          const unsigned in_first = IsSlotOf(bucket.ways[0], keys[i]) ? 1 : 0;
          const unsigned in_second = IsSlotOf(bucket.ways[1], keys[i]) ? 1 : 0;
          group_slots[i] = &bucket.ways[in_second];
          misses[miss_count] = static_cast<std::uint32_t>(i);
          miss_count += 1 - (in_first | in_second);
        }
        for (std::size_t m = 0; m < miss_count; ++m) {
          const std::uint32_t i = misses[m];
          const std::uint32_t word_begin = i == 0 ? begin : group_ends[i - 1];
          group_slots[i] =
              missed.Add(p + word_begin, group_ends[i] - word_begin, keys[i], hashes[i]);
        }
        missed_words += miss_count;
        first += group;
        begin = at;
      }
      if (missed_words != 0) {
        missed.Resolve(*context.bpe, *context.encoder, context.cache, kNarrow);
      }
      std::uint64_t counted = 0;
      if constexpr (!kCount) {
        sink->buffer->Reserve((first - round_first) * kSlotIds);
        Id* out = sink->buffer->data() + sink->buffer->size();
        for (std::size_t i = round_first; i < first; ++i) {
          const WordCache::Slot& slot = *slots[i];
          if (slot.count == MissedWords::kElsewhere) [[unlikely]] {
            Commit(out, sink);
            AppendMissed(context, missed, &slot, sink);
            sink->buffer->Reserve((first - i) * kSlotIds);
            out = sink->buffer->data() + sink->buffer->size();
          } else {
            CopyIds<kNarrow>(slot, out);
            out += slot.count;
          }
        }
        Commit(out, sink);
      } else {
        for (std::size_t i = round_first; i < first; ++i) {
          if (slots[i]->count == MissedWords::kElsewhere) [[unlikely]] {
            AppendMissed(context, missed, slots[i], sink);
          } else {
            counted += slots[i]->count;
          }
        }
        sink->count += counted;
      }
      if (missed_words != 0) {
        missed.Keep(context.cache);
        missed.Clear();
      }
    }
    p += begin;
  }
}
