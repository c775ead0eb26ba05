// Merges words that are too long for one vector, several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/transform/bpe.h"

namespace widestream::internal {

// A word is cut into chunks that merge alone, all at once; then the tokens on both sides of each
// cut merge again, all at once. If the outermost of those come out as they were, every two
// neighbours are what merging gives for them, and so the whole is (see Bpe::MergeByWindows); if
// not, there is no result and the word takes the slower way. Not thread-safe; memory is bounded.
class LongMerge {
 public:
  static constexpr std::size_t kChunkBytes = 32;
  static constexpr std::size_t kMostChunks = 512;  // of all words together
  static constexpr std::size_t kMostBytes = 2048;

  void Clear();
  // False when there is no room for it now; then it is not added. bytes > kChunkBytes.
  bool Add(const char* word, std::size_t bytes);
  void Run(const Bpe& bpe);
  // Of the word that was added as number `index`; empty when this way has no result.
  std::span<const std::uint32_t> Ids(std::size_t index) const {
    return {ids_.data() + words_[index].ids_begin, words_[index].ids_count};
  }

 private:
  struct Word {
    std::size_t first_chunk;
    std::size_t chunk_count;
    std::size_t ids_begin;
    std::size_t ids_count;
  };
  // The tokens around the cut before a chunk.
  struct Seam {
    std::uint32_t before;  // tokens of the chunk before
    std::uint32_t behind;
  };

  std::vector<Word> words_;
  std::vector<Bpe::ShortWord> chunks_;
  std::vector<Bpe::ShortWord> seams_;  // one before each chunk; of size 0 before a first one
  std::vector<Seam> seam_tokens_;
  std::vector<Bpe::ShortWord> jobs_;
  std::vector<std::uint32_t> chunk_ids_;
  std::vector<std::uint32_t> seam_ids_;
  std::vector<std::uint32_t> ids_;
};

}  // namespace widestream::internal
