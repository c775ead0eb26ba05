// What a restore reads does not depend on how far the run was, and a start reads what its first
// steps need, however many sources there are.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/runtime/host.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

constexpr std::uint32_t kSteps = 64;
constexpr std::uint64_t kStepBytes = 64U << 10;  // of text: 64 rows of 1,024 tokens of a byte each

// Local files, with a count of the bytes that ReadAt gives of .jsonl files. Thread-safe; reading
// only.
class CountingFileSystem final : public FileSystem {
 public:
  std::uint64_t read_bytes() const { return *read_bytes_; }

  Result<std::unique_ptr<RandomAccessFile>> Open(const std::string& path) override {
    WS_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, local_->Open(path));
    if (!path.ends_with(".jsonl")) return file;
    return std::unique_ptr<RandomAccessFile>(new File(std::move(file), read_bytes_));
  }
  Result<FileInfo> Stat(const std::string& path) override { return local_->Stat(path); }
  Result<std::vector<FileInfo>> List(const std::string& folder) override {
    return local_->List(folder);
  }
  Result<std::string> ReadAll(const std::string& path, std::uint64_t limit_bytes) override {
    return local_->ReadAll(path, limit_bytes);
  }
  Result<std::unique_ptr<AppendFile>> OpenAppend(const std::string&) override { return Refused(); }
  Status WriteAtomically(const std::string&, std::string_view) override { return Refused(); }
  Status Truncate(const std::string&, std::uint64_t) override { return Refused(); }
  Status CreateFolders(const std::string&) override { return Refused(); }
  Status Remove(const std::string&) override { return Refused(); }

 private:
  class File final : public RandomAccessFile {
   public:
    File(std::unique_ptr<RandomAccessFile> inner, std::shared_ptr<std::atomic<std::uint64_t>> count)
        : inner_(std::move(inner)), count_(std::move(count)) {}
    Result<std::size_t> ReadAt(std::uint64_t offset, std::size_t size, char* out) const override {
      Result<std::size_t> read = inner_->ReadAt(offset, size, out);
      if (read.ok()) *count_ += *read;
      return read;
    }
    std::uint64_t size_bytes() const override { return inner_->size_bytes(); }
    const std::string& path() const override { return inner_->path(); }

   private:
    const std::unique_ptr<RandomAccessFile> inner_;
    const std::shared_ptr<std::atomic<std::uint64_t>> count_;
  };

  static Status Refused() { return Status::Internal("the data is only read"); }

  const std::shared_ptr<FileSystem> local_ = LocalFileSystem();
  const std::shared_ptr<std::atomic<std::uint64_t>> read_bytes_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

// One plain JSON Lines file of a few hundred bytes a record, longer than kSteps steps.
JobSpec Job(TemporaryFolder* folder) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary += kDigits[byte >> 2];
    vocabulary += kDigits[(byte & 3) << 4];
    vocabulary += "== " + std::to_string(byte) + "\n";
  }
  std::string content;
  for (int i = 0; content.size() < (kSteps + 40) * kStepBytes; ++i) {
    content +=
        "{\"text\": \"" +
        std::string(200 + static_cast<std::size_t>(i) * 7 % 300, static_cast<char>('a' + i % 26)) +
        "\"}\n";
  }
  JobSpec job;
  job.name = "restore";
  job.data_roots = {folder->path()};
  job.tokenizer = TokenizerSpec{folder->Write("bytes.tiktoken", vocabulary), "gpt2", {}};
  SourceSpec source;
  source.name = "a";
  source.paths = {folder->Write("a.jsonl", content)};
  source.shuffle.records = 16;
  source.shuffle.bytes = 8192;
  job.sources = {source};
  StageSpec stage;
  stage.weights = {1};
  job.mixture.stages = {stage};
  job.batch.sequence_length = 1024;
  job.batch.rows = 64;
  job.lookahead_steps = 1;
  job.limits.threads = 2;
  job.limits.host_memory_bytes = 16U << 20;
  return job;
}

