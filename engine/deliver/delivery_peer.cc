// A process of its own for delivery_process_test: a host or a trainer.
//   delivery_peer serve FOLDER RANKS SHARING      serves until it is killed; prints "serving"
//   delivery_peer fetch FOLDER RANKS RANK STEPS   prints "step N" for each; exit 0 if all were
//   right delivery_peer hold FOLDER RANKS RANK STEPS    takes steps, prints "holding", waits
//   delivery_peer orphan FOLDER RANKS RANK STEPS  the same, with a child that has its socket too
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
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
  stream.tokens = 8192;
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
  if (argc == 6) return Fetch(argv[1], argv[2], number(3), number(4), number(5));
  return 1;
}
