// Server and clients in one process.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "engine/deliver/client.h"
#include "engine/deliver/frame.h"
#include "engine/deliver/messages.h"
#include "engine/deliver/server.h"
#include "engine/deliver/socket.h"
#include "engine/deliver/testing_steps.h"
#include "engine/storage/temporary_folder.h"

namespace widestream::delivery_testing {
namespace {

using BatchPointer = std::shared_ptr<const ClientBatch>;

// A server of a fake stream, in a folder of its own.
class Delivery : public testing::Test {
 protected:
  void Serve(FakeStream stream, std::uint32_t ranks, std::uint32_t sharing = 1) {
    stream.buckets = (ranks + sharing - 1) / sharing;
    if (options_.folder.empty()) options_ = OptionsFor(folder_.path(), ranks, sharing);
    auto server = Server::Make(options_, std::make_unique<FakeFactory>(stream, log_));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  std::unique_ptr<Client> Attach(std::uint32_t rank) { return Attach(ClientFor(options_, rank)); }
  static std::unique_ptr<Client> Attach(const ClientOptions& options) {
    auto client = Client::Connect(options, Soon());
    EXPECT_TRUE(client.ok()) << client.status().ToString();
    return client.ok() ? std::move(*client) : nullptr;
  }
  static BatchPointer Take(Client& client) {
    auto batch = client.Next(Soon());
    EXPECT_TRUE(batch.ok()) << batch.status().ToString();
    return batch.ok() ? *batch : nullptr;
  }
  // Takes and drops the steps `first` to `last`.
  static void Consume(Client& client, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t step = first; step <= last; ++step) {
      const BatchPointer batch = Take(client);
      ASSERT_NE(batch, nullptr);
      EXPECT_EQ(batch->view.step, step);
      EXPECT_TRUE(BytesAreRight(*batch)) << "step " << step;
    }
  }
  // Waits until the server agrees.
  template <typename Condition>
  void Until(Condition condition) {
    while (!condition(server_->status())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  FakeProvider& provider() {
    MutexLock lock(log_->mutex);
    return *log_->last;
  }
  int opened() {
    MutexLock lock(log_->mutex);
    return log_->opened;
  }

  TemporaryFolder folder_;
  ServerOptions options_;
  std::shared_ptr<FakeFactory::Log> log_ = std::make_shared<FakeFactory::Log>();
  std::unique_ptr<Server> server_;
};

void ExpectMessage(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status.ToString();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "no '" << part << "' in: " << status.message();
  }
}

TEST_F(Delivery, EveryRankGetsItsBytesOfEveryStepInOrderAndThenTheEnd) {
  FakeStream stream;
  stream.steps = 50;
  stream.varying_tokens = 3000;
  Serve(stream, 2);
  std::vector<std::thread> ranks;
  ranks.reserve(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto client = Attach(rank);
      EXPECT_EQ(client->welcome().dp, rank);
      EXPECT_EQ(client->welcome().description_json, "{\"description\": true}");
      Consume(*client, 0, 49);
      EXPECT_EQ(Take(*client), nullptr);
      EXPECT_EQ(Take(*client), nullptr);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  Until([](const ServerStatus& s) { return s.steps_in_memory == 0; });
  EXPECT_EQ(server_->status().steps_pulled, 50U);
}

TEST_F(Delivery, BatchesCarryTheFiguresOfTheWholeStep) {
  Serve({}, 2);
  const auto client = Attach(1);
  const BatchPointer batch = Take(*client);
  EXPECT_EQ(batch->real_tokens, 2048U);
  EXPECT_EQ(batch->supervised_tokens, 2046U);
  EXPECT_EQ(batch->tokens_by_source, std::vector<std::uint64_t>{2048});
  EXPECT_EQ(batch->digest, std::string(32, 'd'));
  EXPECT_EQ(batch->costs.size(), 2U);
  EXPECT_EQ(batch->weights, std::vector<std::uint64_t>{1ULL << 32});
  EXPECT_EQ(batch->view.rank, 1U);
}

TEST_F(Delivery, P05RanksThatShareABucketMapTheSameMemoryAndNothingIsCopied) {
  Serve({}, 4, 4);
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) clients.push_back(Attach(rank));
  for (std::uint64_t step = 0; step < 20; ++step) {
    for (auto& client : clients) Consume(*client, step, step);
  }
  // One bucket a step is in memory, however many ranks there are: three are ahead once all is
  // released. A rank maps a slab once.
  Until([](const ServerStatus& s) { return s.steps_in_memory == 0; });
  EXPECT_LE(provider().pool().leases(), 3U);
  for (auto& client : clients) {
    EXPECT_LE(client->counters().mappings, 20U);
    EXPECT_EQ(client->counters().bytes_copied, 0U);
  }
  EXPECT_EQ(server_->status().bytes_copied, 0U);
}

TEST_F(Delivery, EditsInPlaceArePrivateAndDoNotShowInTheNextStepOnTheSameSlab) {
  FakeStream stream;
  stream.memory_bytes = 16384;  // two slabs: each is used again and again
  Serve(stream, 2, 2);
  const auto editor = Attach(0);
  const auto reader = Attach(1);
  for (std::uint64_t step = 0; step < 20; ++step) {
    BatchPointer edited = Take(*editor);
    ASSERT_TRUE(BytesAreRight(*edited)) << "stale data in step " << step;
    std::memset(edited->memory, 0xab, edited->view.size_bytes);
    Consume(*reader, step, step);
  }
  EXPECT_EQ(editor->counters().mappings, 2U);
}

TEST_F(Delivery, ASlabIsNotUsedAgainWhileABatchOnItIsHeld) {
  FakeStream stream;
  stream.memory_bytes = std::size_t{4} * 8192;
  Serve(stream, 1);
  const auto client = Attach(0);
  const BatchPointer held = Take(*client);
  Consume(*client, 1, 30);
  EXPECT_TRUE(BytesAreRight(*held));
}

TEST_F(Delivery, BatchesOutliveTheirClientAndKeepTheirMemory) {
  FakeStream stream;
  stream.memory_bytes = std::size_t{4} * 8192;
  Serve(stream, 1);
  BatchPointer held;
  {
    const auto client = Attach(0);
    held = Take(*client);
    client->Close();
    EXPECT_EQ(client->Next(Soon()).status().code(), StatusCode::kCancelled);
  }
  Until([](const ServerStatus& s) { return s.clients == 0; });
  EXPECT_TRUE(server_->status().last_left_gracefully);
  const auto next = Attach(0);
  Consume(*next, 0, 30);
  EXPECT_TRUE(BytesAreRight(*held));
  held.reset();
}

TEST_F(Delivery, R09WhatWasFetchedButNotAcknowledgedIsNeitherLostNorRepeated) {
  for (const bool prefetch : {false, true}) {
    server_.reset();
    Serve({}, 2);
    ClientOptions options = ClientFor(options_, 0);
    options.prefetch = prefetch;
    auto first = Attach(options);
    const auto other = Attach(1);
    Consume(*first, 0, 4);
    Consume(*other, 0, 2);
    Take(*first).reset();  // 5 is acknowledged; with prefetch, 6 is under way
    Until([](const ServerStatus& s) {
      return s.places[0].unacknowledged.empty() || s.places[0].unacknowledged.front() == 6;
    });
    first->DisconnectForTesting();
    Until([](const ServerStatus& s) { return s.clients == 1; });
    options.begin_step = 6;
    const auto again = Attach(options);
    Consume(*again, 6, 9);
    Consume(*other, 3, 9);
  }
}

TEST_F(Delivery, ARankThatDiesMayAttachAgainAndGetsTheSameBytes) {
  Serve({}, 2);
  auto first = Attach(0);
  const auto other = Attach(1);
  Consume(*first, 0, 0);
  Take(*other).reset();
  static_cast<void>(first->Next(Soon()));
  Until([](const ServerStatus& s) { return s.places[0].unacknowledged.empty(); });
  first->DisconnectForTesting();
  Until([](const ServerStatus& s) { return s.clients == 1 && !s.last_left_gracefully; });
  ClientOptions options = ClientFor(options_, 0);
  options.begin_step = 2;
  const auto again = Attach(options);
  Consume(*again, 2, 5);
  Consume(*other, 1, 5);
}

TEST_F(Delivery, AStepThatWasAcknowledgedIsNotDeliveredAgain) {
  Serve({}, 2);
  auto first = Attach(0);
  const auto other = Attach(1);
  Consume(*first, 0, 3);
  Until([](const ServerStatus& s) { return s.places[0].unacknowledged.empty(); });
  first->DisconnectForTesting();
  Until([](const ServerStatus& s) { return s.clients == 1; });
  ClientOptions options = ClientFor(options_, 0);
  options.begin_step = 2;
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kInvalidArgument,
                {"rank 0", "acknowledged step 3", "restart all ranks"});
  options.begin_step.reset();
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kUnavailable,
                {"rank 0", "begins again", "1 client goes on"});
}

TEST_F(Delivery, WhenAllRanksHaveGoneTheNextStartBeginsAfresh) {
  Serve({}, 2);
  {
    const auto a = Attach(0);
    const auto b = Attach(1);
    Consume(*a, 0, 3);
    Consume(*b, 0, 3);
  }
  Until([](const ServerStatus& s) { return s.clients == 0; });
  ClientOptions options = ClientFor(options_, 1);
  {
    const auto same = Attach(options);
    Consume(*same, 0, 1);
  }
  Until([](const ServerStatus& s) { return s.clients == 0; });
  options.state_json = "7";
  options.launcher_id = "start-2";
  const auto resumed = Attach(options);
  Consume(*resumed, 7, 8);
  EXPECT_EQ(opened(), 3);
}

TEST_F(Delivery, ARankThatNeverReleasesIsNamedWithItsStepsInsteadOfAHang) {
  FakeStream stream;
  stream.memory_bytes = std::size_t{4} * 8192;
  options_ = OptionsFor(folder_.path(), 2, 2);
  options_.hold_deadline = std::chrono::milliseconds(50);
  Serve(stream, 2, 2);
  const auto holder = Attach(0);
  const auto other = Attach(1);
  std::vector<BatchPointer> held;
  held.reserve(4);
  for (int i = 0; i < 4; ++i) held.push_back(Take(*holder));
  Consume(*other, 0, 3);
  const Status status = other->Next(Soon()).status();
  ExpectMessage(status, StatusCode::kResourceExhausted,
                {"rank 0 (process ", "has not released steps 0 to 3", "limits.host_memory"});
  EXPECT_EQ(status.message().find("rank 1"), std::string::npos) << status.message();
  // Nothing is lost: once they are dropped the stream goes on.
  held.clear();
  Consume(*other, 4, 6);
}

TEST_F(Delivery, ADeadlineSaysWhoHoldsWhatAndNothingIsLost) {
  FakeStream stream;
  stream.memory_bytes = std::size_t{2} * 8192;
  Serve(stream, 2, 2);
  const auto client = Attach(1);
  Consume(*client, 0, 1);
  for (int i = 0; i < 2; ++i) {
    ExpectMessage(client->Next(Clock::now() + std::chrono::milliseconds(20)).status(),
                  StatusCode::kDeadlineExceeded,
                  {"\"doing\": \"testing\"",
                   "rank 0 (not attached yet) has not released steps 0 "
                   "to 1"});
  }
  const auto late = Attach(0);
  Consume(*late, 0, 1);
  Consume(*client, 2, 3);
}

TEST_F(Delivery, RefusalsSayWhatDiffers) {
  Serve({}, 2);
  const auto client = Attach(0);
  ClientOptions options = ClientFor(options_, 0);
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kUnavailable,
                {"rank 0", "process " + std::to_string(getpid()), "attached as this rank already"});
  options.rank = 1;
  options.job_hash = "another";
  options.job_keys[0].second = "2";
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kInvalidArgument,
                {"another job", "\"seed\" (the host has \"1\", the trainer \"2\")"});
  options = ClientFor(options_, 1);
  options.world = 4;
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kInvalidArgument,
                {"a world of 2 ranks, the trainer has 4"});
  options = ClientFor(options_, 2);
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kInvalidArgument,
                {"it serves the ranks 0 to 1"});
  options = ClientFor(options_, 1);
  options.state_json = "{\"step\": 12}";
  options.fork = true;
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kUnavailable,
                {"another state (the beginning here, step 12 in the trainer)", "fork off here"});
  options = ClientFor(options_, 1);
  options.launcher_id = "start-2";
  ExpectMessage(Client::Connect(options, Soon()).status(), StatusCode::kUnavailable,
                {"1 client is still served", "\"start-1\" here, \"start-2\" in the trainer"});
  Consume(*client, 0, 3);
}

