#include "engine/transform/first_parts.h"

#include <algorithm>
#include <string_view>

#include "engine/transform/characters.h"

namespace widestream::internal {
namespace {

// The bytes of a character by its first byte; 1 where none of several bytes begins so.
unsigned CharacterBytes(unsigned char first) {
  if (first < 0xC2 || first > 0xF4) return 1;
  return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

bool BeginsCharacter(std::string_view token) {
  return token.size() < CharacterBytes(static_cast<unsigned char>(token[0])) &&
         std::all_of(token.begin() + 1, token.end(), IsContinuation);
}

bool EndsCharacter(std::string_view token) {
  return std::all_of(token.begin(), token.end(), IsContinuation);
}

// Of a form of two or three bytes, not checked.
std::uint32_t CodePoint(const char* p, unsigned bytes) {
  const auto low = [p](unsigned i) { return static_cast<unsigned char>(p[i]) & 0x3FU; };
  const auto first = static_cast<unsigned char>(*p);
  if (bytes == 2) return ((first & 0x1FU) << 6) | low(1);
  return ((first & 0x0FU) << 12) | (low(1) << 6) | low(2);
}

template <typename Visit>
void ForEachPair(const Bpe& bpe, const Visit& visit) {
  constexpr std::uint32_t kIdMask = (1U << PairTable::kIdBits) - 1;
  const PairTable& pairs = bpe.Pairs();
  for (std::uint32_t line = 0; line < pairs.LineCount(); ++line) {
    for (const std::uint64_t entry : pairs.Lines()[line].entries) {
      if (entry == PairTable::kEmpty) continue;
      const auto rank = static_cast<std::uint32_t>(entry & ((1U << PairTable::kRankBits) - 1));
      const std::uint64_t pair = entry >> PairTable::kRankBits;
      visit(static_cast<std::uint32_t>(pair >> PairTable::kIdBits),
            static_cast<std::uint32_t>(pair & kIdMask), rank,
            bpe.MergedIds() != nullptr ? bpe.MergedIds()[rank] : rank);
    }
  }
}

}  // namespace

FirstParts::FirstParts(const Bpe& bpe)
    : in_order_(false),
      byte_ids_(bpe.ByteIds()),
      begun_(std::size_t{256} * 256, kNever),
      ended_(std::size_t{256} * 256, kNever),
      begun_byte_(std::size_t{256} * 256, kNever),
      ended_byte_(std::size_t{256} * 256, kNever),
      byte_pairs_(bpe.BytePairRanks()),
      merged_ids_(bpe.MergedIds()),
      block_of_(kBlocks, 0),
      whole_(64, Whole{0, kNever}) {
  in_order_ = NoteBorders(bpe);
  if (in_order_) NoteCharacters(bpe);
  last_rank_ = {};
}

// False when some merge ranks before one that makes its parts.
bool FirstParts::NoteBorders(const Bpe& bpe) {
  last_rank_.assign(bpe.TokenCount(), kNever);
  ForEachPair(bpe, [&](std::uint32_t, std::uint32_t, std::uint32_t rank, std::uint32_t merged) {
    std::uint32_t& last = last_rank_[merged];
    if (last == kNever || last < rank) last = rank;
  });
  bool in_order = true;
  ForEachPair(bpe, [&](std::uint32_t left, std::uint32_t right, std::uint32_t rank, std::uint32_t) {
    for (const std::uint32_t part : {left, right}) {
      in_order = in_order && (last_rank_[part] == kNever || last_rank_[part] < rank);
    }
    const std::string_view a = bpe.TokenBytes(left);
    const std::string_view b = bpe.TokenBytes(right);
    const std::size_t border =
        Border(static_cast<unsigned char>(a.back()), static_cast<unsigned char>(b.front()));
    if (BeginsCharacter(b)) begun_[border] = std::min(begun_[border], rank);
    if (EndsCharacter(a)) ended_[border] = std::min(ended_[border], rank);
    if (b.size() == 1) begun_byte_[border] = std::min(begun_byte_[border], rank);
    if (a.size() == 1) ended_byte_[border] = std::min(ended_byte_[border], rank);
  });
  return in_order;
}

void FirstParts::NoteCharacters(const Bpe& bpe) {
  std::vector<std::uint32_t> ids;
  for (std::uint32_t id = 0; id < bpe.TokenCount(); ++id) {
    if (last_rank_[id] == kNever) continue;
    const std::string_view token = bpe.TokenBytes(id);
    if (token.size() < 2 || token.size() > 3) continue;
    if (CharacterBytes(static_cast<unsigned char>(token[0])) != token.size()) continue;
    if (!EndsCharacter(token.substr(1))) continue;
    ids.clear();
    bpe.MergeWord(token.data(), token.size(), &ids);
    if (ids.size() != 1 || ids[0] != id) continue;
    const std::uint32_t code_point = CodePoint(token.data(), static_cast<unsigned>(token.size()));
    // Overlong forms would take the place of another character.
    if (code_point < (token.size() == 2 ? 0x80U : 0x800U)) continue;
    std::uint16_t& block = block_of_[code_point / 64];
    if (block == 0) {
      block = static_cast<std::uint16_t>(whole_.size() / 64);
      whole_.resize(whole_.size() + 64, Whole{0, kNever});
    }
    whole_[std::size_t{block} * 64 + code_point % 64] = {id, last_rank_[id]};
  }
}

std::uint32_t FirstParts::Split(const char* word, std::size_t bytes, std::uint32_t most,
                                std::uint32_t* ids) const {
  const auto byte = [word](std::size_t i) { return static_cast<unsigned char>(word[i]); };
  std::uint32_t count = 0;
  for (std::size_t i = 0; i < bytes;) {
    if (count == most) return 0;
    const unsigned char first = byte(i);
    const unsigned size = CharacterBytes(first);
    if ((size == 2 || size == 3) && size <= bytes - i && IsContinuation(word[i + 1]) &&
        IsContinuation(word[i + size - 1])) {
      const std::uint32_t code_point = CodePoint(word + i, size);
      const Whole& whole = whole_[std::size_t{block_of_[code_point / 64]} * 64 + code_point % 64];
      const std::size_t end = i + size;
      // An overlong form of three bytes is not the character that its bits name.
      if (whole.rank != kNever && (size == 2 || code_point >= 0x800) &&
          (i == 0 || begun_[Border(byte(i - 1), first)] > whole.rank) &&
          (end == bytes || ended_[Border(byte(end - 1), byte(end))] > whole.rank)) {
        ids[count++] = whole.id;
        i = end;
        continue;
      }
    }
    if (in_order_ && i + 1 < bytes) {
      const std::uint32_t rank = byte_pairs_[Border(first, byte(i + 1))];
      const bool pair = rank != kNoId &&
                        (i == 0 || begun_byte_[Border(byte(i - 1), first)] > rank) &&
                        (i + 2 == bytes || ended_byte_[Border(byte(i + 1), byte(i + 2))] > rank);
      if (pair) {
        ids[count++] = merged_ids_ != nullptr ? merged_ids_[rank] : rank;
        i += 2;
        continue;
      }
    }
    ids[count++] = byte_ids_[first];
    ++i;
  }
  return count;
}

}  // namespace widestream::internal
