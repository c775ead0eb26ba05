#include "engine/storage/faulty_file_system.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

class FaultyFileSystemTest : public testing::Test {
 protected:
  FaultyFileSystem Make(std::vector<Fault> script, std::uint64_t seed = 0) {
    return {LocalFileSystem(), std::move(script), seed,
            [this](double seconds) { slept_ += seconds; }};
  }
  std::string Content(const std::string& path) { return *LocalFileSystem()->ReadAll(path, 1000); }

  TemporaryFolder folder_;
  double slept_ = 0.0;
};

TEST_F(FaultyFileSystemTest, WithoutAScriptItIsTheInnerOne) {
  FaultyFileSystem fs = Make({});
  EXPECT_TRUE(fs.CreateFolders(folder_ / "d").ok());
  EXPECT_TRUE(fs.WriteAtomically(folder_ / "d/a", "123").ok());
  EXPECT_EQ(*fs.ReadAll(folder_ / "d/a", 10), "123");
  EXPECT_EQ(fs.List(folder_ / "d")->size(), 1U);
  EXPECT_TRUE(fs.Truncate(folder_ / "d/a", 1).ok());
  EXPECT_EQ(fs.Stat(folder_ / "d/a")->size_bytes, 1U);
  EXPECT_TRUE(fs.Remove(folder_ / "d/a").ok());
  EXPECT_EQ(fs.faults_injected(), 0U);
}

TEST_F(FaultyFileSystemTest, ErrorsHitTheCountedOperationsOfAPath) {
  const std::string path = folder_.Write("a.jsonl", "0123456789");
  FaultyFileSystem fs = Make({{.path_pattern = "*.jsonl", .first = 1, .count = 2}});
  auto file = fs.Open(path);
  ASSERT_TRUE(file.ok());
  char out[10];
  EXPECT_TRUE((*file)->ReadAt(0, 10, out).ok());
  EXPECT_EQ((*file)->ReadAt(0, 10, out).status().error_number(), EIO);
  EXPECT_FALSE((*file)->ReadAt(0, 10, out).ok());
  EXPECT_TRUE((*file)->ReadAt(0, 10, out).ok());
  EXPECT_EQ(fs.faults_injected(), 2U);
  EXPECT_TRUE(fs.ReadAll(folder_.Write("b.txt", "1"), 10).ok());
}

TEST_F(FaultyFileSystemTest, ShortReadsGiveSomeBytesAndReadExactlyGoesOn) {
  FaultyFileSystem fs = Make({{.kind = FaultKind::kShortRead, .bytes = 3}});
  auto file = fs.Open(folder_.Write("a", "0123456789"));
  ASSERT_TRUE(file.ok());
  char out[10];
  EXPECT_EQ(*(*file)->ReadAt(0, 10, out), 3U);
  EXPECT_TRUE(ReadExactly(**file, 0, 10, out).ok());
  EXPECT_EQ(std::string_view(out, 10), "0123456789");
}

TEST_F(FaultyFileSystemTest, LatencyIsInjectedIntoTheGivenClock) {
  FaultyFileSystem fs = Make(
      {{.kind = FaultKind::kLatency, .operation = FileOperation::kStat, .count = 2, .seconds = 2}});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(fs.Stat(folder_.path()).ok());
  EXPECT_EQ(slept_, 4.0);
}

TEST_F(FaultyFileSystemTest, ProbabilityIsAFunctionOfTheSeed) {
  const auto pattern = [this](std::uint64_t seed) {
    FaultyFileSystem fs = Make({{.operation = FileOperation::kStat, .probability = 0.3}}, seed);
    std::string result;
    for (int i = 0; i < 1000; ++i) result += fs.Stat(folder_.path()).ok() ? '.' : 'x';
    return result;
  };
  EXPECT_EQ(pattern(1), pattern(1));
  EXPECT_NE(pattern(1), pattern(2));
  const std::string one = pattern(1);
  EXPECT_NEAR(static_cast<double>(std::count(one.begin(), one.end(), 'x')), 300.0, 60.0);
}