TEST_F(Delivery, ASessionThatDoesNotOpenSaysWhyToItsClientsAndMayBeTriedAgain) {
  Serve({}, 2);
  {
    MutexLock lock(log_->mutex);
    log_->refuse = Status::NotFound("shard 7 is gone");
  }
  ExpectMessage(Client::Connect(ClientFor(options_, 0), Soon()).status(), StatusCode::kNotFound,
                {"shard 7 is gone"});
  {
    MutexLock lock(log_->mutex);
    log_->refuse = Status::Ok();
  }
  Consume(*Attach(0), 0, 1);
}

TEST_F(Delivery, TheSameDecisionOfAllRanksCountsOnce) {
  Serve({}, 3);
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(4);
  for (std::uint32_t rank = 0; rank < 3; ++rank) clients.push_back(Attach(rank));
  for (auto& client : clients) Consume(*client, 0, 4);
  Decision decision;
  decision.kind = Decision::Kind::kSkip;
  decision.steps = 2;
  for (auto& client : clients) {
    const auto step = client->Decide(decision, Soon());
    ASSERT_TRUE(step.ok()) << step.status().ToString();
    EXPECT_EQ(*step, 5U);
  }
  EXPECT_EQ(provider().decisions(), 1);
  decision.reason = "refuse";
  for (auto& client : clients) {
    ExpectMessage(client->Decide(decision, Soon()).status(), StatusCode::kInvalidArgument,
                  {"this decision is refused"});
  }
  decision.reason = "";
  ASSERT_TRUE(clients[0]->Decide(decision, Soon()).ok());
  decision.steps = 3;
  ExpectMessage(clients[1]->Decide(decision, Soon()).status(), StatusCode::kInvalidArgument,
                {"decision 2 of rank 1 differs"});
  EXPECT_EQ(provider().decisions(), 2);
}

