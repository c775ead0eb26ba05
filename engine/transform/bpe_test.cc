#include "engine/transform/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/transform/long_merge.h"
#include "engine/transform/test_vocabulary.h"

namespace widestream::internal {
namespace {

using Ids = std::vector<std::uint32_t>;

std::unique_ptr<const Bpe> MakeByIdBpe(const std::vector<std::string>& more) {
  Vocabulary vocabulary;
  vocabulary.tokens = testing::ByteTokens(more);
  vocabulary.merge_by_id = true;
  vocabulary.whole_words_first = true;
  auto bpe = Bpe::Make(vocabulary, "test", BestIsa());
  EXPECT_TRUE(bpe.ok()) << bpe.status().ToString();
  return std::move(bpe).value();
}

// The definition: merge the neighbours of lowest id, leftmost first, until none merge.
Ids ReferenceMerge(const std::vector<std::string>& tokens, const std::string& word) {
  std::map<std::string, std::uint32_t> id_of;
  for (std::uint32_t id = 0; id < tokens.size(); ++id) id_of[tokens[id]] = id;
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    std::size_t best = parts.size();
    std::uint32_t best_id = kNoId;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = id_of.find(parts[i] + parts[i + 1]);
      if (found == id_of.end() || found->second >= best_id) continue;
      best = i;
      best_id = found->second;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(id_of[part]);
  return ids;
}

TEST(Bpe, LowestRankMergesFirstAndThenTheLeftmost) {
  const auto bpe = MakeByIdBpe({"bc", "ab", "aa", "aaa"});
  Ids ids;
  bpe->MergeWord("abc", 3, &ids);
  EXPECT_EQ(ids, (Ids{'a', 256}));
  ids.clear();
  bpe->MergeWord("aaaaa", 5, &ids);
  EXPECT_EQ(ids, (Ids{258, 259}));
}

TEST(Bpe, ATokenMayBeReachedByAnyOfItsCuts) {
  // "abc" has no listed pair: both a + bc and ab + c give it.
  const auto bpe = MakeByIdBpe({"bc", "ab", "abc"});
  Ids ids;
  bpe->MergeWord("abc", 3, &ids);
  EXPECT_EQ(ids, (Ids{258}));
}

RC_GTEST_PROP(Bpe, ShortAndLongMergingEqualTheDefinition, ()) {
  const auto letters = [](int longest) {
    return rc::gen::map(rc::gen::container<std::vector<char>>(rc::gen::element('a', 'b', 'c')),
                        [longest](std::vector<char> v) {
                          return std::string(v.begin(), v.begin() + std::min<std::ptrdiff_t>(
                                                                        longest, std::ssize(v)));
                        });
  };
  std::set<std::string> seen;
  std::vector<std::string> more;
  for (const std::string& token : *rc::gen::container<std::vector<std::string>>(letters(5))) {
    if (token.size() >= 2 && seen.insert(token).second) more.push_back(token);
  }
  const std::string word = *letters(64);
  if (word.empty()) return;
  const auto bpe = MakeByIdBpe(more);
  const Ids expected = ReferenceMerge(testing::ByteTokens(more), word);
  Ids by_short;
  Ids by_long;
  bpe->MergeWord(word.data(), word.size(), &by_short);
  bpe->MergeByHeap(word.data(), word.size(), &by_long);
  RC_ASSERT(by_short == expected);
  RC_ASSERT(by_long == expected);
}

TEST(Bpe, AWordOfAMillionLettersMergesWithoutQuadraticTime) {
  // Quadratic time would take hours, so finishing within the time limit of the test is the check.
  const auto bpe = MakeByIdBpe({"aa", "aaaa", "aaaaaaaa"});
  const std::string word(1'000'001, 'a');
  Ids ids;
  bpe->MergeWord(word.data(), word.size(), &ids);
  ASSERT_EQ(ids.size(), 125'001U);
  EXPECT_EQ(ids.front(), 258U);
  EXPECT_EQ(ids.back(), static_cast<std::uint32_t>('a'));
}

TEST(Bpe, WindowsAndChunksOfLongWordsEqualTheHeap) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> seen;
    std::vector<std::string> more;
    for (std::size_t i = 0, n = random() % 60; i < n; ++i) {
      std::string token;
      for (std::size_t k = 0, m = 2 + random() % 9; k < m; ++k) {
        token += static_cast<char>('a' + random() % 2);
      }
      if (seen.insert(token).second) more.push_back(token);
    }
    const auto bpe = MakeByIdBpe(more);
    LongMerge long_merge;
    std::vector<std::string> words;
    for (int i = 0; i < 4; ++i) {
      std::string word(33 + random() % 400, 'a');
      if (round % 3 != 0) {
        for (char& c : word) c = static_cast<char>('a' + random() % 2);
      }
      if (long_merge.Add(word.data(), word.size())) words.push_back(word);
    }
    // The words move when the vector grows.
    long_merge.Clear();
    for (const std::string& word : words) ASSERT_TRUE(long_merge.Add(word.data(), word.size()));
    long_merge.Run(*bpe);
    for (std::size_t i = 0; i < words.size(); ++i) {
      Ids by_heap;
      bpe->MergeByHeap(words[i].data(), words[i].size(), &by_heap);
      Ids by_windows;
      bpe->MergeWord(words[i].data(), words[i].size(), &by_windows);
      ASSERT_EQ(by_windows, by_heap);
      const auto ids = long_merge.Ids(i);
      if (!ids.empty()) {
        ASSERT_EQ(Ids(ids.begin(), ids.end()), by_heap);
      }
    }
  }
}

TEST(FindToken, FindsTokensOfEveryLengthWhateverFollows) {
  std::vector<std::string> more;
  for (std::size_t bytes = 2; bytes <= 40; ++bytes) more.emplace_back(bytes, 'x');
  const auto bpe = MakeByIdBpe(more);
  const auto find = [&bpe](const std::string& word) {
    return bpe->FindToken(word.data(), word.size(), bpe->HashOf(word.data(), word.size()));
  };
  for (std::size_t bytes = 2; bytes <= 40; ++bytes) {
    EXPECT_EQ(find(std::string(bytes, 'x')), static_cast<std::uint32_t>(254 + bytes));
  }
  EXPECT_EQ(find(std::string(41, 'x')), kNoId);
  EXPECT_EQ(find("xy"), kNoId);
  // A zero byte is a byte like any other, not padding.
  EXPECT_EQ(find(std::string("x\0", 2)), kNoId);
}

}  // namespace
}  // namespace widestream::internal
