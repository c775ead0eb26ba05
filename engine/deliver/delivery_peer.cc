// A process of its own for delivery_process_test: a host or a trainer.
//   delivery_peer serve FOLDER RANKS SHARING      serves until it is killed; prints "serving"
//   delivery_peer fetch FOLDER RANKS RANK STEPS   prints "step N" for each; exit 0 if all were
//   right delivery_peer hold FOLDER RANKS RANK STEPS    takes steps, prints "holding", waits
//   delivery_peer time FOLDER RANKS RANK STEPS    with pauses, as if it trained; prints the median
//   of delivery_peer prefetch ...                    Next plus release in microseconds; prefetch
//   asks ahead delivery_peer orphan FOLDER RANKS RANK STEPS  the same, with a child that has its
//   socket too
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/deliver/client.h"
#include "engine/deliver/server.h"
#include "engine/deliver/testing_steps.h"

namespace widestream::delivery_testing {
namespace {

int Fail(const Status& status) {
  std::printf("error %s\n", status.ToString().c_str());
  return 2;
}

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int Serve(const std::string& folder, std::uint32_t ranks, std::uint32_t sharing) {
  FakeStream stream;
  stream.steps = 1U << 30;
  stream.tokens = 8 * 8192;
  stream.memory_bytes = std::size_t{64} << 20;
  stream.buckets = (ranks + sharing - 1) / sharing;
  auto server =
      Server::Make(OptionsFor(folder, ranks, sharing),
                   std::make_unique<FakeFactory>(stream, std::make_shared<FakeFactory::Log>()));
  if (!server.ok()) return Fail(server.status());
  Say("serving");
  for (;;) pause();
}

int Fetch(const std::string& mode, const std::string& folder, std::uint32_t ranks,
          std::uint32_t rank, std::uint64_t steps) {
  auto client = Client::Connect(ClientFor(OptionsFor(folder, ranks), rank), Soon());
  if (!client.ok()) return Fail(client.status());
  std::vector<std::shared_ptr<const ClientBatch>> held;
  for (std::uint64_t i = 0; i < steps; ++i) {
    auto batch = (*client)->Next(Soon());
    if (!batch.ok()) return Fail(batch.status());
    if (*batch == nullptr || !BytesAreRight(**batch)) return 3;
    Say("step " + std::to_string((*batch)->view.step));
    if (mode != "fetch") held.push_back(*batch);
  }
  if (mode == "fetch") return 0;
  if (mode == "orphan" && fork() == 0) {
    // Ends with the pipe of its parent's parent, so that no test leaves it behind.
    char byte = 0;
    while (read(STDIN_FILENO, &byte, 1) > 0) {
    }
    _exit(0);
  }
  Say("holding");
  for (;;) pause();
}

// How long a step takes from the trainer: Next, and dropping the batch of the step before.
int Time(const std::string& mode, const std::string& folder, std::uint32_t ranks,
         std::uint32_t rank, std::uint64_t steps) {
  ClientOptions options = ClientFor(OptionsFor(folder, ranks), rank);
  options.prefetch = mode == "prefetch";
  auto client = Client::Connect(options, Soon());
  if (!client.ok()) return Fail(client.status());
  std::vector<double> microseconds;
  std::shared_ptr<const ClientBatch> batch;
  for (std::uint64_t i = 0; i < steps; ++i) {
    const Clock::time_point begin = Clock::now();
    auto next = (*client)->Next(Soon());
    if (!next.ok() || *next == nullptr) return Fail(next.status());
    batch = std::move(*next);  // drops the one before
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    if (!BytesAreRight(*batch)) return 3;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }
  std::sort(microseconds.begin(), microseconds.end());
  const ClientCounters counters = (*client)->counters();
  std::printf(
      "median %.1f us, p90 %.1f us; %llu batches, %llu mappings, %llu sends, %llu receives, "
      "%llu polls\n",
      microseconds[steps / 2], microseconds[steps * 9 / 10],
      static_cast<unsigned long long>(counters.batches),   // NOLINT(google-runtime-int)
      static_cast<unsigned long long>(counters.mappings),  // NOLINT(google-runtime-int)
      static_cast<unsigned long long>(counters.sends),     // NOLINT(google-runtime-int)
      static_cast<unsigned long long>(counters.receives),  // NOLINT(google-runtime-int)
      static_cast<unsigned long long>(counters.polls));    // NOLINT(google-runtime-int)
  return 0;
}

}  // namespace
}  // namespace widestream::delivery_testing

int main(int argc, char** argv) {
  using namespace widestream::delivery_testing;  // NOLINT(google-build-using-namespace)
  const auto number = [&](int i) {
    return static_cast<std::uint32_t>(std::strtoul(argv[i], nullptr, 10));
  };
  if (argc == 5 && std::strcmp(argv[1], "serve") == 0) {
    return Serve(argv[2], number(3), number(4));
  }
  if (argc == 6 && (std::strcmp(argv[1], "time") == 0 || std::strcmp(argv[1], "prefetch") == 0)) {
    return Time(argv[1], argv[2], number(3), number(4), number(5));
  }
  if (argc == 6) return Fetch(argv[1], argv[2], number(3), number(4), number(5));
  return 1;
}