TEST_F(Delivery, ADecisionTakesEffectBehindWhatIsAskedForAlready) {
  Serve({}, 2);
  std::vector<std::unique_ptr<Client>> clients;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    ClientOptions options = ClientFor(options_, rank);
    options.prefetch = true;
    clients.push_back(Attach(options));
  }
  for (auto& client : clients) Consume(*client, 0, 2);
  Decision decision;
  decision.kind = Decision::Kind::kSkip;
  decision.steps = 1;
  for (auto& client : clients) {
    const auto step = client->Decide(decision, Soon());
    ASSERT_TRUE(step.ok()) << step.status().ToString();
    EXPECT_EQ(*step, 4U) << "step 3 is on its way";
    Consume(*client, 3, 3);
  }
  // After different batches it is not one decision.
  EXPECT_TRUE(clients[0]->Decide(decision, Soon()).ok());
  ASSERT_NE(Take(*clients[1]), nullptr);
  ExpectMessage(clients[1]->Decide(decision, Soon()).status(), StatusCode::kInvalidArgument,
                {"decision 1 of rank 1 differs", "after the same batch"});
}

TEST_F(Delivery, ADecisionOfARankThatDoesNotFetchWaitsForOneThatDoes) {
  options_ = OptionsFor(folder_.path(), 2, 2);
  options_.places[1].fetches = false;
  options_.places[1].leader = 0;
  Serve({}, 2, 2);
  const auto leader = Attach(0);
  const auto peer = Attach(1);
  Consume(*leader, 0, 1);
  Decision decision;
  decision.kind = Decision::Kind::kSkip;
  decision.steps = 1;
  EXPECT_EQ(peer->Decide(decision, Clock::now() + std::chrono::milliseconds(50)).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(provider().decisions(), 0);
  EXPECT_EQ(*leader->Decide(decision, Soon()), 2U);
  EXPECT_EQ(*leader->Decide(decision, Soon()), 2U);
  EXPECT_EQ(*peer->Decide(decision, Soon()), 2U) << "the second one of both";
  EXPECT_EQ(provider().decisions(), 2);
}

TEST_F(Delivery, StatesFollowTheClientsOwnPositionAndLongOnesTravelToo) {
  Serve({}, 2);
  const auto client = Attach(0);
  const auto other = Attach(1);
  Consume(*other, 0, 5);
  EXPECT_EQ(*client->StateJson(std::nullopt, Soon()), "{\"step\": 0}");
  Consume(*client, 0, 2);
  EXPECT_EQ(*client->StateJson(std::nullopt, Soon()), "{\"step\": 3}");
  EXPECT_EQ(*client->StateJson(2, Soon()), "{\"step\": 2}");
  provider().PadState(3 << 20);
  EXPECT_EQ(client->StateJson(2, Soon())->size(), (3U << 20) + 11);
  EXPECT_TRUE(client->CommitJournal(Soon()).ok());
  const BatchPointer batch = Take(*client);
  const auto plan = client->Plan(3, Soon());
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->step, 3U);
  EXPECT_EQ(client->Plan(0, Soon()).status().code(), StatusCode::kNotFound);
  Until([](const ServerStatus& s) { return s.places[0].unacknowledged.front() == 3; });
  const std::string status = *client->StatusJson(Soon());
  EXPECT_NE(status.find("\"unacknowledged\": [3, 4, 5]"), std::string::npos) << status;
}

