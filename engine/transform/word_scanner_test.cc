#include "engine/transform/word_scanner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace widestream::internal {
namespace {

std::vector<std::uint32_t> Scalar(Pattern pattern, std::string_view text) {
  std::vector<std::uint32_t> ends;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  for (const char* p = begin; p != end;) {
    p = WordEnd(pattern, p, end);
    ends.push_back(static_cast<std::uint32_t>(p - begin));
  }
  return ends;
}

// `text` is in a buffer of exactly its size, so that a sanitizer sees reading past it.
std::vector<std::uint32_t> Scanned(Pattern pattern, Isa isa, std::string_view text,
                                   std::size_t capacity) {
  const std::vector<char> exact(text.begin(), text.end());
  std::vector<std::uint32_t> ends;
  std::vector<std::uint32_t> some(capacity + kWordSlack);
  const ScanWordsFunction scan = ScanWordsFor(pattern, isa);
  const char* const begin = exact.data();
  const char* const end = begin + exact.size();
  for (const char* p = begin; p != end;) {
    const std::size_t count = scan(p, end, some.data(), capacity);
    EXPECT_GT(count, 0U);
    if (count == 0) break;
    const auto before = static_cast<std::uint32_t>(p - begin);
    for (std::size_t i = 0; i < count; ++i) ends.push_back(before + some[i]);
    p = begin + ends.back();
  }
  return ends;
}

const std::vector<std::string>& Parts() {
  static const std::vector<std::string> parts = {"a",
                                                 "b",
                                                 "the",
                                                 "S",
                                                 "HTML",
                                                 "Zx",
                                                 "'",
                                                 "'s",
                                                 "'S",
                                                 "'ll",
                                                 "'LL",
                                                 "'lx",
                                                 "'\xC5\xBF",
                                                 "'re",
                                                 "'VE",
                                                 " ",
                                                 "  ",
                                                 "   ",
                                                 "                    ",
                                                 "\t",
                                                 "\n",
                                                 "\r\n",
                                                 "\n\n",
                                                 " \n",
                                                 "\n ",
                                                 " \n ",
                                                 "1",
                                                 "12",
                                                 "1234567",
                                                 "!",
                                                 "..",
                                                 "(",
                                                 "/",
                                                 "//",
                                                 "/\n",
                                                 "//\n",
                                                 "\n/",
                                                 "=",
                                                 "$",
                                                 "_",
                                                 "\x01",
                                                 "\x7F",
                                                 "\xC3\xA9",
                                                 "\xC3\x89",
                                                 "\xD0\x9F\xD1\x80\xD0\xB8",
                                                 "\xC2\xB2",
                                                 "\xD9\xA3",
                                                 "\xE2\x85\xA7",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xC2\x85",
                                                 "\xE2\x80\x9C",
                                                 "\xE2\x80\x94",
                                                 "\xE4\xB8\xAD\xE6\x96\x87",
                                                 "\xE3\x82\xAB",
                                                 "\xE3\x83\xBB",
                                                 "\xCC\x81",
                                                 "\xE0\xA4\xA8\xE0\xA5\x8D",
                                                 "\xEF\xB8\x8F",
                                                 "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9",
                                                 "\xE2\x9D\xA4\xEF\xB8\x8F",
                                                 "\xC7\x85",
                                                 "\xCA\xB0",
                                                 "\x80",
                                                 "\xE2",
                                                 "\xE2\x82",
                                                 "\xED\xA0\x80",
                                                 "\xF4\x90\x80\x80",
                                                 "\xFF",
                                                 "\xEE\x80\x80"};
  return parts;
}

TEST(ScanWords, GivesTheWordsOfTheScalarScanner) {
  std::mt19937 random(20240601);
  for (int round = 0; round < 6000; ++round) {
    // Few kinds of parts in a text make long runs and rare neighbours likely.
    std::vector<std::string> kinds;
    const auto kind_count = 1 + random() % (round % 3 == 0 ? Parts().size() : 5);
    kinds.reserve(kind_count);
    for (std::size_t i = 0; i < kind_count; ++i)
      kinds.push_back(Parts()[random() % Parts().size()]);
    std::string text;
    for (std::size_t i = 0, n = random() % 120; i < n; ++i) text += kinds[random() % kinds.size()];
    for (int i = 0; i < kPatterns; ++i) {
      const auto pattern = static_cast<Pattern>(i);
      const std::vector<std::uint32_t> expected = Scalar(pattern, text);
      for (int isa = 0; isa <= static_cast<int>(BestIsa()); ++isa) {
        ASSERT_EQ(Scanned(pattern, static_cast<Isa>(isa), text, 64 + random() % 40), expected)
            << PatternName(pattern) << " " << IsaName(static_cast<Isa>(isa)) << " "
            << ::testing::PrintToString(text);
      }
    }
  }
}

}  // namespace
}  // namespace widestream::internal
