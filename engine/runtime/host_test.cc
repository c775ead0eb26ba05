#include "engine/runtime/host.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/hash.h"
#include "engine/storage/faulty_file_system.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

using Clock = std::chrono::steady_clock;

// The 256 bytes as tokens, no merges.
std::string ByteVocabulary() {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string file;
  for (int byte = 0; byte < 256; ++byte) {
    file += kDigits[byte >> 2];
    file += kDigits[(byte & 3) << 4];
    file += "== " + std::to_string(byte) + "\n";
  }
  return file;
}

struct Case {
  TemporaryFolder folder;
  JobSpec job;

  Case() {
    std::mt19937 random(3);  // NOLINT(bugprone-random-generator-seed): a fixed case
    for (const char* name : {"a", "b"}) {
      SourceSpec source;
      source.name = name;
      source.shuffle.records = 8;
      source.shuffle.bytes = 2048;
      for (int shard = 0; shard < 2; ++shard) {
        std::string content;
        for (int i = 0; i < 60; ++i)
          content += "{\"text\": \"" +
                     std::string(1 + random() % 90, static_cast<char>('a' + i % 26)) + "\"}\n";
        folder.Write(std::string(name) + std::to_string(shard) + ".jsonl", content);
      }
      source.paths = {folder.path() + "/" + name + "*.jsonl"};
      job.sources.push_back(std::move(source));
    }
    job.name = "case";
    job.seed = 4;
    job.data_roots = {folder.path()};
    job.tokenizer = TokenizerSpec{folder.Write("bytes.tiktoken", ByteVocabulary()), "gpt2", {}};
    StageSpec stage;
    stage.weights = {0.7, 0.3};
    job.mixture.stages = {stage};
    job.batch.sequence_length = 64;
    job.batch.rows = 4;
    job.limits.threads = 2;
    job.limits.host_memory_bytes = 16U << 20;
    job.limits.read_deadline_seconds = 20;
  }
};

Clock::time_point Soon() { return Clock::now() + std::chrono::seconds(30); }

// Digest and bytes of up to `steps` steps.
std::vector<std::string> Take(Host* host, std::size_t steps) {
  std::vector<std::string> out;
  while (out.size() < steps) {
    const auto batch = host->Next(Soon());
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    if (!batch.ok() || *batch == nullptr) break;
    std::string tokens;
    for (const MicrobatchView& view : (*batch)->buckets[0].view.microbatches) {
      for (const TensorView& tensor : view.tensors) {
        const auto memory =
            (*batch)->buckets[0].slab->memory().subspan(tensor.offset_bytes, tensor.size_bytes());
        tokens.append(reinterpret_cast<const char*>(memory.data()), memory.size());
      }
    }
    out.push_back((*batch)->plan->digest + " " + Xxh3_128(tokens).ToHex());
  }
  return out;
}

std::unique_ptr<Host> Make(const JobSpec& job, HostOptions options = {}) {
  auto host = Host::Make(job, std::move(options));
  EXPECT_TRUE(host.ok()) << host.status().ToString();
  return host.ok() ? std::move(*host) : nullptr;
}

TEST(Host, LatencyShortReadsAndThreadsChangeNothing) {
  Case c;
  const std::vector<std::string> reference = Take(Make(c.job).get(), 20);
  ASSERT_EQ(reference.size(), 20U);
  for (const std::uint64_t seed : {1U, 2U}) {
    Fault slow;
    slow.kind = FaultKind::kLatency;
    slow.probability = 0.3;
    slow.seconds = 0.003;
    Fault small;
    small.kind = FaultKind::kShortRead;
    small.probability = 0.5;
    small.bytes = 37;
    HostOptions options;
    options.fs = std::make_shared<FaultyFileSystem>(LocalFileSystem(),
                                                    std::vector<Fault>{slow, small}, seed);
    c.job.limits.threads = static_cast<std::uint32_t>(seed * 2);
    EXPECT_EQ(Take(Make(c.job, options).get(), 20), reference);
  }
}

TEST(Host, RestoresAtEveryStepFromItsState) {
  Case c;
  for (SourceSpec& source : c.job.sources) source.max_epochs = 2;
  const std::vector<std::string> reference = Take(Make(c.job).get(), 1000);
  ASSERT_GT(reference.size(), 30U);
  for (std::size_t k = 0; k <= reference.size(); ++k) {
    auto host = Make(c.job);
    ASSERT_EQ(Take(host.get(), k).size(), k);
    HostOptions options;
    options.state_json = *host->StateJson();
    EXPECT_EQ(Take(Make(c.job, options).get(), 1000),
              std::vector<std::string>(reference.begin() + static_cast<std::ptrdiff_t>(k),
                                       reference.end()))
        << k;
  }
}