TEST_F(Delivery, ErrorsOfThePipelineReachEveryRankUntilADecision) {
  Serve({}, 2);
  const auto client = Attach(0);
  Consume(*client, 0, 0);
  provider().Fail(Status::DataCorruption("record 7 of web"));
  for (int i = 0; i < 2; ++i) {
    ExpectMessage(client->Next(Soon()).status(), StatusCode::kDataCorruption, {"record 7 of web"});
  }
  ASSERT_TRUE(client->Decide({}, Soon()).ok());
  Consume(*client, 1, 3);
}

TEST_F(Delivery, ARankThatDoesNotFetchIsToldWhoDoes) {
  options_ = OptionsFor(folder_.path(), 2, 2);
  options_.places[1].fetches = false;
  options_.places[1].leader = 0;
  Serve({}, 2, 2);
  const auto leader = Attach(0);
  const auto peer = Attach(1);
  EXPECT_FALSE(peer->welcome().fetches);
  EXPECT_EQ(peer->welcome().leader, 0U);
  ExpectMessage(peer->Next(Soon()).status(), StatusCode::kInvalidArgument, {"rank 0 fetches"});
  Consume(*leader, 0, 9);
  Until([](const ServerStatus& s) { return s.steps_in_memory == 0; });
}

TEST_F(Delivery, AStoppedServerIsNoticedByWaitingAndByIdleClientsAndHeldBatchesStay) {
  FakeStream stream;
  stream.memory_bytes = std::size_t{2} * 8192;
  Serve(stream, 2);
  const auto waiting = Attach(0);
  const auto idle = Attach(1);
  const BatchPointer held = Take(*waiting);
  std::thread waiter([&] {
    ExpectMessage(waiting->Next(Soon()).status(), StatusCode::kUnavailable, {"host was stopped"});
  });
  Until([](const ServerStatus& s) { return s.steps_pulled == 1; });
  server_->Stop();
  waiter.join();
  EXPECT_EQ(idle->CheckAlive().code(), StatusCode::kUnavailable);
  EXPECT_EQ(idle->Next(Soon()).status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(BytesAreRight(*held));
  EXPECT_NE(access(server_->socket_path().c_str(), F_OK), 0);
  ExpectMessage(Client::Connect(ClientFor(options_, 0), Soon()).status(), StatusCode::kUnavailable,
                {"no host listens"});
}

TEST_F(Delivery, WithPrefetchABatchCostsOneReceiveAndAtMostTwoSends) {
  Serve({}, 1);
  ClientOptions options = ClientFor(options_, 0);
  options.prefetch = true;
  const auto client = Attach(options);
  Consume(*client, 0, 3);
  Until([](const ServerStatus& s) { return s.batches_sent == 5; });
  const ClientCounters before = client->counters();
  constexpr std::uint64_t kBatches = 50;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    Consume(*client, 4 + i, 4 + i);
    Until([&](const ServerStatus& s) { return s.batches_sent == 6 + i; });
  }
  const ClientCounters after = client->counters();
  // The next question goes along with the release, unless it is asked before that.
  EXPECT_GE(after.sends - before.sends, kBatches);
  EXPECT_LE(after.sends - before.sends, 2 * kBatches);
  EXPECT_EQ(after.receives - before.receives, kBatches);
  EXPECT_EQ(after.polls - before.polls, 0U);
}

