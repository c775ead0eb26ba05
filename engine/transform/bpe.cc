#include "engine/transform/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace widestream::internal {
namespace {

std::uint64_t SlotCount(std::size_t entries) { return std::bit_ceil(2 * entries + 2); }

Status TooManyMerges(const std::string& name) {
  return Status::ResourceExhausted(
      name + ": more than " + std::to_string(kMaxMerges) +
      " pairs of tokens merge; the largest published vocabularies stay "
      "well below, so this file is probably damaged");
}

}  // namespace

WordTable::WordTable(const std::vector<std::string>& tokens, const std::vector<bool>& included,
                     std::uint64_t seed)
    : tokens_(&tokens), seed_(seed) {
  std::size_t short_count = 0;
  std::size_t long_count = 0;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!included[id]) continue;
    ++(tokens[id].size() <= WordKey::kMaxBytes ? short_count : long_count);
  }
  short_slots_.resize(SlotCount(short_count));
  long_slots_.resize(SlotCount(long_count));
  short_mask_ = short_slots_.size() - 1;
  long_mask_ = long_slots_.size() - 1;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!included[id]) continue;
    const std::string& token = tokens[id];
    if (token.size() <= WordKey::kMaxBytes) {
      const WordKey key = WordKey::Of(token.data(), token.size(), token.size());
      std::uint64_t slot = key.Hash(seed_);
      while (short_slots_[slot & short_mask_].id != kNoId) ++slot;
      short_slots_[slot & short_mask_] = {key, static_cast<std::uint32_t>(id)};
    } else {
      longest_ = std::max(longest_, token.size());
      const std::uint64_t hash = XXH3_64bits_withSeed(token.data(), token.size(), seed_);
      std::uint64_t slot = hash;
      while (long_slots_[slot & long_mask_].id != kNoId) ++slot;
      long_slots_[slot & long_mask_] = {hash, static_cast<std::uint32_t>(id)};
    }
  }
}

std::uint32_t WordTable::FindLong(const char* word, std::size_t bytes) const {
  if (bytes > longest_) return kNoId;
  const std::uint64_t hash = XXH3_64bits_withSeed(word, bytes, seed_);
  for (std::uint64_t slot = hash;; ++slot) {
    const LongSlot& entry = long_slots_[slot & long_mask_];
    if (entry.id == kNoId) return kNoId;
    if (entry.hash != hash) continue;
    const std::string& token = (*tokens_)[entry.id];
    if (token.size() == bytes && std::memcmp(token.data(), word, bytes) == 0) return entry.id;
  }
}

bool PairTable::Build(const std::vector<Merge>& merges, const std::vector<std::uint32_t>& ranks,
                      std::uint64_t seed, std::size_t* duplicate) {
  seed_ = seed;
  slots_.assign(SlotCount(merges.size()), Slot{});
  mask_ = slots_.size() - 1;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const Merge& merge = merges[i];
    std::uint64_t slot = Hash(merge.left, merge.right);
    for (; slots_[slot & mask_].rank != kNoId; ++slot) {
      const Slot& entry = slots_[slot & mask_];
      if (entry.left != merge.left || entry.right != merge.right) continue;
      *duplicate = i;
      return false;
    }
    slots_[slot & mask_] = {merge.left, merge.right, ranks[i]};
  }
  return true;
}

Result<std::unique_ptr<const Bpe>> Bpe::Make(Vocabulary vocabulary, const std::string& name) {
  std::unique_ptr<Bpe> bpe(new Bpe);
  bpe->vocabulary_ = std::move(vocabulary);
  XXH64_hash_t seed = 0;
  for (const std::string& token : bpe->vocabulary_.tokens) {
    seed = XXH3_64bits_withSeed(token.data(), token.size(), seed);
    if (token.size() == 1) {
      const std::size_t id = static_cast<std::size_t>(&token - bpe->vocabulary_.tokens.data());
      bpe->byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<std::uint32_t>(id);
    }
  }
  bpe->seed_ = seed;
  WS_RETURN_IF_ERROR(bpe->BuildPairs(name));
  bpe->BuildWholeWords();
  return std::unique_ptr<const Bpe>(std::move(bpe));
}

Status Bpe::BuildPairs(const std::string& name) {
  const std::vector<std::string>& tokens = vocabulary_.tokens;
  std::vector<Merge> merges;
  std::vector<std::uint32_t> ranks;
  if (vocabulary_.merge_by_id) {
    const WordTable all(tokens, std::vector<bool>(tokens.size(), true), seed_);
    for (std::uint32_t id = 0; id < tokens.size(); ++id) {
      const std::string& token = tokens[id];
      merged_ids_.push_back(id);
      for (std::size_t cut = 1; cut < token.size(); ++cut) {
        const std::uint32_t left = all.Find(token.data(), cut, token.size());
        if (left == kNoId) continue;
        const std::size_t rest = token.size() - cut;
        const std::uint32_t right = all.Find(token.data() + cut, rest, rest);
        if (right == kNoId) continue;
        if (merges.size() == kMaxMerges) return TooManyMerges(name);
        merges.push_back({left, right, id});
        ranks.push_back(id);
      }
    }
  } else {
    if (vocabulary_.merges.size() > kMaxMerges) return TooManyMerges(name);
    for (const Merge& merge : vocabulary_.merges) {
      ranks.push_back(static_cast<std::uint32_t>(merged_ids_.size()));
      merged_ids_.push_back(merge.merged);
    }
    merges = vocabulary_.merges;
  }
  std::size_t duplicate = 0;
  if (!pairs_.Build(merges, ranks, seed_, &duplicate)) {
    return Status::InvalidArgument(name + ": merge " + std::to_string(duplicate) + " of " +
                                   Quoted(tokens[merges[duplicate].left]) + " and " +
                                   Quoted(tokens[merges[duplicate].right]) +
                                   " is listed twice; remove one, or get the file again");
  }
  byte_pair_ranks_.resize(std::size_t{256} * 256);
  for (std::size_t pair = 0; pair < byte_pair_ranks_.size(); ++pair) {
    byte_pair_ranks_[pair] = pairs_.Find(byte_ids_[pair >> 8], byte_ids_[pair & 255]);
  }
  return Status::Ok();
}

