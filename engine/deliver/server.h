// Server: delivers the steps of a provider to the trainer processes of one node, over a Unix
// socket. docs/formats/delivery.md describes what is said on it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/construct/batch.h"
#include "engine/deliver/step_provider.h"

namespace widestream {

// A trainer rank that this node feeds.
struct ServedPlace {
  std::uint32_t rank = 0;    // in the world
  std::uint32_t bucket = 0;  // index in Step::buckets
  bool fetches = true;       // false: `leader` fetches for it and it gets no steps of its own
  std::uint32_t leader = 0;  // world rank
  std::uint32_t dp = 0, cp = 0, tp = 0, pp = 0;
};

// What one place gets of its bucket; offsets are into the same memory. Pure and thread-safe.
using PlaceSelector = std::function<BatchView(const BatchView& bucket, const ServedPlace& place)>;

struct ServerOptions {
  // Exists, belongs to this user, mode 0700. Two servers in one folder: the second is refused.
  std::string folder;
  std::string socket_name = "host.sock";
  std::string log_path;  // named in messages of the clients; "" if there is none
  // Clients of another job are refused; with the keys the message names what differs.
  std::string job_hash;
  std::vector<std::pair<std::string, std::string>> job_keys;  // path, value (or its hash)
  std::uint32_t world = 1;
  std::vector<ServedPlace> places;
  PlaceSelector select;  // none: the whole bucket
  // A step that is asked for and waits for memory this long (StepProvider::WaitsForMemory) is an
  // error that names who holds which steps.
  std::chrono::milliseconds hold_deadline{30000};
  // Called on the server's thread whenever a client has attached or left. It must not wait.
  std::function<void()> on_change;
};

struct PlaceStatus {
  std::uint32_t rank = 0;
  bool attached = false;
  std::int32_t pid = 0;  // of the client that is or was last attached; 0: none yet
  std::vector<std::uint64_t> unacknowledged;  // steps in memory that this place has not released
};

struct ServerStatus {
  std::uint32_t clients = 0;                         // attached and welcomed
  std::uint64_t clients_ever = 0;                    // welcomed since the start
  bool last_left_gracefully = true;                  // said goodbye; false: its process died
  std::chrono::steady_clock::time_point idle_since;  // meaningful while clients == 0
  std::uint64_t sessions = 0;                        // opened so far
  std::uint64_t steps_in_memory = 0;
  std::uint64_t steps_pulled = 0;
  std::uint64_t batches_sent = 0;
  std::uint64_t descriptors_sent = 0;  // slabs that a client saw for the first time
  std::uint64_t bytes_copied = 0;      // of tensors: always 0, they are mapped
  std::vector<PlaceStatus> places;
};

// Thread-safe. One thread serves all clients and never waits for any of them; a second one makes
// the calls of the provider that may wait. A client that stops, dies or talks nonsense disturbs no
// other. The destructor stops.
class Server {
 public:
  // Listens when it returns. InvalidArgument: folder or options. Unavailable: another server serves
  // this folder.
  static Result<std::unique_ptr<Server>> Make(ServerOptions options,
                                              std::unique_ptr<SessionFactory> factory);
  virtual ~Server() = default;

  virtual ServerStatus status() const = 0;
  // Waits until no client is attached, and then has not been for `quiet`; false at `deadline` or
  // when the server stops.
  virtual bool WaitIdle(std::chrono::milliseconds quiet,
                        std::chrono::steady_clock::time_point deadline) = 0;
  // Tells the clients, closes all connections, removes the socket, stops the provider.
  virtual void Stop() = 0;
  virtual const std::string& socket_path() const = 0;
};

}  // namespace widestream
