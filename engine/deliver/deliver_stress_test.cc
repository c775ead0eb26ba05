// Eight ranks that are slow, hold batches, break off and come again. WIDESTREAM_STRESS_STEPS sets
// how long: 2,000 by default.
#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/deliver/client.h"
#include "engine/deliver/server.h"
#include "engine/deliver/testing_steps.h"
#include "engine/storage/temporary_folder.h"

namespace widestream::delivery_testing {
namespace {

using BatchPointer = std::shared_ptr<const ClientBatch>;

constexpr std::uint32_t kRanks = 8;
constexpr std::uint32_t kSharing = 2;
constexpr std::size_t kMostHeld = 2;

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;  // NOLINT(concurrency-mt-unsafe)
  closedir(folder);
  return count;
}

std::size_t MappedSlabs() {
  std::size_t count = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[1024];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    count += std::string(line).find("widestream-slab") != std::string::npos ? 1 : 0;
  }
  fclose(maps);
  return count;
}

// One rank. What it has let go of counts as trained on, once for each time.
class Rank {
 public:
  Rank(const ServerOptions& server, std::uint32_t rank, std::uint64_t steps, unsigned seed)
      : server_(server), rank_(rank), random_(seed + rank), trained_(steps, 0) {}

  void Run() {
    Attach();
    while (client_ != nullptr) {
      auto batch = client_->Next(Clock::time_point::max());
      if (!batch.ok()) return Fail(batch.status().ToString());
      if (*batch == nullptr) break;
      if (!BytesAreRight(**batch)) return Fail("wrong bytes");
      if (!held_.empty() && (*batch)->view.step <= held_.back()->view.step) {
        return Fail("a step came twice");
      }
      if (Chance(3)) Scribble(**batch);
      held_.push_back(std::move(*batch));
      batch = BatchPointer();
      if (Chance(64)) Pause(200);
      while (held_.size() > kMostHeld || (!held_.empty() && Chance(2))) LetGo();
      if (Chance(150)) BreakOff();
    }
    while (!held_.empty()) LetGo();
    client_.reset();
  }
  const std::string& failure() const { return failure_; }
  std::uint64_t attachments() const { return attachments_; }
  // Steps that were not trained on exactly once.
  std::uint64_t WrongSteps() const {
    std::uint64_t wrong = 0;
    for (const std::uint8_t times : trained_) wrong += times == 1 ? 0 : 1;
    return wrong;
  }

 private:
  bool Chance(unsigned one_in) { return random_() % one_in == 0; }
  void Pause(unsigned most_microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % most_microseconds));
  }
  void Fail(std::string why) {
    failure_ = "rank " + std::to_string(rank_) + ": " + std::move(why);
    held_.clear();
    client_.reset();
  }
  // An edit in place, which no other rank and no later step may see.
  static void Scribble(const ClientBatch& batch) {
    std::memset(batch.memory, 0x5a, batch.view.size_bytes / 2);
  }
  void LetGo() {
    ++trained_[held_.front()->view.step];
    next_ = held_.front()->view.step + 1;
    held_.pop_front();
  }
  void Attach() {
    ClientOptions options = ClientFor(server_, rank_);
    if (attachments_ > 0) options.begin_step = next_;
    options.prefetch = Chance(2);
    auto client = Client::Connect(options, Soon(60));
    if (!client.ok()) return Fail(client.status().ToString());
    client_ = std::move(*client);
    ++attachments_;
  }
  // As a process that dies, or that leaves: what is still held then has not been trained on.
  void BreakOff() {
    if (Chance(2)) {
      client_->DisconnectForTesting();
    } else {
      client_->Close();  // batches outlive it, and may be released after it
      while (!held_.empty()) LetGo();
    }
    held_.clear();
    client_.reset();
    if (Chance(2)) Pause(500);
    Attach();
  }

  const ServerOptions& server_;
  const std::uint32_t rank_;
  std::mt19937 random_;
  std::vector<std::uint8_t> trained_;
  std::unique_ptr<Client> client_;
  std::deque<BatchPointer> held_;
  std::uint64_t next_ = 0;
  std::uint64_t attachments_ = 0;
  std::string failure_;
};

TEST(DeliveryStress, H20NoStepIsLostOrRepeatedAndNothingLeaks) {
  const char* wanted = std::getenv("WIDESTREAM_STRESS_STEPS");  // NOLINT(concurrency-mt-unsafe)
  const std::uint64_t steps = wanted == nullptr ? 2000 : std::stoull(wanted);
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  const std::size_t descriptors = OpenDescriptors();
  const std::size_t slabs = MappedSlabs();
  {
    const TemporaryFolder folder;
    FakeStream stream;
    stream.steps = steps;
    stream.buckets = kRanks / kSharing;
    stream.tokens = 256;
    stream.varying_tokens = 2048;
    stream.memory_bytes = std::size_t{4} * 8 * (256 + 2048) * 8;
    const ServerOptions options = OptionsFor(folder.path(), kRanks, kSharing);
    auto server = Server::Make(
        options, std::make_unique<FakeFactory>(stream, std::make_shared<FakeFactory::Log>()));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    std::vector<Rank> ranks;
    ranks.reserve(kRanks);
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      ranks.emplace_back(options, rank, steps, seed);
    }
    std::vector<std::thread> threads;
    threads.reserve(kRanks);
    for (Rank& rank : ranks) threads.emplace_back([&rank] { rank.Run(); });
    for (std::thread& thread : threads) thread.join();
    std::uint64_t attachments = 0;
    for (const Rank& rank : ranks) {
      EXPECT_EQ(rank.failure(), "");
      EXPECT_EQ(rank.WrongSteps(), 0U);
      attachments += rank.attachments();
    }
    EXPECT_TRUE((*server)->WaitIdle(std::chrono::milliseconds(0), Soon()));
    // A client's last release may be on its way behind its goodbye.
    for (const auto end = Soon(); (*server)->status().steps_in_memory > 0 && Clock::now() < end;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const ServerStatus status = (*server)->status();
    EXPECT_EQ(status.sessions, 1U);
    EXPECT_EQ(status.steps_pulled, steps);
    EXPECT_EQ(status.steps_in_memory, 0U);
    EXPECT_EQ(status.clients_ever, attachments);
    EXPECT_EQ(status.bytes_copied, 0U);
    std::printf("%llu steps, %llu batches, %llu attachments\n",
                static_cast<unsigned long long>(steps),                // NOLINT(google-runtime-int)
                static_cast<unsigned long long>(status.batches_sent),  // NOLINT(google-runtime-int)
                static_cast<unsigned long long>(attachments));         // NOLINT(google-runtime-int)
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(MappedSlabs(), slabs);
}

}  // namespace
}  // namespace widestream::delivery_testing
