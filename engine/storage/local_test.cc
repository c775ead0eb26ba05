#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "engine/storage/file_system.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

class LocalTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
  const std::shared_ptr<FileSystem> fs_ = LocalFileSystem();
};

TEST_F(LocalTest, ReadsAtAnyOffsetAndStopsAtTheEnd) {
  auto file = fs_->Open(folder_.Write("a", "0123456789"));
  ASSERT_TRUE(file.ok());
  EXPECT_EQ((*file)->size_bytes(), 10U);
  char out[16];
  EXPECT_EQ(*(*file)->ReadAt(7, 16, out), 3U);
  EXPECT_EQ(std::string_view(out, 3), "789");
  EXPECT_EQ(*(*file)->ReadAt(10, 16, out), 0U);
  EXPECT_EQ(*(*file)->ReadAt(UINT64_MAX, 16, out), 0U);
}

TEST_F(LocalTest, SizeIsFrozenWhenOpened) {
  const std::string path = folder_.Write("a", "0123456789");
  auto file = fs_->Open(path);
  ASSERT_TRUE(file.ok());
  folder_.Write("a", "0123456789abcdef");
  char out[16];
  EXPECT_EQ(*(*file)->ReadAt(0, 16, out), 10U);
  folder_.Write("a", "0123");
  const Status status = ReadExactly(**file, 0, 10, out);
  EXPECT_EQ(status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(status.message().find("ends at byte 4"), std::string::npos) << status.message();
}

TEST_F(LocalTest, ErrorsKeepErrnoAndNameThePath) {
  const std::string path = folder_ / "absent";
  for (const Status& status :
       {fs_->Open(path).status(), fs_->Stat(path).status(), fs_->List(path).status(),
        fs_->ReadAll(path, 10).status(), fs_->Truncate(path, 0), fs_->Remove(path),
        fs_->OpenAppend(folder_ / "no/file").status(),
        fs_->WriteAtomically(folder_ / "no/f", "")}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound);
    EXPECT_EQ(status.error_number(), ENOENT);
    EXPECT_NE(status.message().find(folder_.path()), std::string::npos);
  }
  EXPECT_EQ(fs_->Open("").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(fs_->Open(std::string("/a\0b", 4)).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LocalTest, OnlyRegularFilesAreOpened) {
  EXPECT_EQ(fs_->Open(folder_.path()).status().code(), StatusCode::kInvalidArgument);
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(fs_->Open(pipe).status().code(), StatusCode::kInvalidArgument);  // and does not hang
  EXPECT_EQ(fs_->Open("/dev/null").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LocalTest, ListIsSortedAndShowsDanglingLinks) {
  folder_.Write("b", "12");
  folder_.Write("B/x", "");
  std::filesystem::create_symlink(folder_ / "b", folder_ / "a");
  std::filesystem::create_symlink(folder_ / "gone", folder_ / "c");
  auto entries = fs_->List(folder_.path() + "/");
  ASSERT_TRUE(entries.ok());
  ASSERT_EQ(entries->size(), 4U);
  EXPECT_EQ((*entries)[0].path, folder_ / "B");
  EXPECT_TRUE((*entries)[0].is_directory);
  EXPECT_EQ((*entries)[1].path, folder_ / "a");
  EXPECT_EQ((*entries)[1].size_bytes, 2U);
  EXPECT_TRUE((*entries)[1].is_symbolic_link);
  EXPECT_EQ((*entries)[2].size_bytes, 2U);
  EXPECT_EQ((*entries)[3].path, folder_ / "c");
}

TEST_F(LocalTest, AppendsAndKeepsWhatWasThere) {
  const std::string path = folder_.Write("journal", "one ");
  auto file = fs_->OpenAppend(path);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE((*file)->Append("two ").ok());
  EXPECT_TRUE((*file)->Append("").ok());
  EXPECT_TRUE((*file)->Append("three").ok());
  EXPECT_TRUE((*file)->Sync().ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_FALSE((*file)->Append("four").ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ(*fs_->ReadAll(path, 100), "one two three");
}

TEST_F(LocalTest, AFullDiskIsAnIoErrorThatStays) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full on this machine";
  auto file = fs_->OpenAppend("/dev/full");
  if (!file.ok()) GTEST_SKIP() << file.status().ToString();
  const Status status = (*file)->Append("x");
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.error_number(), ENOSPC);
  EXPECT_EQ((*file)->Append("").error_number(), ENOSPC);
  EXPECT_EQ((*file)->Sync().error_number(), ENOSPC);
}

TEST_F(LocalTest, WriteAtomicallyReplacesAndLeavesNoTemporaryFile) {
  const std::string path = folder_ / "state.json";
  EXPECT_TRUE(fs_->WriteAtomically(path, "1").ok());
  EXPECT_TRUE(fs_->WriteAtomically(path, "22").ok());
  EXPECT_EQ(*fs_->ReadAll(path, 10), "22");
  EXPECT_EQ(fs_->List(folder_.path())->size(), 1U);
  EXPECT_FALSE(fs_->WriteAtomically(folder_.path() + "/", "x").ok());
  folder_.Write("taken/x", "");
  EXPECT_FALSE(fs_->WriteAtomically(folder_ / "taken", "x").ok());  // a folder is in the way
  EXPECT_EQ(fs_->List(folder_.path())->size(), 2U);
}

TEST_F(LocalTest, ReadAllRefusesMoreThanItsLimit) {
  const std::string path = folder_.Write("a", "0123456789");
  EXPECT_EQ(fs_->ReadAll(path, 9).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(*fs_->ReadAll(path, 10), "0123456789");
  EXPECT_EQ(*fs_->ReadAll(folder_.Write("empty", ""), 0), "");
}

TEST_F(LocalTest, FoldersAreCreatedTruncatedAndRemoved) {
  EXPECT_TRUE(fs_->CreateFolders(folder_ / "x//y/z/").ok());
  EXPECT_TRUE(fs_->CreateFolders(folder_ / "x/y/z").ok());
  EXPECT_TRUE(fs_->Stat(folder_ / "x/y/z")->is_directory);
  const std::string path = folder_.Write("x/f", "0123");
  EXPECT_EQ(fs_->CreateFolders(path + "/sub").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs_->Truncate(path, 2).ok());
  EXPECT_EQ(*fs_->ReadAll(path, 10), "01");
  EXPECT_TRUE(fs_->Remove(path).ok());
  EXPECT_FALSE(fs_->Stat(path).ok());
  EXPECT_FALSE(fs_->Remove(folder_ / "x").ok());  // not empty
}

}  // namespace
}  // namespace widestream
