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
template <int kLanes, int kChains>
WS_TARGET inline void Merge(const Bpe& bpe, Bpe::ShortWord* words) {
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  // The part that a finished word writes to, and where nothing is.
  constexpr unsigned kNowhere = kLanes + 1;
  const PairTable& pairs = bpe.Pairs();
  const std::uint32_t* const byte_ids = bpe.ByteIds();
  const std::uint32_t* const byte_pairs = bpe.BytePairRanks();
  const std::uint32_t* const merged_ids = bpe.MergedIds();
  // ids[1 + i] is part i. A part's key is the rank of its merge with the next, then its place, so
  // that the least is the merge to do.
  std::uint32_t ids[kChains][kLanes + 3];
  std::uint64_t alive[kChains];
  Keys<kLanes> keys[kChains];
  WS_UNROLL
  for (int c = 0; c < kChains; ++c) {
    const Bpe::ShortWord& word = words[c];
    alignas(64) std::uint32_t first_keys[kLanes];
    for (std::uint32_t& key : first_keys) key = kNone;
    unsigned left = static_cast<unsigned char>(word.bytes[0]);
    ids[c][1] = byte_ids[left];
    for (std::uint32_t i = 1; i < word.size; ++i) {
      const unsigned right = static_cast<unsigned char>(word.bytes[i]);
      const std::uint32_t rank = byte_pairs[left * 256U + right];
      first_keys[i - 1] = rank == kNoId ? kNone : (rank << 6) | (i - 1);
      ids[c][1 + i] = byte_ids[right];
      left = right;
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
      const bool active = least[c] != kNone;
      const std::uint32_t rank = active ? least[c] >> 6 : 0;
      const unsigned place = least[c] & 63;
      const unsigned at = active ? place : kNowhere;
      const std::uint64_t at_bit = std::uint64_t{active ? 1U : 0U} << place;
      const std::uint32_t id = merged_ids != nullptr ? merged_ids[rank] : rank;
      const std::uint64_t above = active ? alive[c] & (~std::uint64_t{1} << place) : 0;
      const std::uint64_t gone_bit = above & (0 - above);
      const std::uint64_t next_bits = above ^ gone_bit;
      const std::uint64_t below = active ? alive[c] & (at_bit - 1) : 0;
      alive[c] ^= gone_bit;
      const unsigned next =
          next_bits != 0 ? static_cast<unsigned>(std::countr_zero(next_bits)) : unsigned{kNowhere};
      const unsigned before =
          below != 0 ? 63 - static_cast<unsigned>(std::countl_zero(below)) : unsigned{kNowhere};
      ids[c][1 + at] = id;
      // Where there is no neighbour, a pair that no table has.
      const std::uint64_t next_pair =
          next_bits != 0 ? PairTable::Pair(id, ids[c][1 + next]) : PairTable::kNoPair;
      const std::uint64_t before_pair =
          below != 0 ? PairTable::Pair(ids[c][1 + before], id) : PairTable::kNoPair;
      const std::uint32_t next_rank = FindPair(pairs, next_pair);
      const std::uint32_t before_rank = FindPair(pairs, before_pair);
      const std::uint64_t before_bit = std::uint64_t{below != 0 ? 1U : 0U} << (before & 63);
      keys[c].Set(gone_bit, kNone);
      keys[c].Set(at_bit, next_rank == kNoId ? kNone : (next_rank << 6) | place);
      keys[c].Set(before_bit, before_rank == kNoId ? kNone : (before_rank << 6) | before);
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

template <int kLanes>
WS_TARGET void MergeAll(const Bpe& bpe, Bpe::ShortWord* words, std::size_t count) {
  for (; count >= 4; count -= 4, words += 4) Merge<kLanes, 4>(bpe, words);
  if (count >= 2) {
    Merge<kLanes, 2>(bpe, words);
    words += 2;
    count -= 2;
  }
  if (count == 1) Merge<kLanes, 1>(bpe, words);
}

WS_TARGET void MergeShort(const Bpe& bpe, Bpe::ShortWord* words, std::size_t count) {
  std::uint32_t longest = 0;
  for (std::size_t i = 0; i < count; ++i) longest = std::max(longest, words[i].size);
  if (longest <= 16) {
    MergeAll<16>(bpe, words, count);
  } else if (longest <= 32) {
    MergeAll<32>(bpe, words, count);
  } else {
    MergeAll<64>(bpe, words, count);
  }
}
