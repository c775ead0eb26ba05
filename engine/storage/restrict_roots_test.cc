#include <gtest/gtest.h>

#include <filesystem>

#include "engine/storage/file_system.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

class RestrictRootsTest : public testing::Test {
 protected:
  RestrictRootsTest() {
    folder_.Write("data/a.jsonl", "a");
    folder_.Write("data/deep/b.jsonl", "b");
    folder_.Write("database/c.jsonl", "c");  // shares a prefix with the root, not a folder
    folder_.Write("secret", "s");
    std::filesystem::create_symlink(folder_ / "secret", folder_ / "data/link");
    std::filesystem::create_symlink(folder_.path(), folder_ / "data/up");
    std::filesystem::create_symlink("deep/b.jsonl", folder_ / "data/inside");
    std::filesystem::create_symlink(folder_ / "new", folder_ / "data/dangling");
    fs_ = RestrictToRoots(LocalFileSystem(), {folder_ / "data"});
  }
  Status OpenStatus(std::string_view name) { return fs_->Open(folder_ / name).status(); }

  TemporaryFolder folder_;
  std::shared_ptr<FileSystem> fs_;
};

TEST_F(RestrictRootsTest, OpensWhatIsInside) {
  EXPECT_TRUE(OpenStatus("data/a.jsonl").ok());
  EXPECT_TRUE(OpenStatus("data/deep/../a.jsonl").ok());
  EXPECT_TRUE(OpenStatus("database/../data/a.jsonl").ok());
  EXPECT_TRUE(OpenStatus("data/inside").ok());
  EXPECT_EQ(*fs_->ReadAll(folder_ / "data/deep/b.jsonl", 10), "b");
}

TEST_F(RestrictRootsTest, RefusesWhatLeadsOutside) {
  for (const char* name : {"secret", "data/link", "data/../secret", "data/up/secret",
                           "database/c.jsonl", "data/deep/../../secret"}) {
    const Status status = OpenStatus(name);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find(folder_ / "data"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("data_roots"), std::string::npos);
  }
  EXPECT_FALSE(fs_->Stat(folder_ / "secret").ok());
  EXPECT_FALSE(fs_->List(folder_.path()).ok());
  EXPECT_FALSE(fs_->List(folder_ / "data/up").ok());
  EXPECT_FALSE(fs_->ReadAll(folder_ / "data/link", 10).ok());
  EXPECT_FALSE(fs_->Truncate(folder_ / "data/link", 0).ok());
  EXPECT_FALSE(fs_->Open("data/a.jsonl").ok());  // relative
  EXPECT_FALSE(fs_->Open("").ok());
}

TEST_F(RestrictRootsTest, AbsentFilesAreNotFoundInsideAndRefusedOutside) {
  EXPECT_EQ(OpenStatus("data/absent").code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenStatus("data/absent/deeper").code(), StatusCode::kNotFound);
  EXPECT_EQ(OpenStatus("absent").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenStatus("data/a.jsonl/x").code(), StatusCode::kNotFound);
}

TEST_F(RestrictRootsTest, WritingFollowsTheSameRule) {
  EXPECT_TRUE(fs_->CreateFolders(folder_ / "data/new/deeper").ok());
  EXPECT_TRUE(fs_->WriteAtomically(folder_ / "data/new/deeper/x", "1").ok());
  EXPECT_TRUE(fs_->OpenAppend(folder_ / "data/new/y").ok());
  EXPECT_FALSE(fs_->CreateFolders(folder_ / "elsewhere").ok());
  EXPECT_FALSE(fs_->WriteAtomically(folder_ / "data/absent/../../x", "1").ok());
  EXPECT_FALSE(fs_->WriteAtomically(folder_ / "x", "1").ok());
  EXPECT_FALSE(fs_->OpenAppend(folder_ / "data/dangling").ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST_F(RestrictRootsTest, RemovingALinkLeavesWhatItPointsTo) {
  EXPECT_TRUE(fs_->Remove(folder_ / "data/link").ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "secret"));
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::symlink_status(folder_ / "data/link")));
  EXPECT_FALSE(fs_->Remove(folder_ / "secret").ok());
  EXPECT_FALSE(fs_->Remove(folder_ / "data/up/secret").ok());
  EXPECT_FALSE(fs_->Remove(folder_ / "data/..").ok());
}

TEST_F(RestrictRootsTest, NamesAreSpelledAsGiven) {
  std::filesystem::create_symlink(folder_ / "data", folder_ / "alias");
  const auto entries = fs_->List(folder_ / "alias/deep");
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 1U);
  EXPECT_EQ((*entries)[0].path, folder_ / "alias/deep/b.jsonl");
  EXPECT_EQ(fs_->Stat(folder_ / "alias/a.jsonl")->path, folder_ / "alias/a.jsonl");
}

TEST_F(RestrictRootsTest, ARootThatIsAbsentAdmitsNothingAndSlashAdmitsAll) {
  EXPECT_FALSE(
      RestrictToRoots(LocalFileSystem(), {folder_ / "nowhere"})->Open(folder_ / "secret").ok());
  EXPECT_FALSE(RestrictToRoots(LocalFileSystem(), {})->Open(folder_ / "secret").ok());
  EXPECT_TRUE(RestrictToRoots(LocalFileSystem(), {"/"})->Open(folder_ / "secret").ok());
}

TEST_F(RestrictRootsTest, GlobStaysInside) {
  const auto files = Glob(*fs_, folder_ / "data/**/*.jsonl");
  ASSERT_TRUE(files.ok());
  EXPECT_EQ(files->size(), 2U);
  EXPECT_EQ(Glob(*fs_, folder_ / "*").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace widestream
