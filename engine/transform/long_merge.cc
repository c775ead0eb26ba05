#include "engine/transform/long_merge.h"

#include <algorithm>

#include "engine/transform/characters.h"

namespace widestream::internal {
namespace {

// Tokens on each side of a cut that merge again, and their bytes.
constexpr std::uint32_t kSeamTokens = 3;
constexpr std::size_t kSeamBytes = 16;

std::size_t StartOfCharacter(const char* word, std::size_t at) {
  std::size_t begin = at;
  while (begin > 0 && at - begin < 3 && IsContinuation(word[begin])) --begin;
  return begin;
}

}  // namespace

void LongMerge::Clear() {
  words_.clear();
  chunks_.clear();
  ids_.clear();
}

bool LongMerge::Add(const char* word, std::size_t bytes) {
  // Cuts are moved to the start of a character, three bytes at most.
  constexpr std::size_t kShifted = 3;
  const std::size_t count = (bytes + kChunkBytes - kShifted - 1) / (kChunkBytes - kShifted);
  if (chunks_.size() + count > kMostChunks) return false;
  words_.push_back({chunks_.size(), count, 0, 0});
  for (std::size_t i = 0; i < count; ++i) {
    // Of equal lengths, so that none is too short to have tokens on both sides.
    const std::size_t begin = StartOfCharacter(word, bytes * i / count);
    const std::size_t end =
        i + 1 == count ? bytes : StartOfCharacter(word, bytes * (i + 1) / count);
    chunks_.push_back({word + begin, static_cast<std::uint32_t>(end - begin), 0, nullptr});
  }
  return true;
}

void LongMerge::Run(const Bpe& bpe) {
  if (words_.empty()) return;
  chunk_ids_.resize(chunks_.size() * kChunkBytes);
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    chunks_[i].ids = chunk_ids_.data() + i * kChunkBytes;
  }
  bpe.MergeShortWords(chunks_.data(), chunks_.size());

  seams_.assign(chunks_.size(), {});
  seam_tokens_.assign(chunks_.size(), {});
  seam_ids_.resize(chunks_.size() * Bpe::kShortWordBytes);
  jobs_.clear();
  for (const Word& word : words_) {
    for (std::size_t i = word.first_chunk + 1; i < word.first_chunk + word.chunk_count; ++i) {
      const Bpe::ShortWord& before = chunks_[i - 1];
      const Bpe::ShortWord& behind = chunks_[i];
      Seam& seam = seam_tokens_[i];
      std::size_t bytes_before = 0;
      std::size_t bytes_behind = 0;
      const auto more = [&](std::uint32_t taken, std::size_t bytes, const Bpe::ShortWord& chunk,
                            std::uint32_t at) {
        if (taken == 0) return true;
        return taken < kSeamTokens && taken < chunk.count &&
               bytes + bpe.TokenBytes(chunk.ids[at]).size() <= kSeamBytes;
      };
      while (more(seam.before, bytes_before, before, before.count - 1 - seam.before)) {
        bytes_before += bpe.TokenBytes(before.ids[before.count - 1 - seam.before]).size();
        ++seam.before;
      }
      while (more(seam.behind, bytes_behind, behind, seam.behind)) {
        bytes_behind += bpe.TokenBytes(behind.ids[seam.behind]).size();
        ++seam.behind;
      }
      seams_[i] = {behind.bytes - bytes_before,
                   static_cast<std::uint32_t>(bytes_before + bytes_behind), 0,
                   seam_ids_.data() + i * Bpe::kShortWordBytes};
      jobs_.push_back(seams_[i]);
    }
  }
  bpe.MergeShortWords(jobs_.data(), jobs_.size());
  std::size_t job = 0;
  for (Bpe::ShortWord& seam : seams_) {
    if (seam.size != 0) seam.count = jobs_[job++].count;
  }

  for (Word& word : words_) {
    word.ids_begin = ids_.size();
    bool sure = true;
    std::uint32_t used = 0;  // tokens of the chunk that the seam before it has replaced
    for (std::size_t i = word.first_chunk; i < word.first_chunk + word.chunk_count; ++i) {
      const Bpe::ShortWord& chunk = chunks_[i];
      const bool last = i + 1 == word.first_chunk + word.chunk_count;
      const std::uint32_t kept = chunk.count - (last ? 0 : seam_tokens_[i + 1].before);
      // The two seams of a chunk may not touch the same token.
      sure = sure && used <= kept && chunk.count >= used;
      if (!sure) break;
      ids_.insert(ids_.end(), chunk.ids + used, chunk.ids + kept);
      if (last) break;
      const Bpe::ShortWord& seam = seams_[i + 1];
      const Bpe::ShortWord& next = chunks_[i + 1];
      used = seam_tokens_[i + 1].behind;
      sure = seam.ids[0] == chunk.ids[kept] && seam.ids[seam.count - 1] == next.ids[used - 1];
      // A token that both sides end with must not be the same one.
      sure = sure && seam.count >= 2;
      if (!sure) break;
      ids_.insert(ids_.end(), seam.ids, seam.ids + seam.count);
    }
    if (!sure) ids_.resize(word.ids_begin);
    word.ids_count = ids_.size() - word.ids_begin;
  }
}

}  // namespace widestream::internal
