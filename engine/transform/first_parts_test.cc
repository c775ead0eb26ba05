#include "engine/transform/first_parts.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/transform/test_vocabulary.h"

namespace widestream::internal {
namespace {

using Ids = std::vector<std::uint32_t>;

std::unique_ptr<const Bpe> MakeBpe(const std::vector<std::string>& more) {
  Vocabulary vocabulary;
  vocabulary.tokens = testing::ByteTokens(more);
  vocabulary.merge_by_id = true;
  vocabulary.whole_words_first = true;
  auto bpe = Bpe::Make(vocabulary, "test", BestIsa());
  EXPECT_TRUE(bpe.ok()) << bpe.status().ToString();
  return std::move(bpe).value();
}

Ids Parts(const FirstParts& parts, const std::string& word) {
  Ids ids(Bpe::kShortWordBytes);
  ids.resize(parts.Split(word.data(), word.size(), Bpe::kShortWordBytes, ids.data()));
  return ids;
}

TEST(FirstParts, CharactersBeginWhole) {
  // U+306F is E3 81 AF, U+3044 is E3 81 84.
  const auto bpe = MakeBpe({"\xE3\x81", "\xE3\x81\xAF", "\xE3\x81\x84"});
  const FirstParts parts(*bpe);
  EXPECT_EQ(Parts(parts, "\xE3\x81\xAF\xE3\x81\x84"), (Ids{257, 258}));
}

TEST(FirstParts, APairAcrossTheBorderThatRanksFirstBreaksBoth) {
  const auto bpe = MakeBpe({"\xAF\xE3", "\xE3\x81", "\xE3\x81\xAF", "\xE3\x81\x84"});
  const FirstParts parts(*bpe);
  EXPECT_EQ(Parts(parts, "\xE3\x81\xAF\xE3\x81\x84"), (Ids{257, 256, 0x81, 0x84}));
}

TEST(FirstParts, OverlongFormsAreBytes) {
  const auto bpe = MakeBpe({"\xC3\xA9", "\xE0\x83", "\xE0\x83\xA9"});
  const FirstParts parts(*bpe);
  // A form of three bytes with the bits of U+00E9.
  EXPECT_EQ(Parts(parts, "\xE0\x83\xA9").size(), 2U);
}

TEST(FirstParts, MoreThanThereIsRoomForGivesNothing) {
  const auto bpe = MakeBpe({"zz"});
  const FirstParts parts(*bpe);
  EXPECT_TRUE(Parts(parts, std::string(65, 'a')).empty());
  EXPECT_EQ(Parts(parts, std::string(64, 'a')).size(), 64U);
}

// Any vocabulary of tokens that are made of two earlier ones, and any word of the same bytes.
RC_GTEST_PROP(FirstParts, MergingPartsGivesWhatMergingBytesGives, ()) {
  static const std::vector<std::string> units = {
      "a", "b", "c", "\xC3\xA9", "\xE3\x81\xAF", "\xE3\x81\x84", "\xE3", "\x81", "\xAF", "\xC3"};
  std::vector<std::string> tokens;
  std::vector<std::string> pool = {"a", "b", "c", "\xC3", "\xA9", "\xE3", "\x81", "\xAF", "\x84"};
  const int count = *rc::gen::inRange(0, 40);
  for (int i = 0; i < count; ++i) {
    const std::string token = *rc::gen::elementOf(pool) + *rc::gen::elementOf(pool);
    if (token.size() > 12 || std::find(pool.begin(), pool.end(), token) != pool.end()) continue;
    tokens.push_back(token);
    pool.push_back(token);
  }
  // Out of order there may be merges that rank before those of their parts.
  if (*rc::gen::inRange(0, 2) == 0) std::reverse(tokens.begin(), tokens.end());
  const auto bpe = MakeBpe(tokens);
  const FirstParts parts(*bpe);
  for (int i = 0; i < 20; ++i) {
    std::string word;
    const int length = *rc::gen::inRange(1, 20);
    for (int k = 0; k < length; ++k) word += *rc::gen::elementOf(units);
    Ids expected;
    bpe->MergeByHeap(word.data(), word.size(), &expected);
    Ids ids = Parts(parts, word);
    RC_ASSERT(!ids.empty());
    Bpe::ShortWord job{nullptr, static_cast<std::uint32_t>(ids.size()), 0, ids.data()};
    bpe->MergeShortWords(&job, 1);
    ids.resize(job.count);
    RC_ASSERT(ids == expected);
  }
}

}  // namespace
}  // namespace widestream::internal
