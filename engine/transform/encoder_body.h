// The hot loop for one instruction set; encoder.cc includes this file once for each, inside a
// namespace of its own, with WS_TARGET as the attribute of its functions and
//   WS_TARGET WordKey LoadKey(const char* word, std::size_t bytes): reads 16 bytes from `word` on
//   WS_TARGET bool IsSlotOf(const WordCache::Slot&, const WordKey&)
//   template <bool kNarrow, typename Id> WS_TARGET void CopyIds(const WordCache::Slot&, Id* out):
//     writes kSlotIds ids, of which the slot's count are valid
// (No #pragma once: on purpose.)

// Cuts words of the texts, from *text and *p in it on, until the batch is full.
WS_TARGET inline void FillBatch(const Encoder::Context& context,
                                std::span<const std::string_view> texts, std::size_t* text,
                                const char** p, WordBatch* batch) {
  std::uint32_t ends[kBatchWords + kWordSlack];
  batch->words = 0;
  batch->text_ends = 0;
  std::size_t tails = 0;
  while (*text < texts.size() && batch->words + kLeastScanned <= kBatchWords &&
         batch->text_ends < kBatchTexts && tails < kBatchTexts) {
    const char* const end = texts[*text].data() + texts[*text].size();
    if (*p != end) {
      const std::size_t first = batch->words;
      const std::size_t count = context.scan(*p, end, ends, kBatchWords - first);
      std::uint32_t begin = 0;
      for (std::size_t i = 0; i < count; ++i) {
        batch->bytes[first + i] = *p + begin;
        batch->sizes[first + i] = ends[i] - begin;
        begin = ends[i];
      }
      batch->words = first + count;
      // Keys are read as 16 bytes: the last words are read from a copy.
      std::size_t last = batch->words;
      while (last > first && end - batch->bytes[last - 1] < 16) --last;
      if (last < batch->words) {
        char* const tail = batch->tails[tails++];
        const char* const copied = batch->bytes[last];
        std::memcpy(tail, copied, static_cast<std::size_t>(end - copied));
        for (std::size_t i = last; i < batch->words; ++i) {
          batch->bytes[i] = tail + (batch->bytes[i] - copied);
        }
      }
      *p += begin;
      if (*p != end) continue;
    }
    batch->text_end_words[batch->text_ends++] = static_cast<std::uint32_t>(batch->words);
    if (++*text < texts.size()) *p = texts[*text].data();
  }
}

// Finds the keys, hashes and slots of up to kGroupWords words, and the indices of those that have
// no slot; returns how many these are. A function of its own, so that its loops have the registers.
WS_TARGET __attribute__((noinline)) std::size_t LookUp(
    const WordCache::Bucket* buckets, std::uint64_t seed, const char* const* words,
    const std::uint32_t* sizes, std::size_t count, WordKey* keys, std::uint64_t* hashes,
    const WordCache::Slot** slots, std::uint32_t* misses) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t kept = std::min<std::uint32_t>(sizes[i], WordKey::kMaxBytes);
    WordKey key = LoadKey(words[i], kept);
    // A longer word gets a key that no slot has.
    key.high |= std::uint64_t{sizes[i] > kept ? 1U : 0U} << 63;
    const std::uint64_t hash = key.Hash(seed);
    keys[i] = key;
    hashes[i] = hash;
    __builtin_prefetch(&buckets[WordCache::BucketOf(hash)]);
  }
  std::size_t miss_count = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const WordCache::Bucket& bucket = buckets[WordCache::BucketOf(hashes[i])];
    const unsigned in_first = IsSlotOf(bucket.ways[0], keys[i]) ? 1 : 0;
    const unsigned in_second = IsSlotOf(bucket.ways[1], keys[i]) ? 1 : 0;
    slots[i] = &bucket.ways[in_second];
    misses[miss_count] = static_cast<std::uint32_t>(i);
    miss_count += 1 - (in_first | in_second);
  }
  return miss_count;
}

// Words are looked up in groups, each step for all words of a group, so that the machine fetches
// for many words at once and no step waits for a branch that cannot be foreseen. Groups make
// rounds, whose missing words are found together; a batch may be of many short texts.
template <bool kNarrow, bool kCount, typename Id>
WS_TARGET void EncodeTexts(const Encoder::Context& context, std::span<const std::string_view> texts,
                           IdSink<Id>* sink, std::uint64_t* counts) {
  const std::uint64_t seed = context.bpe->seed();
  const WordCache::Bucket* const buckets = context.cache->Buckets();
  WordBatch batch;
  WordKey keys[kGroupWords];
  std::uint64_t hashes[kGroupWords];
  const WordCache::Slot* slots[kBatchWords];
  std::uint32_t misses[kGroupWords + 1];
  MissedWords& missed = *context.missed;
  std::size_t text = 0;
  std::size_t ended_texts = 0;
  const char* p = texts.empty() ? nullptr : texts[0].data();
  while (text < texts.size() && sink->count < sink->most) {
    FillBatch(context, texts, &text, &p, &batch);
    std::size_t first = 0;
    std::size_t text_end = 0;
    do {
      const std::size_t round_first = first;
      std::size_t missed_words = 0;
      while (first < batch.words && missed_words + kGroupWords <= MissedWords::kMostWords) {
        const std::size_t group = std::min(kGroupWords, batch.words - first);
        const char* const* const words = batch.bytes + first;
        const std::uint32_t* const sizes = batch.sizes + first;
        const WordCache::Slot** const group_slots = slots + first;
        const std::size_t miss_count =
            LookUp(buckets, seed, words, sizes, group, keys, hashes, group_slots, misses);
        for (std::size_t m = 0; m < miss_count; ++m) {
          const std::uint32_t i = misses[m];
          group_slots[i] = missed.Add(words[i], sizes[i], keys[i], hashes[i]);
        }
        missed_words += miss_count;
        first += group;
      }
      if (missed_words != 0) {
        missed.Resolve(*context.bpe, *context.encoder, context.cache, kNarrow);
      }
      std::size_t at = round_first;
      while (true) {
        // Text by text.
        const bool ends = text_end < batch.text_ends && batch.text_end_words[text_end] <= first;
        const std::size_t stop = ends ? batch.text_end_words[text_end] : first;
        if constexpr (!kCount) {
          sink->buffer->Reserve((stop - at) * kSlotIds);
          Id* out = sink->buffer->data() + sink->buffer->size();
          for (; at < stop; ++at) {
            const WordCache::Slot& slot = *slots[at];
            if (slot.count == MissedWords::kElsewhere) [[unlikely]] {
              Commit(out, sink);
              AppendMissed(context, missed, &slot, sink);
              sink->buffer->Reserve((stop - at) * kSlotIds);
              out = sink->buffer->data() + sink->buffer->size();
            } else {
              CopyIds<kNarrow>(slot, out);
              out += slot.count;
            }
          }
          Commit(out, sink);
        } else {
          std::uint64_t counted = 0;
          for (; at < stop; ++at) {
            if (slots[at]->count == MissedWords::kElsewhere) [[unlikely]] {
              AppendMissed(context, missed, slots[at], sink);
            } else {
              counted += slots[at]->count;
            }
          }
          sink->count += counted;
        }
        if (!ends) break;
        ++text_end;
        if (counts != nullptr) counts[ended_texts] = sink->count;
        ++ended_texts;
      }
      if (missed_words != 0) {
        missed.Keep(context.cache);
        missed.Clear();
      }
    } while (first < batch.words);
  }
}
