#include "engine/transform/pretokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "engine/transform/unicode_tables.h"

namespace widestream::internal {
namespace {

using Words = std::vector<std::string>;

Words Cut(std::string_view text, Pattern pattern) {
  Words words;
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p != end) {
    const char* const stop = WordEnd(pattern, p, end);
    words.emplace_back(p, stop);
    if (stop <= p || stop > end) break;
    p = stop;
  }
  return words;
}
Words Gpt2(std::string_view text) { return Cut(text, Pattern::kGpt2); }
Words Cl100k(std::string_view text) { return Cut(text, Pattern::kCl100k); }
Words LineEnd(std::string_view text) { return Cut(text, Pattern::kCl100kLineEnd); }

TEST(UnicodeTables, ClassesAreThoseOfUnicode16) {
  EXPECT_STREQ(kUnicodeVersion, "16.0");
  EXPECT_EQ(ClassOfCodePoint('a'), CharacterClass::kLower);
  EXPECT_EQ(ClassOfCodePoint(0x1C89), CharacterClass::kUpper);  // new in 16.0
  EXPECT_EQ(ClassOfCodePoint(0xA7CE), CharacterClass::kOther);  // new in 17.0
  EXPECT_EQ(ClassOfCodePoint(0xB2), CharacterClass::kNumber);
  EXPECT_EQ(ClassOfCodePoint(0x85), CharacterClass::kSpace);
  EXPECT_EQ(ClassOfCodePoint(0x3000), CharacterClass::kSpace);
  EXPECT_EQ(ClassOfCodePoint(0x200B), CharacterClass::kOther);
  EXPECT_EQ(ClassOfCodePoint(0x301), CharacterClass::kMark);  // a mark is no letter
  EXPECT_EQ(ClassOfCodePoint(0x10FFFF), CharacterClass::kOther);
}

TEST(Gpt2Words, CutLikeTheRegex) {
  EXPECT_EQ(Gpt2("Hello world's 123abc"), (Words{"Hello", " world", "'s", " 123", "abc"}));
  EXPECT_EQ(Gpt2("I'll we've 'ReX'RE"), (Words{"I", "'ll", " we", "'ve", " '", "ReX", "'", "RE"}));
  EXPECT_EQ(Gpt2("a  b\n\n c \t"), (Words{"a", " ", " b", "\n\n", " c", " \t"}));
  EXPECT_EQ(Gpt2("\n\nx"), (Words{"\n", "\n", "x"}));
  EXPECT_EQ(Gpt2("a\xC2\xA0 b"), (Words{"a", "\xC2\xA0", " b"}));
  EXPECT_EQ(Gpt2("!?.. \"x"), (Words{"!?..", " \"", "x"}));
  EXPECT_EQ(Gpt2("'"), (Words{"'"}));
  EXPECT_EQ(Gpt2("'l"), (Words{"'", "l"}));
  EXPECT_EQ(Gpt2(" "), (Words{" "}));
}

TEST(DeepSeek3Words, RunsOfHanAndKanaAreCutAtTheirSigns) {
  const auto cut = [](std::string_view text) { return Cut(text, Pattern::kDeepSeek3); };
  // Hiragana A, the double hyphen (Pd), the middle dot (Po), the voiced sound mark (Sk).
  EXPECT_EQ(cut("\xE3\x81\x82\xE3\x82\xA0"), (Words{"\xE3\x81\x82", "\xE3\x82\xA0"}));
  EXPECT_EQ(cut("\xE3\x81\x82\xE3\x83\xBB\xE4\xB8\xAD"),
            (Words{"\xE3\x81\x82", "\xE3\x83\xBB", "\xE4\xB8\xAD"}));
  EXPECT_EQ(cut("\xE3\x83\xBB\xE3\x82\x9B\n"), (Words{"\xE3\x83\xBB\xE3\x82\x9B", "\n"}));
  // A combining mark (Mn) goes with its letter; what is unassigned leads one.
  EXPECT_EQ(cut("\xE3\x81\x82\xE3\x82\x99\xE4\xB8\xAD"),
            (Words{"\xE3\x81\x82\xE3\x82\x99\xE4\xB8\xAD"}));
  EXPECT_EQ(cut("\xE3\x81\x82\xE3\x82\x97\xE3\x81\x82"),
            (Words{"\xE3\x81\x82", "\xE3\x82\x97\xE3\x81\x82"}));
  // Others are another piece.
  EXPECT_EQ(cut("a\xE4\xB8\xAD 12"), (Words{"a", "\xE4\xB8\xAD", " ", "12"}));
  EXPECT_EQ(cut("!\xE3\x83\xBB.\n"), (Words{"!", "\xE3\x83\xBB", ".\n"}));
}

TEST(Cl100kWords, CutLikeTheRegex) {
  EXPECT_EQ(Cl100k("it'S 12345 (foo)\r\n\r\nx"),
            (Words{"it", "'S", " ", "123", "45", " (", "foo", ")\r\n\r\n", "x"}));
  EXPECT_EQ(Cl100k("a'\xC5\xBF"
                   "b"),
            (Words{"a", "'\xC5\xBF", "b"}));  // U+017F folds to s
  EXPECT_EQ(Cl100k("a'LLb'lx"), (Words{"a", "'LL", "b", "'lx"}));
  EXPECT_EQ(Cl100k("\tword -x \n  \n y"), (Words{"\tword", " -", "x", " \n  \n", " y"}));
  EXPECT_EQ(Cl100k("\r\nword"), (Words{"\r\n", "word"}));
  EXPECT_EQ(Cl100k("a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(Cl100k("1 2"), (Words{"1", " ", "2"}));
  EXPECT_EQ(Cl100k("'"), (Words{"'"}));
}

TEST(Cl100kWords, TheTwoFormsDifferOnlyInWhiteSpaceAtTheEnd) {
  EXPECT_EQ(Cl100k("a \n  "), (Words{"a", " \n  "}));
  EXPECT_EQ(LineEnd("a \n  "), (Words{"a", " \n", "  "}));
  EXPECT_EQ(LineEnd("a \n  b"), Cl100k("a \n  b"));
  EXPECT_EQ(LineEnd("a   "), (Words{"a", "   "}));
}

TEST(Words, BytesThatAreNotUtf8CountAsPunctuation) {
  const std::vector<std::string> bad = {
      "\x80",              // continuation alone
      "\xC0\x80",          // overlong
      "\xE0\x9F\xBF",      // overlong
      "\xED\xA0\x80",      // surrogate
      "\xF4\x90\x80\x80",  // above U+10FFFF
      "\xF5",
      "\xFF",
      "\xE2\x82",      // cut
      "\xF0\x9F\x98",  // cut
  };
  for (const std::string& bytes : bad) {
    EXPECT_EQ(Gpt2("a" + bytes + "!b"), (Words{"a", bytes + "!", "b"})) << bytes;
    EXPECT_EQ(Gpt2("a " + bytes), (Words{"a", " " + bytes})) << bytes;
    EXPECT_EQ(Cl100k("a" + bytes + "!\n"), (Words{"a", bytes + "!\n"})) << bytes;
  }
  // One bad byte is one character: the last one may lead a word of letters, as a mark would.
  EXPECT_EQ(Cl100k("\x80x"), (Words{"\x80x"}));
  EXPECT_EQ(Cl100k("\xE2\x82x"), (Words{"\xE2\x82", "x"}));
}

TEST(PatternOfRegex, KnowsOnlyTheExactStrings) {
  const std::string gpt2 =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
  EXPECT_EQ(PatternOfRegex(gpt2), Pattern::kGpt2);
  EXPECT_FALSE(PatternOfRegex(gpt2 + "|x").has_value());
  EXPECT_FALSE(PatternOfRegex("").has_value());
}

RC_GTEST_PROP(Words, JoinedGiveTheTextAndNoneIsEmpty, ()) {
  static const std::vector<std::string> parts = {
      "a", "S",  "'", "'s", "'LL",      " ",        "  ",           "\t",   "\n",  "\r\n",
      "1", "12", "!", ".",  "\xC3\xA9", "\xC2\xB2", "\xE3\x80\x80", "\x80", "\xE2"};
  std::string text;
  for (const std::size_t part : *rc::gen::container<std::vector<std::size_t>>(
           rc::gen::inRange<std::size_t>(0, parts.size()))) {
    text += parts[part];
  }
  for (const Words& words : {Gpt2(text), Cl100k(text), LineEnd(text)}) {
    std::string joined;
    for (const std::string& word : words) {
      RC_ASSERT(!word.empty());
      joined += word;
    }
    RC_ASSERT(joined == text);
  }
}

}  // namespace
}  // namespace widestream::internal
