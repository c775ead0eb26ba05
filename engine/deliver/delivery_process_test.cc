// Server and clients as processes that are stopped and killed.
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/deliver/client.h"
#include "engine/deliver/server.h"
#include "engine/deliver/testing_steps.h"
#include "engine/storage/temporary_folder.h"

namespace widestream::delivery_testing {
namespace {

// A delivery_peer; killed with this object.
class Peer {
 public:
  explicit Peer(std::vector<std::string> arguments) {
    int in[2];
    int out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), WS_DELIVERY_PEER);
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    stdin_ = in[1];
    stdout_ = out[0];
  }
  ~Peer() {
    if (pid_ > 0) Kill(SIGKILL);
    close(stdin_);
    close(stdout_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // Reads lines until one begins with `text`; that line, or "" at the end of the output.
  std::string Await(const std::string& text) {
    std::string line;
    char byte = 0;
    while (read(stdout_, &byte, 1) == 1) {
      if (byte != '\n') {
        line += byte;
        continue;
      }
      if (line.starts_with(text)) return line;
      line.clear();
    }
    return "";
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // Waits until it is stopped indeed.
  void Stop() const {
    Signal(SIGSTOP);
    int result = 0;
    waitpid(pid_, &result, WUNTRACED);
  }
  // Sends the signal and waits for the end.
  void Kill(int signal) {
    Signal(signal);
    Join();
  }
  int Join() {
    int result = -1;
    waitpid(pid_, &result, 0);
    pid_ = 0;
    return result;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int stdin_ = -1;
  int stdout_ = -1;
};

std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> names;
  DIR* open = opendir(folder.c_str());
  while (const dirent* entry = readdir(open)) {  // NOLINT(concurrency-mt-unsafe)
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  closedir(open);
  return names;
}

class Processes : public testing::Test {
 protected:
  void Serve(std::uint32_t ranks, std::uint32_t sharing = 1,
             std::size_t memory_bytes = std::size_t{64} << 20) {
    FakeStream stream;
    stream.buckets = (ranks + sharing - 1) / sharing;
    stream.memory_bytes = memory_bytes;
    options_ = OptionsFor(folder_.path(), ranks, sharing);
    auto server = Server::Make(options_, std::make_unique<FakeFactory>(stream, log_));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    server_ = std::move(*server);
  }
  std::vector<std::string> Arguments(const std::string& mode, std::uint32_t ranks,
                                     std::uint32_t rank, int steps) {
    return {mode, folder_.path(), std::to_string(ranks), std::to_string(rank),
            std::to_string(steps)};
  }
  template <typename Condition>
  void Until(Condition condition) {
    while (!condition(server_->status())) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  TemporaryFolder folder_;
  ServerOptions options_;
  std::shared_ptr<FakeFactory::Log> log_ = std::make_shared<FakeFactory::Log>();
  std::unique_ptr<Server> server_;
};

TEST_F(Processes, AKilledTrainerFreesItsLeasesAndItsRankMayComeAgain) {
  Serve(2, 2, std::size_t{4} * 8192);
  Peer holder(Arguments("hold", 2, 0, 3));
  ASSERT_EQ(holder.Await("holding"), "holding");
  const auto other = *Client::Connect(ClientFor(options_, 1), Soon());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(other->Next(Soon()).ok());
  holder.Kill(SIGKILL);
  Until([](const ServerStatus& s) { return s.clients == 1 && !s.last_left_gracefully; });
  Peer again(Arguments("fetch", 2, 0, 3));
  EXPECT_EQ(again.Await("step 0"), "step 0");
  EXPECT_EQ(again.Join(), 0);
}

TEST_F(Processes, TheDeathOfATrainerIsSeenEvenIfItsChildHoldsTheSocket) {
  Serve(1);
  Peer trainer(Arguments("orphan", 1, 0, 1));
  ASSERT_EQ(trainer.Await("holding"), "holding");
  trainer.Kill(SIGKILL);
  Until([](const ServerStatus& s) { return s.clients == 0; });
}

TEST_F(Processes, AStoppedTrainerDoesNotHoldUpTheOthers) {
  Serve(2);
  Peer stopped(Arguments("hold", 2, 0, 2));
  ASSERT_EQ(stopped.Await("holding"), "holding");
  stopped.Stop();
  Peer other(Arguments("fetch", 2, 1, 200));
  EXPECT_EQ(other.Await("step 199"), "step 199");
  EXPECT_EQ(other.Join(), 0);
}

TEST_F(Processes, AKilledHostIsNoticedByWaitingAndIdleRanksLongBeforeTheirDeadline) {
  Peer host({"serve", folder_.path(), "2", "1"});
  ASSERT_EQ(host.Await("serving"), "serving");
  const ServerOptions options = OptionsFor(folder_.path(), 2);
  const auto client = *Client::Connect(ClientFor(options, 0), Soon());
  const auto batch = *client->Next(Soon());
  EXPECT_EQ(client->welcome().host_pid, host.pid());
  const std::string name = "host process " + std::to_string(host.pid());
  host.Stop();
  Status status;
  std::thread waiter([&] { status = client->Next(Clock::time_point::max()).status(); });
  host.Kill(SIGKILL);
  waiter.join();
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(options.log_path), std::string::npos) << status.message();
  EXPECT_EQ(client->CheckAlive().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(BytesAreRight(*batch));
}

TEST_F(Processes, AHostThatDoesNotAnswerIsAnErrorAtTheDeadlineNotAHang) {
  Peer host({"serve", folder_.path(), "1", "1"});
  ASSERT_EQ(host.Await("serving"), "serving");
  const ServerOptions options = OptionsFor(folder_.path(), 1);
  const auto client = *Client::Connect(ClientFor(options, 0), Soon());
  ASSERT_TRUE(client->Next(Soon()).ok());
  host.Stop();
  const Status status = client->Next(Clock::now()).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("is it stopped"), std::string::npos) << status.message();
  host.Signal(SIGCONT);
  const auto batch = client->Next(Soon());
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ((*batch)->view.step, 1U);
}

TEST_F(Processes, H02AHostThatWasKilledLeavesNothingThatStopsTheNext) {
  for (int i = 0; i < 3; ++i) {
    Peer host({"serve", folder_.path(), "1", "1"});
    ASSERT_EQ(host.Await("serving"), "serving");
    Peer trainer(Arguments("fetch", 1, 0, 5));
    EXPECT_EQ(trainer.Await("step 4"), "step 4");
    EXPECT_EQ(trainer.Join(), 0);
    host.Kill(SIGKILL);
  }
  // One socket file, no matter how often; the slabs have no names anywhere.
  EXPECT_EQ(FilesOf(folder_.path()), std::vector<std::string>{"host.sock"});
  for (const std::string& name : FilesOf("/dev/shm")) {
    EXPECT_EQ(name.find("widestream"), std::string::npos) << name;
  }
}

TEST_F(Processes, H05AfterACancelledRunTheNextOneRuns) {
  Peer host({"serve", folder_.path(), "1", "1"});
  ASSERT_EQ(host.Await("serving"), "serving");
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    Peer cancelled(Arguments("hold", 1, 0, 2));
    ASSERT_EQ(cancelled.Await("holding"), "holding");
    cancelled.Kill(signal);
    Peer next(Arguments("fetch", 1, 0, 4));
    EXPECT_EQ(next.Await("step 3"), "step 3");
    EXPECT_EQ(next.Join(), 0);
  }
}

}  // namespace
}  // namespace widestream::delivery_testing