TEST_F(Delivery, AForkedChildIsRefusedAndDisturbsNothing) {
  Serve({}, 1);
  const auto client = Attach(0);
  BatchPointer batch = Take(*client);
  const pid_t child = fork();
  if (child == 0) {
    const Status status = client->Next(Soon()).status();
    const bool refused = status.code() == StatusCode::kInvalidArgument &&
                         status.message().find("fork") != std::string::npos &&
                         BytesAreRight(*batch);
    batch.reset();
    _exit(refused ? 0 : 1);
  }
  int result = 0;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(BytesAreRight(*batch));
  batch.reset();
  Consume(*client, 1, 5);
}

TEST_F(Delivery, WaitIdleEndsWhenTheLastClientHasLeft) {
  Serve({}, 2);
  EXPECT_TRUE(server_->WaitIdle(std::chrono::milliseconds(0), Soon()));
  auto a = Attach(0);
  auto b = Attach(1);
  EXPECT_FALSE(server_->WaitIdle(std::chrono::milliseconds(0), Clock::now()));
  std::thread leaver([&] {
    a.reset();
    b->DisconnectForTesting();
  });
  EXPECT_TRUE(server_->WaitIdle(std::chrono::milliseconds(20), Soon()));
  leaver.join();
  EXPECT_EQ(server_->status().clients_ever, 2U);
}

