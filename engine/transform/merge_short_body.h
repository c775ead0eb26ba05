// Merging of short words for one instruction set; merge_short.cc includes this file once for each,
// inside a namespace of its own, with WS_TARGET as the attribute of its functions and
//   template <int kLanes> struct Keys: kLanes integers with
//     void Load(const std::uint32_t*), std::uint32_t Least() const
//     void Set(std::uint64_t lanes, std::uint32_t): where a bit of `lanes` is set
//   WS_TARGET std::uint32_t FindPair(const PairTable&, std::uint64_t pair)
// (No #pragma once: on purpose.)

// kChains words at once, step by step. A step of one word waits for its own last step, mostly for
// the look-ups, so words merge nearly as fast together as one alone. No branch depends on what is
// found: about half of the look-ups find something, which no machine can foresee.
template <int kLanes, int kChains, bool kParts>
WS_TARGET inline void Merge(const Bpe& bpe, Bpe::ShortWord* words) {
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  // Places in `ids` beside the parts: what stands before and behind merges with nothing, and a
  // finished word writes to the last.
  constexpr unsigned kBehind = 65;
  constexpr unsigned kUnused = 66;
  const PairTable& pairs = bpe.Pairs();
  const std::uint32_t* const byte_ids = bpe.ByteIds();
  const std::uint32_t* const byte_pairs = bpe.BytePairRanks();
  const std::uint32_t* const merged_ids = bpe.MergedIds();
  // ids[1 + i] is part i. A part's key is the rank of its merge with the next, then its place, so
  // that the least is the merge to do.
  std::uint32_t ids[kChains][kUnused + 1];
  std::uint64_t alive[kChains];
  Keys<kLanes> keys[kChains];
  WS_UNROLL
  for (int c = 0; c < kChains; ++c) {
    const Bpe::ShortWord& word = words[c];
    alignas(64) std::uint32_t first_keys[kLanes];
    for (std::uint32_t& key : first_keys) key = kNone;
    ids[c][0] = ids[c][kBehind] = PairTable::kNeverId;
    if constexpr (kParts) {
      std::uint32_t left = ids[c][1] = word.ids[0];
      for (std::uint32_t i = 1; i < word.size; ++i) {
        const std::uint32_t right = word.ids[i];
        const std::uint32_t rank = FindPair(pairs, PairTable::Pair(left, right));
        first_keys[i - 1] = (rank << 6) | (i - 1) | AllOnesIf(rank == kNoId);
        ids[c][1 + i] = right;
        left = right;
      }
    } else {
      unsigned left = static_cast<unsigned char>(word.bytes[0]);
      ids[c][1] = byte_ids[left];
      for (std::uint32_t i = 1; i < word.size; ++i) {
        const unsigned right = static_cast<unsigned char>(word.bytes[i]);
        const std::uint32_t rank = byte_pairs[left * 256U + right];
        first_keys[i - 1] = rank == kNoId ? kNone : (rank << 6) | (i - 1);
        ids[c][1 + i] = byte_ids[right];
        left = right;
      }
    }
    keys[c].Load(first_keys);
    alive[c] = ~std::uint64_t{0} >> (64 - word.size);
  }
  while (true) {
    std::uint32_t least[kChains];
    std::uint32_t all = kNone;
    WS_UNROLL
    for (int c = 0; c < kChains; ++c) {
      least[c] = keys[c].Least();
      all &= least[c];
    }
    if (all == kNone) break;
    WS_UNROLL
    for (int c = 0; c < kChains; ++c) {
      // All ones for a word that is finished. Masks instead of choices, so that no branch comes
      // of them.
      const std::uint32_t finished = AllOnesIf(least[c] == kNone);
      const std::uint64_t active = ~AllOnesIf64(least[c] == kNone);
      const std::uint32_t rank = (least[c] >> 6) & ~finished;
      const unsigned place = least[c] & 63;
      const std::uint64_t at_bit = (std::uint64_t{1} << place) & active;
      const std::uint32_t id = merged_ids != nullptr ? merged_ids[rank] : rank;
      const std::uint64_t above = alive[c] & (~std::uint64_t{1} << place) & active;
      const std::uint64_t gone_bit = above & (0 - above);
      const std::uint64_t next_bits = above ^ gone_bit;
      const std::uint64_t below = alive[c] & (at_bit - 1) & active;
      alive[c] ^= gone_bit;
      const auto next = static_cast<unsigned>(std::countr_zero(next_bits));
      const unsigned before = 64 - static_cast<unsigned>(std::countl_zero(below));
      ids[c][((1 + place) & ~finished) | (kUnused & finished)] = id;
      // Where there is no neighbour, a pair that no table has, always the same.
      const std::uint64_t none_next = AllOnesIf64(next_bits == 0);
      const std::uint64_t none_before = AllOnesIf64(below == 0);
      const std::uint64_t next_pair =
          (PairTable::Pair(id, ids[c][1 + next]) & ~none_next) | (PairTable::kNoPair & none_next);
      const std::uint64_t before_pair =
          (PairTable::Pair(ids[c][before], id) & ~none_before) | (PairTable::kNoPair & none_before);
      const std::uint32_t next_rank = FindPair(pairs, next_pair);
      const std::uint32_t before_rank = FindPair(pairs, before_pair);
      const std::uint64_t before_bit = (std::uint64_t{1} << ((before - 1) & 63)) & ~none_before;
      keys[c].Set(gone_bit, kNone);
      keys[c].Set(at_bit, (next_rank << 6) | place | AllOnesIf(next_rank == kNoId));
      keys[c].Set(before_bit, (before_rank << 6) | (before - 1) | AllOnesIf(before_rank == kNoId));
    }
  }
  for (int c = 0; c < kChains; ++c) {
    std::uint32_t count = 0;
    std::uint64_t left = alive[c];
    do {
      words[c].ids[count++] = ids[c][1 + std::countr_zero(left)];
      left &= left - 1;
    } while (left != 0);
    words[c].count = count;
  }
}

template <int kLanes, bool kParts>
WS_TARGET void MergeAll(const Bpe& bpe, Bpe::ShortWord* words, std::size_t count) {
  for (; count >= 4; count -= 4, words += 4) Merge<kLanes, 4, kParts>(bpe, words);
  if (count >= 2) {
    Merge<kLanes, 2, kParts>(bpe, words);
    words += 2;
    count -= 2;
  }
  if (count == 1) Merge<kLanes, 1, kParts>(bpe, words);
}

template <bool kParts>
WS_TARGET void MergeByLength(const Bpe& bpe, Bpe::ShortWord* words, std::size_t count) {
  std::uint32_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) longest = std::max(longest, words[i].size);
  if (longest <= 16) {
    MergeAll<16, kParts>(bpe, words, count);
  } else if (longest <= 32) {
    MergeAll<32, kParts>(bpe, words, count);
  } else {
    MergeAll<64, kParts>(bpe, words, count);
  }
}

WS_TARGET void MergeShort(const Bpe& bpe, Bpe::ShortWord* words, std::size_t count) {
  if (count == 0) return;
  if (words[0].bytes == nullptr) {
    MergeByLength<true>(bpe, words, count);
  } else {
    MergeByLength<false>(bpe, words, count);
  }
}
