#include "engine/transform/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace widestream::internal {
namespace {

constexpr std::uint32_t kEmptyToken = 0xFFFFFFFF;
constexpr int kTagBits = 12;

// Half full, so that few lines overflow.
std::uint32_t LineCountFor(std::size_t entries, std::size_t line_entries) {
  return static_cast<std::uint32_t>(entries * 2 / line_entries + 1);
}

}  // namespace

PairTable::PairTable(std::size_t most_pairs, std::uint64_t seed)
    : seed_(seed), line_count_(LineCountFor(most_pairs, kLineEntries)), lines_(line_count_) {
  for (Line& line : lines_) std::fill(std::begin(line.entries), std::end(line.entries), kEmpty);
}

bool PairTable::Insert(std::uint32_t left, std::uint32_t right, std::uint32_t rank) {
  const std::uint64_t pair = Pair(left, right);
  for (std::uint32_t line = LineOf(Hash(pair), line_count_);; line = Next(line)) {
    for (std::uint64_t& entry : lines_[line].entries) {
      if (entry == kEmpty) {
        entry = (pair << kRankBits) | rank;
        return true;
      }
      if (entry >> kRankBits == pair) return false;
    }
  }
}

Result<std::unique_ptr<const Bpe>> Bpe::Make(const Vocabulary& vocabulary, const std::string& name,
                                             Isa isa) {
  static_assert(kMaxTokens < PairTable::kNeverId - 1 && kMaxTokens < (1U << (32 - kTagBits)) - 1);
  static_assert(kMaxMerges <= (std::size_t{1} << PairTable::kRankBits));
  std::unique_ptr<Bpe> bpe(new Bpe);
  bpe->merge_short_ = MergeShortFor(isa);
  bpe->whole_words_first_ = vocabulary.whole_words_first;
  const std::vector<std::string>& tokens = vocabulary.tokens;
  XXH64_hash_t seed = 0;
  std::size_t total_bytes = 0;
  for (const std::string& token : tokens) total_bytes += token.size();
  bpe->token_bytes_.reserve(total_bytes + kReadableAfterToken);
  bpe->token_ends_.reserve(tokens.size() + 1);
  bpe->token_ends_.push_back(0);
  for (const std::string& token : tokens) {
    if (token.size() == 1) {
      const std::size_t id = static_cast<std::size_t>(&token - tokens.data());
      bpe->byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<std::uint32_t>(id);
    }
    bpe->token_bytes_.insert(bpe->token_bytes_.end(), token.begin(), token.end());
    bpe->token_ends_.push_back(static_cast<std::uint32_t>(bpe->token_bytes_.size()));
  }
  seed = XXH3_64bits(bpe->token_bytes_.data(), bpe->token_bytes_.size());
  bpe->token_bytes_.resize(total_bytes + kReadableAfterToken);
  bpe->seed_ = seed;
  bpe->BuildTokens();
  bpe->byte_pair_ranks_.assign(std::size_t{256} * 256, kNoId);
  if (vocabulary.merge_by_id) {
    bpe->BuildPairsById();
  } else {
    WS_RETURN_IF_ERROR(bpe->BuildPairs(vocabulary.merges, name));
  }
  if (!bpe->whole_words_first_) {
    bpe->reachable_ = std::make_unique<std::atomic<std::uint8_t>[]>(tokens.size());
  }
  return std::unique_ptr<const Bpe>(std::move(bpe));
}

void Bpe::BuildTokens() {
  token_line_count_ = LineCountFor(TokenCount(), std::size(TokenLine{}.entries));
  token_lines_ = LargeArray<TokenLine>(token_line_count_);
  for (TokenLine& line : token_lines_) {
    std::fill(std::begin(line.entries), std::end(line.entries), kEmptyToken);
  }
  for (std::uint32_t id = 0; id < TokenCount(); ++id) {
    const std::string_view token = TokenBytes(id);
    if (token.empty()) continue;
    longest_token_ = std::max(longest_token_, token.size());
    const std::uint64_t hash = HashOf(token.data(), token.size());
    std::uint32_t line = LineOf(hash, token_line_count_);
    while (token_lines_[line].entries[15] != kEmptyToken) line = NextLine(line);
    std::uint32_t* entry = token_lines_[line].entries;
    while (*entry != kEmptyToken) ++entry;
    *entry = (static_cast<std::uint32_t>(hash) << (32 - kTagBits)) | id;
  }
}

