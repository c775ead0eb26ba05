#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <regex>

#include "engine/storage/file_system.h"
#include "engine/storage/temporary_folder.h"
#include "engine/storage/wildcard.h"

namespace widestream {
namespace {

TEST(WildcardMatch, KnownCases) {
  EXPECT_TRUE(WildcardMatch("", ""));
  EXPECT_FALSE(WildcardMatch("", "a"));
  EXPECT_TRUE(WildcardMatch("*", ""));
  EXPECT_TRUE(WildcardMatch("a*b*c", "aXbYbZc"));
  EXPECT_FALSE(WildcardMatch("a*b*c", "aXbYbZ"));
  EXPECT_TRUE(WildcardMatch("?[a-c][!x]", "zby"));
  EXPECT_FALSE(WildcardMatch("?[a-c][!x]", "zbx"));
  EXPECT_TRUE(WildcardMatch("[]a]", "]"));
  EXPECT_TRUE(WildcardMatch("[a-]", "-"));
  EXPECT_TRUE(WildcardMatch("a[b", "a[b"));
  EXPECT_FALSE(WildcardMatch("a[b", "ab"));
}

TEST(WildcardMatch, ManyStarsEndSoon) {
  std::string pattern;
  for (int i = 0; i < 1000; ++i) pattern += "*a";
  EXPECT_FALSE(WildcardMatch(pattern + "b", std::string(20000, 'a')));
}

RC_GTEST_PROP(WildcardMatch, AgreesWithARegularExpression, ()) {
  const auto pattern = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab*?")));
  const auto name = *rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab")));
  std::string expression;
  for (const char c : pattern) {
    if (c == '*') {
      expression += ".*";
    } else {
      expression += c == '?' ? '.' : c;
    }
  }
  RC_ASSERT(WildcardMatch(pattern, name) == std::regex_match(name, std::regex(expression)));
}

class GlobTest : public testing::Test {
 protected:
  GlobTest() {
    for (const char* name :
         {"a.jsonl", "b.jsonl", "b.txt", ".hidden.jsonl", "_SUCCESS", "x/c.jsonl", "x/y/d.jsonl",
          "x/y/_tmp/e.jsonl", "x/.z/f.jsonl", "we[ir]d.jsonl"}) {
      folder_.Write(name, "1");
    }
  }
  std::string Names(std::string_view pattern) {
    const auto files = Glob(*LocalFileSystem(), folder_ / pattern);
    if (!files.ok()) return files.status().ToString();
    std::string names;
    for (const FileInfo& file : *files) {
      names += (names.empty() ? "" : " ") + file.path.substr(folder_.path().size() + 1);
    }
    return names;
  }
  TemporaryFolder folder_;
};

TEST_F(GlobTest, FilesFoldersAndPatterns) {
  EXPECT_EQ(Names("a.jsonl"), "a.jsonl");
  EXPECT_EQ(Names("*.jsonl"), "a.jsonl b.jsonl we[ir]d.jsonl");
  EXPECT_EQ(Names("[ab].jsonl"), "a.jsonl b.jsonl");
  EXPECT_EQ(Names("?.*"), "a.jsonl b.jsonl b.txt");
  EXPECT_EQ(Names(".*.jsonl"), ".hidden.jsonl");
  EXPECT_EQ(Names("*/*.jsonl"), "x/c.jsonl");
  EXPECT_EQ(Names("x"), "x/c.jsonl x/y/d.jsonl");
  EXPECT_EQ(Names("x/"), "x/c.jsonl x/y/d.jsonl");
  EXPECT_EQ(Names("**/*.jsonl"), "a.jsonl b.jsonl we[ir]d.jsonl x/c.jsonl x/y/d.jsonl");
  EXPECT_EQ(Names("**/y/**/*.jsonl"), "x/y/d.jsonl");
  EXPECT_EQ(Names("x/**"), "x/c.jsonl x/y/d.jsonl");
  EXPECT_EQ(Names("x/*/_tmp/*"), "x/y/_tmp/e.jsonl");
}

TEST_F(GlobTest, AFileWhoseNameLooksLikeAPatternIsThatFile) {
  EXPECT_EQ(Names("we[ir]d.jsonl"), "we[ir]d.jsonl");
}

TEST_F(GlobTest, NothingFoundNamesTheNearestFolder) {
  const auto files = Glob(*LocalFileSystem(), folder_ / "x/nope/deeper/*.jsonl");
  EXPECT_EQ(files.status().code(), StatusCode::kNotFound);
  EXPECT_NE(files.status().message().find("folder is '" + (folder_ / "x") + "'"), std::string::npos)
      << files.status().message();
  EXPECT_EQ(Glob(*LocalFileSystem(), folder_ / "absent.jsonl").status().code(),
            StatusCode::kNotFound);
  EXPECT_EQ(Glob(*LocalFileSystem(), folder_ / "*.parquet").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(Glob(*LocalFileSystem(), "relative/*").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(GlobTest, LinkLoopsEnd) {
  std::filesystem::create_symlink(folder_.path(), folder_ / "x/loop");
  std::filesystem::create_symlink(folder_ / "b.txt", folder_ / "x/linked.jsonl");
  EXPECT_EQ(Names("x"), "x/c.jsonl x/linked.jsonl x/y/d.jsonl");
  EXPECT_EQ(Names("x/loop/a.jsonl"), "x/loop/a.jsonl");
}

}  // namespace
}  // namespace widestream