// A carried piece lies before the cursor: its block is read again, and may still be on its way when
// the step is built.
TEST(Host, ARestoreWaitsForTheRecordsOfCarriedPieces) {
  Case c;
  for (SourceSpec& source : c.job.sources) source.max_epochs = 1;
  const std::vector<std::string> reference = Take(Make(c.job).get(), 1000);
  Fault slow;
  slow.kind = FaultKind::kLatency;
  slow.seconds = 0.002;
  for (std::size_t k = 1; k < reference.size(); ++k) {
    HostOptions options;
    auto host = Make(c.job);
    ASSERT_EQ(Take(host.get(), k).size(), k);
    options.state_json = *host->StateJson();
    options.fs = std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>{slow});
    EXPECT_EQ(Take(Make(c.job, options).get(), 2),
              std::vector<std::string>(reference.begin() + static_cast<std::ptrdiff_t>(k),
                                       reference.begin() + static_cast<std::ptrdiff_t>(
                                                               std::min(k + 2, reference.size()))));
  }
}

TEST(Host, AReadErrorNamesSourceAndFileAndIsReturnedAgain) {
  Case c;
  Fault fault;
  fault.path_pattern = "*b1.jsonl";
  fault.first = 4;  // after the fingerprints
  HostOptions options;
  options.fs = std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>{fault});
  auto host = Make(c.job, options);
  ASSERT_NE(host, nullptr);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    const auto batch = host->Next(Soon());
    status = batch.status();
  }
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.error_number(), EIO);
  EXPECT_NE(status.message().find("source 'b'"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("b1.jsonl"), std::string::npos) << status.message();
  EXPECT_EQ(host->Next(Soon()).status().message(), status.message());
}

TEST(Host, ADeadlineNamesTheSourceThatIsWaitedFor) {
  Case c;
  c.job.limits.read_deadline_seconds = 0.05;
  Fault stuck;
  stuck.kind = FaultKind::kLatency;
  stuck.path_pattern = "*/b*";
  stuck.first = 6;
  stuck.count = 1;
  stuck.seconds = 1.5;
  HostOptions options;
  options.fs = std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>{stuck});
  auto host = Make(c.job, options);
  ASSERT_NE(host, nullptr);
  Status status;
  for (int i = 0; i < 1000 && status.ok(); ++i) status = host->Next(Soon()).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("source 'b'"), std::string::npos) << status.message();
}

TEST(Host, SkippedStepsAreNotDeliveredAndTheRestIsTheSame) {
  Case c;
  const std::vector<std::string> reference = Take(Make(c.job).get(), 20);
  auto host = Make(c.job);
  auto seen = Take(host.get(), 5);
  Decision decision;
  decision.kind = Decision::Kind::kSkip;
  decision.steps = 3;
  const auto at = host->Decide(decision);
  ASSERT_TRUE(at.ok()) << at.status().ToString();
  EXPECT_EQ(*at, 5U);
  EXPECT_EQ(Take(host.get(), 12), std::vector<std::string>(reference.begin() + 8, reference.end()));
}

TEST(Host, AnEditThatCannotBeCarriedOutIsRefusedAndNotInTheJournal) {
  Case c;
  c.job.run_dir = c.folder.path() + "/run";
  const std::vector<std::string> reference = Take(Make(c.job).get(), 6);
  {
    auto host = Make(c.job);
    Take(host.get(), 2);
    Decision edit;
    edit.mixture_json = R"({"unit": "tokens", "stages": [{"weights": {"c": 1}}]})";
    const auto refused = host->Decide(edit);
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("\"c\""), std::string::npos);
    EXPECT_EQ(Take(host.get(), 2),
              std::vector<std::string>(reference.begin() + 2, reference.begin() + 4));
  }
  EXPECT_EQ(Take(Make(c.job).get(), 6), reference) << "the run can be started again";
}

TEST(Host, AnEditComesBeforeTheErrorOfAStepThatWasPlannedAhead) {
  Case c;
  c.job.sources[0].max_epochs = 1;
  c.job.sources[0].on_exhausted = ExhaustedPolicy::kError;
  c.job.lookahead_steps = 64;
  auto host = Make(c.job);
  Take(host.get(), 1);
  while (host->status().doing != "stopped") std::this_thread::yield();
  Decision edit;
  edit.mixture_json = R"({"unit": "tokens", "stages": [{"weights": {"b": 1}}]})";
  const auto step = host->Decide(edit);
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_EQ(*step, 1U);
  EXPECT_EQ(Take(host.get(), 80).size(), 80U) << "source a is drawn no more";
}