std::uint32_t Bpe::FindToken(const char* word, std::size_t bytes, std::uint64_t hash) const {
  const std::uint32_t tag = static_cast<std::uint32_t>(hash) << (32 - kTagBits);
  for (std::uint32_t line = LineOf(hash, token_line_count_);; line = NextLine(line)) {
    for (const std::uint32_t entry : token_lines_[line].entries) {
      if (((entry ^ tag) >> (32 - kTagBits)) != 0) continue;
      const std::uint32_t id = entry & ((1U << (32 - kTagBits)) - 1);
      if (id >= TokenCount()) return kNoId;  // an empty entry
      const std::string_view token = TokenBytes(id);
      if (token.size() == bytes && std::memcmp(token.data(), word, bytes) == 0) return id;
    }
    if (token_lines_[line].entries[15] == kEmptyToken) return kNoId;
  }
}

Status Bpe::BuildPairs(const std::vector<Merge>& merges, const std::string& name) {
  if (merges.size() > kMaxMerges) {
    return Status::ResourceExhausted(
        name + ": " + std::to_string(merges.size()) + " merges, more than the limit of " +
        std::to_string(kMaxMerges) +
        "; the largest published vocabularies stay well below, so this file is probably damaged");
  }
  pairs_ = PairTable(merges.size(), seed_);
  merged_ids_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    if (!pairs_.Insert(merge.left, merge.right, static_cast<std::uint32_t>(rank))) {
      return Status::InvalidArgument(name + ": merge " + std::to_string(rank) + " of " +
                                     Quoted(TokenBytes(merge.left)) + " and " +
                                     Quoted(TokenBytes(merge.right)) +
                                     " is listed twice; remove one, or get the file again");
    }
    NoteBytePair(merge.left, merge.right, static_cast<std::uint32_t>(rank));
    merged_ids_.push_back(merge.merged);
  }
  return Status::Ok();
}

// Any two neighbours that together are a token merge. But of the many ways to cut a token only one
// can ever come up: until its two parts merge, nothing merged across its ends, so inside them
// everything went as it would for the token alone. So it is enough to merge each token alone, the
// short ones first, and to note the last two parts.
void Bpe::BuildPairsById() {
  pairs_ = PairTable(TokenCount(), seed_);
  std::size_t longest = 0;
  for (std::uint32_t id = 0; id < TokenCount(); ++id) {
    longest = std::max(longest, TokenBytes(id).size());
  }
  std::vector<std::uint32_t> begins(longest + 2, 0);
  for (std::uint32_t id = 0; id < TokenCount(); ++id) ++begins[TokenBytes(id).size() + 1];
  for (std::size_t i = 1; i < begins.size(); ++i) begins[i] += begins[i - 1];
  std::vector<std::uint32_t> by_length(TokenCount());
  for (std::uint32_t id = 0; id < TokenCount(); ++id) {
    by_length[begins[TokenBytes(id).size()]++] = id;
  }
  std::vector<std::uint32_t> parts;
  for (const std::uint32_t id : by_length) {
    const std::string_view token = TokenBytes(id);
    if (token.size() < 2) continue;
    parts.clear();
    MergeWord(token.data(), token.size(), &parts);
    if (parts.size() != 2) continue;
    pairs_.Insert(parts[0], parts[1], id);
    NoteBytePair(parts[0], parts[1], id);
  }
}

void Bpe::NoteBytePair(std::uint32_t left, std::uint32_t right, std::uint32_t rank) {
  const std::string_view a = TokenBytes(left);
  const std::string_view b = TokenBytes(right);
  if (a.size() != 1 || b.size() != 1) return;
  byte_pair_ranks_[static_cast<unsigned char>(a[0]) * 256U + static_cast<unsigned char>(b[0])] =
      rank;
}

bool Bpe::IsReachable(std::uint32_t id) const {
  constexpr std::uint8_t kYes = 1;
  constexpr std::uint8_t kNo = 2;
  // Threads may find out at once; they find the same.
  std::uint8_t known = reachable_[id].load(std::memory_order_relaxed);
  if (known == 0) {
    const std::string_view token = TokenBytes(id);
    std::vector<std::uint32_t> ids;
    MergeWord(token.data(), token.size(), &ids);
    known = ids.size() == 1 && ids[0] == id ? kYes : kNo;
    reachable_[id].store(known, std::memory_order_relaxed);
  }
  return known == kYes;
}

