#include "engine/convert/tokenize.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/storage/temporary_folder.h"
#include "engine/transform/test_vocabulary.h"

namespace widestream {
namespace {

std::shared_ptr<const TextEncoder> Bytes() {
  auto tokenizer = Tokenizer::FromBytes(testing::TiktokenFile(testing::ByteTokens()), "bytes",
                                        {.pattern = "gpt2"});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return MakeTextEncoder(*std::move(tokenizer));
}

// Fails at the given call, as a process that dies there would leave things.
class FailingEncoder final : public TextEncoder {
 public:
  FailingEncoder(std::shared_ptr<const TextEncoder> inner, int calls)
      : inner_(std::move(inner)), left_(calls) {}
  Status Encode(std::span<const std::string_view> texts, IdBuffer<std::uint32_t>* ids,
                std::vector<std::uint64_t>* ends) const override {
    if (left_.fetch_sub(1) <= 0) return Status::Unavailable("told to fail");
    return inner_->Encode(texts, ids, ends);
  }
  std::uint32_t VocabularySize() const override { return inner_->VocabularySize(); }
  std::string Digest() const override { return inner_->Digest(); }

 private:
  const std::shared_ptr<const TextEncoder> inner_;
  mutable std::atomic<int> left_;
};

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteFile(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

TokenizeOptions Options(const TemporaryFolder& folder, const std::string& output) {
  TokenizeOptions options;
  options.input.name = "input";
  options.input.paths = {folder.path() + "/in"};
  options.output = folder.path() + "/" + output;
  options.append = {0};
  options.threads = 1;
  return options;
}

Status RunJob(const TokenizeOptions& options, std::shared_ptr<const TextEncoder> encoder,
              TokenizeProgress* progress = nullptr) {
  auto job = TokenizeJob::Make(LocalFileSystem(), std::move(encoder), options);
  if (!job.ok()) return job.status();
  const Status status = (*job)->Run({});
  if (progress != nullptr) *progress = (*job)->Progress();
  return status;
}

// Several shards, the first of many blocks.
void WriteInput(const TemporaryFolder& folder) {
  ASSERT_TRUE(LocalFileSystem()->CreateFolders(folder.path() + "/in").ok());
  std::string large;
  for (int i = 0; i < 3000; ++i) {
    large += R"({"text": ")" + std::string(static_cast<std::size_t>(i % 1500), 'a') +
             std::to_string(i) + "\"}\n";
  }
  WriteFile(folder.path() + "/in/a.jsonl", large);
  WriteFile(folder.path() + "/in/b.jsonl",
            "{\"text\": \"xy\"}\n{\"text\": \"\"}\n{\"text\": \"z\"}\n");
  WriteFile(folder.path() + "/in/c.jsonl", "");
}

TEST(TokenizeJob, WritesTheDocumentedBytes) {
  const TemporaryFolder folder;
  ASSERT_TRUE(LocalFileSystem()->CreateFolders(folder.path() + "/in").ok());
  WriteFile(folder.path() + "/in/b.jsonl",
            "{\"text\": \"xy\"}\n{\"text\": \"\"}\n{\"text\": \"z\"}\n");
  TokenizeProgress progress;
  ASSERT_TRUE(RunJob(Options(folder, "out"), Bytes(), &progress).ok());
  const std::string ids("x\0y\0\0\0z\0\0\0", 10);
  EXPECT_EQ(ReadFile(folder.path() + "/out.bin"), ids);
  std::string index("MMIDIDX\0\0", 9);
  const auto add = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) index += static_cast<char>((value >> (8 * i)) & 0xFF);
  };
  add(1, 8);  // version
  add(8, 1);  // uint16
  add(2, 8);  // sequences
  add(4, 8);  // borders of three documents, the second of which is empty
  for (const int length : {3, 2}) add(static_cast<std::uint64_t>(length), 4);
  for (const int pointer : {0, 6}) add(static_cast<std::uint64_t>(pointer), 8);
  for (const int border : {0, 1, 1, 2}) add(static_cast<std::uint64_t>(border), 8);
  EXPECT_EQ(ReadFile(folder.path() + "/out.idx"), index);
  EXPECT_EQ(progress.all.documents, 3U);
  EXPECT_EQ(progress.all.empty, 1U);
  EXPECT_EQ(progress.all.tokens, 5U);
  EXPECT_EQ(progress.all.text_bytes, 3U);
  EXPECT_EQ(progress.shards_done, 1U);
  EXPECT_FALSE(LocalFileSystem()->Stat(folder.path() + "/out.parts").ok());
}

TEST(TokenizeJob, GivesTheSameForAnyNumberOfThreads) {
  const TemporaryFolder folder;
  WriteInput(folder);
  ASSERT_TRUE(RunJob(Options(folder, "one"), Bytes()).ok());
  TokenizeOptions many = Options(folder, "many");
  many.threads = 4;
  ASSERT_TRUE(RunJob(many, Bytes()).ok());
  EXPECT_GT(ReadFile(folder.path() + "/one.bin").size(), 2000000U);
  EXPECT_EQ(ReadFile(folder.path() + "/one.bin"), ReadFile(folder.path() + "/many.bin"));
  EXPECT_EQ(ReadFile(folder.path() + "/one.idx"), ReadFile(folder.path() + "/many.idx"));
}

