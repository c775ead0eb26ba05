#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>

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

// The definition, in exponential time.
bool Matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    return Matches(pattern.substr(1), name) || (!name.empty() && Matches(pattern, name.substr(1)));
  }
  if (name.empty() || (pattern[0] != '?' && pattern[0] != name[0])) return false;
  return Matches(pattern.substr(1), name.substr(1));
}

RC_GTEST_PROP(WildcardMatch, AgreesWithItsDefinition, ()) {
  const auto bytes = [](const std::string& alphabet) {
    return rc::gen::resize(12, rc::gen::container<std::string>(rc::gen::elementOf(alphabet)));
  };
  const std::string pattern = *bytes("ab*?");
  const std::string name = *bytes("ab");
  RC_ASSERT(WildcardMatch(pattern, name) == Matches(pattern, name));
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