void Bpe::BuildWholeWords() {
  const std::vector<std::string>& tokens = vocabulary_.tokens;
  std::vector<bool> included(tokens.size(), false);
  std::vector<std::uint32_t> ids;
  for (std::uint32_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    included[id] = vocabulary_.whole_words_first;
    if (included[id]) continue;
    // Without that rule a token may stand for a word only where merging gives just it.
    ids.clear();
    MergeWord(tokens[id].data(), tokens[id].size(), &ids);
    included[id] = ids.size() == 1 && ids[0] == id;
  }
  whole_words_ = WordTable(tokens, included, seed_);
}

void Bpe::MergeWord(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const {
  if (bytes <= kShortWordBytes) {
    std::uint32_t parts[kShortWordBytes];
    ids->insert(ids->end(), parts, parts + MergeShortWord(word, bytes, parts));
  } else if (bytes < 0xFFFFFFFF) {
    MergeLongWord<std::uint32_t>(word, bytes, ids);
  } else {
    MergeLongWord<std::uint64_t>(word, bytes, ids);
  }
}

std::size_t Bpe::MergeShortWord(const char* word, std::size_t bytes, std::uint32_t* parts) const {
  // Part i is parts[i], its merge with part i + 1 has rank ranks[i].
  std::uint32_t ranks[kShortWordBytes];
  std::size_t count = bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto left = static_cast<unsigned char>(word[i]);
    parts[i] = byte_ids_[left];
    ranks[i] = i + 1 < count
                   ? byte_pair_ranks_[left * 256U + static_cast<unsigned char>(word[i + 1])]
                   : kNoId;
  }
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoId) break;
    parts[best] = merged_ids_[ranks[best]];
    --count;
    std::memmove(parts + best + 1, parts + best + 2, (count - best - 1) * sizeof(parts[0]));
    std::memmove(ranks + best, ranks + best + 1, (count - best) * sizeof(ranks[0]));
    ranks[best] = best + 1 < count ? pairs_.Find(parts[best], parts[best + 1]) : kNoId;
    if (best > 0) ranks[best - 1] = pairs_.Find(parts[best - 1], parts[best]);
  }
  return count;
}

template <typename Index>
void Bpe::MergeLongWord(const char* word, std::size_t bytes,
                        std::vector<std::uint32_t>* ids) const {
  struct Part {
    Index previous;
    Index next;  // `bytes` for the last
    std::uint32_t id;
    std::uint32_t rank;  // of the merge with the next part
  };
  constexpr int kPositionBits = 40;  // a rank has 24
  const auto key = [](std::uint32_t rank, std::uint64_t position) {
    return (static_cast<std::uint64_t>(rank) << kPositionBits) | position;
  };
  std::vector<Part> parts(bytes);
  std::vector<std::uint64_t> candidates;
  candidates.reserve(bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const auto left = static_cast<unsigned char>(word[i]);
    const std::uint32_t rank =
        i + 1 < bytes ? byte_pair_ranks_[left * 256U + static_cast<unsigned char>(word[i + 1])]
                      : kNoId;
    parts[i] = {static_cast<Index>(i - 1), static_cast<Index>(i + 1), byte_ids_[left], rank};
    if (rank != kNoId) candidates.push_back(key(rank, i));
  }
  // Lowest rank first, then leftmost. An entry is stale when its part no longer has that rank.
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(
      std::greater<>(), std::move(candidates));
  while (!heap.empty()) {
    const std::uint64_t top = heap.top();
    heap.pop();
    const std::size_t at =
        static_cast<std::size_t>(top & ((std::uint64_t{1} << kPositionBits) - 1));
    const auto rank = static_cast<std::uint32_t>(top >> kPositionBits);
    Part& part = parts[at];
    if (part.rank != rank) continue;
    Part& gone = parts[part.next];
    part.id = merged_ids_[rank];
    part.next = gone.next;
    gone.rank = kNoId;
    part.rank = kNoId;
    if (part.next != bytes) {
      parts[part.next].previous = static_cast<Index>(at);
      part.rank = pairs_.Find(part.id, parts[part.next].id);
      if (part.rank != kNoId) heap.push(key(part.rank, at));
    }
    if (at != 0) {
      Part& before = parts[part.previous];
      before.rank = pairs_.Find(before.id, part.id);
      if (before.rank != kNoId) heap.push(key(before.rank, part.previous));
    }
  }
  for (std::size_t i = 0; i < bytes; i = parts[i].next) ids->push_back(parts[i].id);
}

template void Bpe::MergeLongWord<std::uint32_t>(const char*, std::size_t,
                                                std::vector<std::uint32_t>*) const;
template void Bpe::MergeLongWord<std::uint64_t>(const char*, std::size_t,
                                                std::vector<std::uint32_t>*) const;

}  // namespace widestream::internal
