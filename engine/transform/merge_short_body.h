// Merging of a short word for one instruction set; merge_short.cc includes this file once for each,
// inside a namespace of its own, with WS_TARGET as the attribute of its functions and
//   template <int kLanes> struct Keys: kLanes integers with
//     void Load(const std::uint32_t*), std::uint32_t Least() const, void Set(unsigned,
//     std::uint32_t)
//   WS_TARGET std::uint32_t FindPair(const PairTable&, left, right)
// (No #pragma once: on purpose.)

template <int kLanes>
WS_TARGET inline std::size_t Merge(const Bpe& bpe, const char* word, std::size_t bytes,
                                   std::uint32_t* out) {
  constexpr std::uint32_t kNone = 0xFFFFFFFF;
  const PairTable& pairs = bpe.Pairs();
  const std::uint32_t* const byte_ids = bpe.ByteIds();
  const std::uint32_t* const byte_pairs = bpe.BytePairRanks();
  const std::uint32_t* const merged_ids = bpe.MergedIds();
  // ids[1 + i] is part i; what stands before and behind merges with nothing. A part's key is the
  // rank of its merge with the next, then its place, so that the least is the merge to do.
  std::uint32_t ids[kLanes + 2];
  alignas(64) std::uint32_t first_keys[kLanes];
  for (std::uint32_t& key : first_keys) key = kNone;
  ids[0] = PairTable::kNeverId;
  ids[kLanes + 1] = PairTable::kNeverId;
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto left = static_cast<unsigned char>(word[i]);
    ids[1 + i] = byte_ids[left];
    if (i + 1 == bytes) break;
    const std::uint32_t rank = byte_pairs[left * 256U + static_cast<unsigned char>(word[i + 1])];
    first_keys[i] = rank == kNoId ? kNone : (rank << 6) | static_cast<std::uint32_t>(i);
  }
  Keys<kLanes> keys;
  keys.Load(first_keys);
  std::uint64_t alive = ~std::uint64_t{0} >> (64 - bytes);
  while (true) {
    const std::uint32_t least = keys.Least();
    if (least == kNone) break;
    const unsigned at = least & 63;
    const std::uint32_t id = merged_ids != nullptr ? merged_ids[least >> 6] : least >> 6;
    const std::uint64_t above = alive & (~std::uint64_t{1} << at);
    const auto gone = static_cast<unsigned>(std::countr_zero(above));
    alive &= ~(std::uint64_t{1} << gone);
    const std::uint64_t further = above & (above - 1);
    const std::uint64_t below = alive & ((std::uint64_t{1} << at) - 1);
    const unsigned next =
        further != 0 ? static_cast<unsigned>(std::countr_zero(further)) : unsigned{kLanes};
    const unsigned before = below != 0 ? 64 - static_cast<unsigned>(std::countl_zero(below)) : 0;
    ids[1 + at] = id;
    const std::uint32_t next_rank = FindPair(pairs, id, ids[1 + next]);
    const std::uint32_t before_rank = FindPair(pairs, ids[before], id);
    keys.Set(gone, kNone);
    keys.Set(at, next_rank == kNoId ? kNone : (next_rank << 6) | at);
    // With nothing before, that is the part at -1.
    if (below != 0) {
      keys.Set(before - 1, before_rank == kNoId ? kNone : (before_rank << 6) | (before - 1));
    }
  }
  std::size_t count = 0;
  do {
    out[count++] = ids[1 + std::countr_zero(alive)];
    alive &= alive - 1;
  } while (alive != 0);
  return count;
}

WS_TARGET std::size_t MergeShort(const Bpe& bpe, const char* word, std::size_t bytes,
                                 std::uint32_t* ids) {
  if (bytes <= 16) return Merge<16>(bpe, word, bytes, ids);
  if (bytes <= 32) return Merge<32>(bpe, word, bytes, ids);
  return Merge<64>(bpe, word, bytes, ids);
}
