// Words cut into parts larger than bytes, so that fewer merges are left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/transform/bpe.h"

namespace widestream::internal {

// Merging a word begins with its bytes, of which the first merges make characters and frequent
// pairs of bytes. A character that is a token, or a pair of bytes, may begin merged where nothing
// can merge across its borders before: where each pair of tokens that takes a piece of it across a
// border ranks behind the last merge inside it. Which pairs can do that is told from the two bytes
// at the border alone, on the safe side. Since a merge ranks behind those that made its parts (in a
// vocabulary without that nothing begins merged), the merges that are left go as they would have
// gone.
//
// Immutable and thread-safe.
class FirstParts {
 public:
  explicit FirstParts(const Bpe& bpe);

  // Writes the ids that merging may begin with and returns their number, 0 when there are more
  // than `most`. `ids` has room for `most`; bytes > 0.
  std::uint32_t Split(const char* word, std::size_t bytes, std::uint32_t most,
                      std::uint32_t* ids) const;

 private:
  static constexpr std::uint32_t kNever = 0xFFFFFFFF;
  static constexpr std::size_t kBlocks = 0x10000 / 64;
  struct Whole {
    std::uint32_t id;
    std::uint32_t rank;  // of the last merge inside it; kNever: it begins as bytes
  };

  // The row is the byte before a border, the column the byte behind it.
  static std::size_t Border(unsigned before, unsigned behind) { return before * 256U + behind; }
  bool NoteBorders(const Bpe& bpe);
  void NoteCharacters(const Bpe& bpe);

  bool in_order_;  // every merge ranks behind those that made its parts
  const std::uint32_t* byte_ids_;
  std::vector<std::uint32_t> last_rank_;  // of the merges that make a token, while this is made
  // The least rank of a pair whose right side begins a character without ending it, and of one
  // whose left side ends a character without beginning it.
  std::vector<std::uint32_t> begun_;
  std::vector<std::uint32_t> ended_;
  // The same of pairs whose right side, or left side, is the single byte at the border.
  std::vector<std::uint32_t> begun_byte_;
  std::vector<std::uint32_t> ended_byte_;
  const std::uint32_t* byte_pairs_;
  const std::uint32_t* merged_ids_;
  // Characters of two and three bytes that are tokens, by blocks of 64 code points; block 0 has
  // none.
  std::vector<std::uint16_t> block_of_;
  std::vector<Whole> whole_;
};

}  // namespace widestream::internal