TEST_F(Delivery, SlabsThatTheHostGaveUpAreUnmapped) {
  FakeStream stream;
  stream.varying_tokens = 60000;  // sizes differ so much that slabs are replaced
  stream.memory_bytes = 2 << 20;
  Serve(stream, 1);
  const auto client = Attach(0);
  Consume(*client, 0, 300);
  EXPECT_GT(client->counters().mappings, 5U);
  std::size_t mapped = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  ASSERT_NE(maps, nullptr);
  char line[512];
  while (fgets(line, sizeof(line), maps) != nullptr) {
    mapped += std::string(line).find("widestream-slab") != std::string::npos ? 1 : 0;
  }
  fclose(maps);
  // The host's own mappings, and the client's of the same slabs with at most a few that are gone.
  EXPECT_LE(mapped, 40U);
}

// What a foreign process may write into the socket.
class RawPeer {
 public:
  explicit RawPeer(const std::string& path) : socket_(*delivery::Connect(path)) {}
  void Write(const std::string& bytes) const {
    ASSERT_EQ(send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // The error that the server answers before it closes.
  Status Answer() {
    delivery::FrameBuffer frames;
    char buffer[4096];
    for (;;) {
      const delivery::Received got =
          delivery::ReceiveSome(socket_.get(), buffer, sizeof(buffer), nullptr);
      if (got.outcome == delivery::Received::Outcome::kWouldBlock) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      if (got.outcome != delivery::Received::Outcome::kBytes) return Status::Ok();
      frames.Append({buffer, got.bytes});
      auto frame = frames.Next();
      if (!frame.ok()) return frame.status();
      if (!frame->has_value()) continue;
      Status error;
      WS_RETURN_IF_ERROR(delivery::DecodeError((*frame)->body, &error));
      return error;
    }
  }

 private:
  delivery::FileDescriptor socket_;
};

TEST_F(Delivery, AClientOfAnotherVersionGetsAReadableError) {
  Serve({}, 1);
  std::string hello = delivery::EncodeFrame(delivery::MessageType::kHello, 1, "");
  hello[4] = 9;
  RawPeer peer(server_->socket_path());
  peer.Write(hello);
  ExpectMessage(peer.Answer(), StatusCode::kInvalidArgument,
                {"version 9", "version 1", "same release"});
}

TEST_F(Delivery, NonsenseOnTheSocketDisturbsNobodyElse) {
  Serve({}, 1);
  const auto client = Attach(0);
  const std::string good = delivery::EncodeFrame(delivery::MessageType::kHello, 1, "");
  std::string huge = good;
  huge[15] = 0x7f;
  for (const std::string& bytes :
       {std::string(64, 'x'), good, huge,
        delivery::EncodeFrame(delivery::MessageType::kNext, 1, delivery::EncodeNumber(0))}) {
    RawPeer peer(server_->socket_path());
    peer.Write(bytes);
    EXPECT_FALSE(peer.Answer().ok());
  }
  {
    RawPeer silent(server_->socket_path());
  }
  Consume(*client, 0, 5);
}

TEST_F(Delivery, FoldersAndPathsAreChecked) {
  options_ = OptionsFor(folder_.path(), 1);
  const auto make = [&](const ServerOptions& options) {
    return Server::Make(options, std::make_unique<FakeFactory>(FakeStream{}, log_)).status();
  };
  ServerOptions options = options_;
  options.folder = folder_ / "absent";
  EXPECT_EQ(make(options).code(), StatusCode::kIoError);
  ASSERT_EQ(chmod(folder_.path().c_str(), 0755), 0);
  ExpectMessage(make(options_), StatusCode::kInvalidArgument, {"open to other users", "chmod 700"});
  ASSERT_EQ(chmod(folder_.path().c_str(), 0700), 0);
  options = options_;
  options.socket_name = std::string(120, 's');
  ExpectMessage(make(options), StatusCode::kInvalidArgument,
                {"1 to 107", "WIDESTREAM_RUNTIME_DIR"});
  options = options_;
  options.places[0].rank = 1;
  EXPECT_EQ(make(options).code(), StatusCode::kInvalidArgument);
  folder_.Write("host.sock", "not a socket");
  ExpectMessage(make(options_), StatusCode::kInvalidArgument, {"is no socket"});
  ASSERT_EQ(unlink((folder_ / "host.sock").c_str()), 0);

  Serve({}, 1);
  struct stat info{};
  ASSERT_EQ(stat(server_->socket_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  ExpectMessage(make(options_), StatusCode::kUnavailable,
                {"process " + std::to_string(getpid()) + " already serves"});
}

TEST_F(Delivery, AnotherUserIsRefusedEvenWhereTheFolderLetsItIn) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Serve({}, 1);
  const auto client = Attach(0);
  ASSERT_EQ(chmod(folder_.path().c_str(), 0711), 0);
  ASSERT_EQ(chmod(server_->socket_path().c_str(), 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setuid(65534) != 0) _exit(1);
    // By our own client, and by one that does not look who the host is.
    const auto refused = Client::Connect(ClientFor(options_, 0), Soon());
    if (refused.status().message().find("runs as user 0") == std::string::npos) _exit(2);
    RawPeer peer(server_->socket_path());
    const Status answer = peer.Answer();
    _exit(answer.message().find("not as user 65534") != std::string::npos ? 0 : 3);
  }
  int result = 0;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(WEXITSTATUS(result), 0);
  Consume(*client, 0, 3);
}

}  // namespace
}  // namespace widestream::delivery_testing