std::string NextDigest(Host* host) {
  const auto batch = host->Next(std::chrono::steady_clock::now() + std::chrono::seconds(30));
  EXPECT_TRUE(batch.ok()) << batch.status().ToString();
  return batch.ok() && *batch != nullptr ? (*batch)->plan->digest : "";
}

TEST(Restore, R_22_ReadsABoundedNumberOfBlocksHoweverFarTheRunWas) {
  TemporaryFolder folder;
  const JobSpec job = Job(&folder);
  auto counted = std::make_shared<CountingFileSystem>();
  HostOptions options;
  options.fs = counted;
  auto run = Host::Make(job, options);
  ASSERT_TRUE(run.ok()) << run.status().ToString();
  std::string states[kSteps];
  std::string digests[kSteps];
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    const auto state = (*run)->StateJson();
    ASSERT_TRUE(state.ok()) << state.status().ToString();
    states[step] = *state;
    digests[step] = NextDigest(run->get());
    ASSERT_NE(digests[step], "");
  }
  run->reset();
  ASSERT_GT(counted->read_bytes(), 60 * kStepBytes) << "the count sees what is read";

  // Counted until the threads are stopped, so that read-ahead is in it.
  const auto restored_bytes = [&](std::uint32_t step) {
    auto fs = std::make_shared<CountingFileSystem>();
    HostOptions restored;
    restored.fs = fs;
    restored.state_json = states[step];
    auto host = Host::Make(job, restored);
    EXPECT_TRUE(host.ok()) << host.status().ToString();
    if (!host.ok()) return std::uint64_t{0};
    EXPECT_EQ(NextDigest(host->get()), digests[step]) << "restored at step " << step;
    host->reset();
    return fs->read_bytes();
  };
  const std::uint64_t early = restored_bytes(5);
  const std::uint64_t late = restored_bytes(60);
  RecordProperty("early_bytes", std::to_string(early));
  RecordProperty("late_bytes", std::to_string(late));
  EXPECT_GE(early, kStepBytes);
  EXPECT_GE(late, kStepBytes);
  // The step itself, what is planned beyond it, and the read-ahead; 55 steps lie between the two.
  EXPECT_LT(early, 24 * kStepBytes);
  EXPECT_LT(late, 24 * kStepBytes);
}

TEST(Restore, AColdStartReadsTheSourcesOfItsFirstSteps) {
  constexpr std::size_t kSources = 64;
  TemporaryFolder folder;
  JobSpec job = Job(&folder);
  job.batch.rows = 4;
  SourceSpec source = job.sources[0];
  source.shuffle.bytes = 64U << 10;
  source.shuffle.records = 1000;
  // Each draws a whole row: a step draws four of them.
  const std::string content = [] {
    std::string lines;
    for (int i = 0; i < 200; ++i) lines += "{\"text\": \"" + std::string(1200, 'a') + "\"}\n";
    return lines;
  }();
  job.sources.clear();
  for (std::size_t i = 0; i < kSources; ++i) {
    source.name = "s" + std::to_string(i);
    source.paths = {folder.Write(source.name + ".jsonl", content)};
    job.sources.push_back(source);
  }
  job.mixture.stages[0].weights.assign(kSources, 1.0);
  auto fs = std::make_shared<CountingFileSystem>();
  HostOptions options;
  options.fs = fs;
  auto host = Host::Make(job, options);
  ASSERT_TRUE(host.ok()) << host.status().ToString();
  // The manifests: of each file its first and its last part.
  constexpr std::uint64_t kOpenedBytes = kSources * (std::uint64_t{128} << 10);
  ASSERT_NE(NextDigest(host->get()), "");
  (*host)->Stop();
  const std::uint64_t read = fs->read_bytes() - kOpenedBytes;
  // At most the first step, the two that are planned beyond it, and a prediction that was off.
  EXPECT_LT(read, kSources * content.size() / 3);
  EXPECT_GT(read, content.size() / 2);
}

}  // namespace
}  // namespace widestream