void Bpe::MergeWord(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const {
  if (bytes > kShortWordBytes) return MergeByWindows(word, bytes, ids);
  std::uint32_t parts[kShortWordBytes];
  ShortWord short_word{word, static_cast<std::uint32_t>(bytes), 0, parts};
  MergeShortWords(&short_word, 1);
  ids->insert(ids->end(), parts, parts + short_word.count);
}

bool Bpe::IsValidPair(std::uint32_t left, std::uint32_t right) const {
  const std::string both = std::string(TokenBytes(left)) + std::string(TokenBytes(right));
  std::vector<std::uint32_t> ids;
  if (both.size() <= kShortWordBytes) {
    MergeWord(both.data(), both.size(), &ids);
  } else {
    MergeByHeap(both.data(), both.size(), &ids);
  }
  return ids.size() == 2 && ids[0] == left && ids[1] == right;
}

// A row of tokens is what merging gives for their bytes if it is so for each two neighbours alone:
// the first merge across a border would also happen with only these two. And it is so for two
// neighbours in any such row. So windows of the word are merged alone; the last two tokens of each,
// which its end may have spoilt, begin the next; and where the next begins with another token than
// expected, the two at the border are tested and, if need be, the window begins earlier.
void Bpe::MergeByWindows(const char* word, std::size_t bytes,
                         std::vector<std::uint32_t>* ids) const {
  constexpr std::size_t kLeftOver = 2;
  // Going back further than this happens for no known vocabulary.
  constexpr std::size_t kMostRetreat = 1 << 16;
  const std::size_t before = ids->size();
  std::size_t at = 0;
  std::size_t window = kShortWordBytes;
  std::size_t retreat = 1;
  std::uint32_t expected = kNoId;
  std::vector<std::uint32_t> part;
  while (true) {
    const std::size_t size = std::min(window, bytes - at);
    part.clear();
    if (size <= kShortWordBytes) {
      MergeWord(word + at, size, &part);
    } else {
      MergeByHeap(word + at, size, &part);
    }
    if (ids->size() != before && part[0] != expected && !IsValidPair(ids->back(), part[0])) {
      if (retreat > kMostRetreat && bytes <= 0xFFFFFFFE) {
        ids->resize(before);
        return MergeByHeap(word, bytes, ids);
      }
      for (std::size_t i = 0; i < retreat && ids->size() != before; ++i) {
        expected = ids->back();
        ids->pop_back();
        at -= TokenBytes(expected).size();
        window += TokenBytes(expected).size();
      }
      retreat *= 2;
      continue;
    }
    retreat = 1;
    if (at + size == bytes) {
      ids->insert(ids->end(), part.begin(), part.end());
      return;
    }
    if (part.size() <= kLeftOver) {
      window *= 2;
      continue;
    }
    const std::size_t kept = part.size() - kLeftOver;
    for (std::size_t i = 0; i < kept; ++i) at += TokenBytes(part[i]).size();
    ids->insert(ids->end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(kept));
    expected = part[kept];
    if (part.size() >= 8) window = kShortWordBytes;
  }
}

void Bpe::MergeByHeap(const char* word, std::size_t bytes, std::vector<std::uint32_t>* ids) const {
  struct Part {
    std::uint32_t previous;
    std::uint32_t next;  // `bytes` for the last
    std::uint32_t id;
    std::uint32_t rank;  // of the merge with the next part
  };
  const auto key = [](std::uint32_t rank, std::uint32_t position) {
    return (static_cast<std::uint64_t>(rank) << 32) | position;
  };
  const auto size = static_cast<std::uint32_t>(bytes);
  std::vector<Part> parts(bytes);
  std::vector<std::uint64_t> candidates;
  candidates.reserve(bytes);
  for (std::uint32_t i = 0; i < size; ++i) {
    const auto left = static_cast<unsigned char>(word[i]);
    const std::uint32_t rank =
        i + 1 < size ? byte_pair_ranks_[left * 256U + static_cast<unsigned char>(word[i + 1])]
                     : kNoId;
    parts[i] = {i - 1, i + 1, byte_ids_[left], rank};
    if (rank != kNoId) candidates.push_back(key(rank, i));
  }
  // Lowest rank first, then leftmost. An entry is stale when its part no longer has that rank.
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> heap(
      std::greater<>(), std::move(candidates));
  while (!heap.empty()) {
    const std::uint64_t top = heap.top();
    heap.pop();
    const auto at = static_cast<std::uint32_t>(top);
    const auto rank = static_cast<std::uint32_t>(top >> 32);
    Part& part = parts[at];
    if (part.rank != rank) continue;
    Part& gone = parts[part.next];
    part.id = merged_ids_.empty() ? rank : merged_ids_[rank];
    part.next = gone.next;
    gone.rank = kNoId;
    part.rank = kNoId;
    if (part.next != size) {
      parts[part.next].previous = at;
      part.rank = pairs_.Find(part.id, parts[part.next].id);
      if (part.rank != kNoId) heap.push(key(part.rank, at));
    }
    if (at != 0) {
      Part& ahead = parts[part.previous];
      ahead.rank = pairs_.Find(ahead.id, part.id);
      if (ahead.rank != kNoId) heap.push(key(ahead.rank, part.previous));
    }
  }
  for (std::uint32_t i = 0; i < size; i = parts[i].next) ids->push_back(parts[i].id);
}

}  // namespace widestream::internal