TEST_F(FaultyFileSystemTest, AFullDiskStopsAnAppendAndTheFileStaysFailed) {
  FaultyFileSystem fs =
      Make({{.operation = FileOperation::kAppend, .first = 1, .count = 1, .error_number = ENOSPC}});
  auto file = fs.OpenAppend(folder_ / "j");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("one").ok());
  EXPECT_EQ((*file)->Append("two").error_number(), ENOSPC);
  EXPECT_EQ((*file)->Append("three").error_number(), ENOSPC);
  EXPECT_FALSE((*file)->Sync().ok());
  EXPECT_EQ(Content(folder_ / "j"), "one");
}

TEST_F(FaultyFileSystemTest, ATornAppendLandsAPrefix) {
  FaultyFileSystem fs = Make({{.kind = FaultKind::kTornAppend,
                               .operation = FileOperation::kAppend,
                               .first = 1,
                               .bytes = 2}});
  auto file = fs.OpenAppend(folder_ / "j");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("one").ok());
  EXPECT_EQ((*file)->Append("two").error_number(), EIO);
  EXPECT_EQ(Content(folder_ / "j"), "onetw");
}

TEST_F(FaultyFileSystemTest, ACrashTakesBackWhatWasNotSynced) {
  const std::string path = folder_.Write("j", "zero ");
  FaultyFileSystem fs = Make({});
  auto file = fs.OpenAppend(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("one ").ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE((*file)->Append("two").ok());
  EXPECT_EQ(Content(path), "zero one two");
  EXPECT_TRUE(fs.Crash().ok());
  EXPECT_EQ(Content(path), "zero one ");
  EXPECT_FALSE((*file)->Append("x").ok());
  EXPECT_FALSE((*file)->Sync().ok());

  auto again = fs.OpenAppend(path);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE((*again)->Append("three").ok());
  EXPECT_TRUE(fs.Crash(/*kept_bytes=*/2).ok());
  EXPECT_EQ(Content(path), "zero one th");
}

TEST_F(FaultyFileSystemTest, AFailedSyncIsNotDurable) {
  FaultyFileSystem fs = Make({{.operation = FileOperation::kSync}});
  auto file = fs.OpenAppend(folder_ / "j");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("one").ok());
  EXPECT_FALSE((*file)->Sync().ok());
  EXPECT_TRUE(fs.Crash().ok());
  EXPECT_EQ(Content(folder_ / "j"), "");
}

TEST_F(FaultyFileSystemTest, TruncateAndAtomicWritesSurviveACrash) {
  FaultyFileSystem fs = Make({});
  auto file = fs.OpenAppend(folder_ / "j");
  ASSERT_TRUE((*file)->Append("0123456789").ok());
  EXPECT_TRUE(fs.Truncate(folder_ / "j", 4).ok());
  EXPECT_TRUE(fs.WriteAtomically(folder_ / "s", "state").ok());
  EXPECT_TRUE(fs.Crash().ok());
  EXPECT_EQ(Content(folder_ / "j"), "0123");
  EXPECT_EQ(Content(folder_ / "s"), "state");
}

TEST_F(FaultyFileSystemTest, EveryOperationCanFail) {
  const std::string path = folder_.Write("a", "1");
  const auto fails = [&](FileOperation operation, const auto& act) {
    FaultyFileSystem fs = Make({{.operation = operation}});
    const Status status = act(fs);
    EXPECT_EQ(status.error_number(), EIO);
    EXPECT_NE(status.message().find("injected fault"), std::string::npos);
  };
  fails(FileOperation::kOpen, [&](FileSystem& fs) { return fs.Open(path).status(); });
  fails(FileOperation::kStat, [&](FileSystem& fs) { return fs.Stat(path).status(); });
  fails(FileOperation::kList, [&](FileSystem& fs) { return fs.List(folder_.path()).status(); });
  fails(FileOperation::kRead, [&](FileSystem& fs) { return fs.ReadAll(path, 10).status(); });
  fails(FileOperation::kOpenAppend, [&](FileSystem& fs) { return fs.OpenAppend(path).status(); });
  fails(FileOperation::kWriteAtomically,
        [&](FileSystem& fs) { return fs.WriteAtomically(path, "2"); });
  fails(FileOperation::kTruncate, [&](FileSystem& fs) { return fs.Truncate(path, 0); });
  fails(FileOperation::kCreateFolders, [&](FileSystem& fs) { return fs.CreateFolders(path); });
  fails(FileOperation::kRemove, [&](FileSystem& fs) { return fs.Remove(path); });
  EXPECT_EQ(Content(path), "1");
}

}  // namespace
}  // namespace widestream