TEST(Host, WhoeverWaitsForABatchSeesNothingOfADecision) {
  Case c;
  auto host = Make(c.job);
  Take(host.get(), 1);
  std::atomic<bool> done = false;
  std::string fault;
  std::thread waiting([&] {
    while (!done) {
      bool ended = false;
      const auto step = host->TryNext(&ended);
      if (!step.ok()) {
        fault = step.status().ToString();
        return;
      }
      std::this_thread::yield();
    }
  });
  Decision skip;
  skip.kind = Decision::Kind::kSkip;
  skip.steps = 1;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(host->Decide(skip).ok());
  done = true;
  waiting.join();
  EXPECT_EQ(fault, "");
}

TEST(Host, AStoppedHostTakesNoDecision) {
  Case c;
  auto host = Make(c.job);
  Take(host.get(), 1);
  host->Stop();
  Decision skip;
  skip.kind = Decision::Kind::kSkip;
  skip.steps = 1;
  EXPECT_EQ(host->Decide(skip).status().code(), StatusCode::kCancelled);
}

TEST(Host, TheJournalIsReplayedAndAForkDropsLaterDecisions) {
  Case c;
  c.job.run_dir = c.folder.path() + "/run";
  std::string state;
  std::vector<std::string> edited;
  {
    auto host = Make(c.job);
    Take(host.get(), 4);
    state = *host->StateJson();
    Take(host.get(), 2);
    Decision edit;
    edit.mixture_json = R"({"unit": "tokens", "stages": [{"weights": {"a": 0.1, "b": 0.9}}]})";
    ASSERT_TRUE(host->Decide(edit).ok());
    edited = Take(host.get(), 8);
    ASSERT_TRUE(host->CommitJournal().ok());
  }
  HostOptions options;
  options.state_json = state;
  {
    auto host = Make(c.job, options);
    ASSERT_NE(host, nullptr);
    Take(host.get(), 2);
    EXPECT_EQ(Take(host.get(), 8), edited) << "the edit is replayed at its step";
  }
  options.fork = true;
  auto host = Make(c.job, options);
  ASSERT_NE(host, nullptr);
  Take(host.get(), 2);
  EXPECT_NE(Take(host.get(), 8), edited);
}

TEST(Host, AFullDiskWhileWritingTheJournalIsAClearError) {
  Case c;
  c.job.run_dir = c.folder.path() + "/run";
  Fault full;
  full.kind = FaultKind::kTornAppend;
  full.operation = FileOperation::kAppend;
  full.first = 3;
  full.bytes = 5;
  full.error_number = ENOSPC;
  HostOptions options;
  options.run_fs = std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>{full});
  auto host = Make(c.job, options);
  ASSERT_NE(host, nullptr);
  Status status;
  for (int i = 0; i < 3000 && status.ok(); ++i) {
    status = host->Next(Soon()).status();
    if (status.ok()) status = host->CommitJournal();
  }
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_EQ(status.error_number(), ENOSPC);
  EXPECT_NE(status.message().find("journal"), std::string::npos) << status.message();
  host.reset();
  EXPECT_NE(Make(c.job), nullptr) << "the torn tail is cut at the next start";
}

TEST(Host, StoppingIsQuickWhateverTheTrainerHolds) {
  Case c;
  c.job.limits.host_memory_bytes = 1U << 20;
  auto host = Make(c.job);
  std::vector<std::shared_ptr<const Step>> held;
  for (int i = 0; i < 4; ++i) {
    auto batch = host->Next(Clock::now() + std::chrono::milliseconds(300));
    if (batch.ok()) held.push_back(*batch);
  }
  host->Stop();
  EXPECT_EQ(host->Next(Soon()).status().code(), StatusCode::kCancelled);
}

TEST(Host, ATrainerThatHoldsEveryBatchAndWaitsForMoreIsToldSo) {
  Case c;
  c.job.limits.read_deadline_seconds = 0.2;
  auto host = Make(c.job);
  std::vector<std::shared_ptr<const Step>> held;
  Status status;
  while (status.ok() && held.size() < 10000) {
    auto batch = host->Next(Soon());
    status = batch.status();
    if (status.ok()) held.push_back(*batch);
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("a rank waits for step"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(" holds "), std::string::npos) << status.message();
}

TEST(Host, ALimitBelowTheFixedCostIsRefusedWithTheNumber) {
  Case c;
  c.job.limits.host_memory_bytes = 1000;
  const auto host = Host::Make(c.job, {});
  ASSERT_EQ(host.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(host.status().message().find("raise it to at least"), std::string::npos);
}

TEST(Host, NothingOutsideDataRootsIsOpened) {
  Case c;
  TemporaryFolder elsewhere;
  elsewhere.Write("x.jsonl", "{\"text\": \"secret\"}\n");
  c.job.sources[0].paths = {elsewhere.path() + "/x.jsonl"};
  const auto host = Host::Make(c.job, {});
  ASSERT_FALSE(host.ok());
  EXPECT_NE(host.status().message().find("data_roots"), std::string::npos)
      << host.status().message();
}

}  // namespace
}  // namespace widestream