TEST(TokenizeJob, GoesOnWhereAnInterruptedRunStopped) {
  const TemporaryFolder folder;
  WriteInput(folder);
  ASSERT_TRUE(RunJob(Options(folder, "whole"), Bytes()).ok());
  for (int calls = 0; calls < 5; ++calls) {
    SCOPED_TRACE(calls);
    TokenizeOptions options = Options(folder, "cut" + std::to_string(calls));
    options.checkpoint_bytes = 1;
    const Status failed = RunJob(options, std::make_shared<FailingEncoder>(Bytes(), calls));
    ASSERT_EQ(failed.code(), StatusCode::kUnavailable) << failed.ToString();
    EXPECT_FALSE(LocalFileSystem()->Stat(options.output + ".idx").ok());
    // What was written after the last checkpoint does not count.
    std::ofstream(options.output + ".parts/000000.ids", std::ios::app) << "torn";
    TokenizeProgress progress;
    ASSERT_TRUE(RunJob(options, Bytes(), &progress).ok());
    EXPECT_EQ(progress.resumed.documents > 0, calls > 0);
    EXPECT_EQ(ReadFile(options.output + ".bin"), ReadFile(folder.path() + "/whole.bin"));
    EXPECT_EQ(ReadFile(options.output + ".idx"), ReadFile(folder.path() + "/whole.idx"));
  }
}

TEST(TokenizeJob, RefusesToGoOnWithOtherSettings) {
  const TemporaryFolder folder;
  WriteInput(folder);
  TokenizeOptions options = Options(folder, "out");
  ASSERT_FALSE(RunJob(options, std::make_shared<FailingEncoder>(Bytes(), 1)).ok());
  options.append = {1};
  const Status refused = RunJob(options, Bytes());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("another append"), std::string::npos) << refused.message();
  options.restart = true;
  EXPECT_TRUE(RunJob(options, Bytes()).ok());
}

TEST(TokenizeJob, RefusesAnOutputThatIsThere) {
  const TemporaryFolder folder;
  WriteInput(folder);
  TokenizeOptions options = Options(folder, "out");
  ASSERT_TRUE(RunJob(options, Bytes()).ok());
  const Status refused = RunJob(options, Bytes());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.message().find("--force"), std::string::npos);
  options.overwrite = true;
  EXPECT_TRUE(RunJob(options, Bytes()).ok());
}

TEST(TokenizeJob, StopsAtABadRecordOrLeavesItOut) {
  const TemporaryFolder folder;
  ASSERT_TRUE(LocalFileSystem()->CreateFolders(folder.path() + "/in").ok());
  WriteFile(folder.path() + "/in/a.jsonl", "{\"text\": \"a\"}\n{broken\n{\"text\": \"b\"}\n");
  TokenizeOptions options = Options(folder, "out");
  const Status stopped = RunJob(options, Bytes());
  EXPECT_EQ(stopped.code(), StatusCode::kDataCorruption);
  EXPECT_NE(stopped.message().find("a.jsonl', record 1 "), std::string::npos) << stopped.message();
  options.restart = options.skip_bad_records = true;
  TokenizeProgress progress;
  ASSERT_TRUE(RunJob(options, Bytes(), &progress).ok());
  EXPECT_EQ(progress.all.bad, 1U);
  EXPECT_EQ(progress.all.documents, 2U);
}

TEST(TokenizeJob, RefusesWhatCannotBe) {
  const TemporaryFolder folder;
  WriteInput(folder);
  TokenizeOptions options = Options(folder, "out");
  options.append = {256};
  EXPECT_EQ(RunJob(options, Bytes()).code(), StatusCode::kInvalidArgument);
  options = Options(folder, "out");
  options.output = folder.path() + "/";
  EXPECT_EQ(RunJob(options, Bytes()).code(), StatusCode::kInvalidArgument);
  options = Options(folder, "out");
  options.input.paths = {folder.path() + "/none"};
  EXPECT_EQ(RunJob(options, Bytes()).code(), StatusCode::kNotFound);
  options.input.paths = {folder.path() + "/in/c.jsonl"};
  EXPECT_EQ(RunJob(options, Bytes()).code(), StatusCode::kInvalidArgument) << "no token at all";
}

TEST(TokenizeJob, ACheckpointThatIsNoneIsAnError) {
  const TemporaryFolder folder;
  WriteInput(folder);
  TokenizeOptions options = Options(folder, "out");
  options.checkpoint_bytes = 1;
  ASSERT_FALSE(RunJob(options, std::make_shared<FailingEncoder>(Bytes(), 2)).ok());
  WriteFile(options.output + ".parts/000000.state", "{\"unit\": -1}");
  EXPECT_EQ(RunJob(options, Bytes()).code(), StatusCode::kDataCorruption);
  options.restart = true;
  EXPECT_TRUE(RunJob(options, Bytes()).ok());
}

TEST(TokenizeJob, StopsWhenItIsCancelled) {
  const TemporaryFolder folder;
  WriteInput(folder);
  auto job = TokenizeJob::Make(LocalFileSystem(), Bytes(), Options(folder, "out"));
  ASSERT_TRUE(job.ok());
  CancellationSource source;
  source.Cancel("stop");
  EXPECT_EQ((*job)->Run(source.token()).code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace widestream
