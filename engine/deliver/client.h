// Client: a trainer's side of the delivery. Batches are mapped, never copied.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/construct/batch.h"
#include "engine/plan/plan.h"
#include "engine/plan/planner.h"

namespace widestream {

struct ClientOptions {
  std::string socket_path;
  std::uint32_t rank = 0;  // in the world
  std::uint32_t world = 1;
  std::string job_hash;
  std::vector<std::pair<std::string, std::string>> job_keys;  // path, value (or its hash)
  std::string launcher_id;  // the same for all ranks of one start of the training
  std::string state_json;   // where the stream begins; the same on all ranks; "" = its beginning
  bool fork = false;        // a state of another stream is accepted
  // Steps before this one count as acknowledged by this rank: to attach again in the middle.
  std::optional<std::uint64_t> begin_step;
  // Asks for the step after the one that Next returns already then. A decision then takes effect
  // one step later than it would: always behind the step that is asked for, which it waits for.
  bool prefetch = false;
};

// One step's tensors for one rank, in memory that is mapped privately: writing to it is legal and
// seen by nobody else. Valid as long as it is held, even when client and host are gone; in a
// forked child, as long as the parent holds it. Dropping the last reference acknowledges the step.
struct ClientBatch {
  BatchView view;  // view.plan is null: see Client::Plan
  std::byte* memory = nullptr;
  std::uint64_t real_tokens = 0;        // of the whole step, all ranks
  std::uint64_t supervised_tokens = 0;  // of the whole step, all ranks
  std::string digest;
  std::vector<double> costs;                    // one a data-parallel rank
  std::vector<std::uint64_t> tokens_by_source;  // real, of the whole step
  std::vector<std::uint64_t> weights;           // the mixture wanted, out of 2^32, one a source
};

struct Welcome {
  std::int32_t host_pid = 0;
  std::string log_path;
  std::string description_json;  // StepProvider::DescriptionJson
  std::uint32_t dp = 0, cp = 0, tp = 0, pp = 0;
  bool fetches = true;
  std::uint32_t leader = 0;
  std::uint64_t decisions = 0;  // that this rank has made in the present session
};

struct ClientCounters {
  std::uint64_t batches = 0;
  std::uint64_t mappings = 0;  // mmap calls: once a slab
  std::uint64_t receives = 0;  // recvmsg calls
  std::uint64_t polls = 0;
  std::uint64_t sends = 0;
  std::uint64_t bytes_copied = 0;  // of tensors: always 0
};

// Thread-safe; several calls may wait at once. A thread of its own gives
// dropped batches back. A host that died is noticed by
// every waiting call at once and by every later call: Unavailable, which names host and log. After
// fork() every call in the child fails with InvalidArgument; spawn and exec are fine.
class Client {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  // Connects, and waits for the session to open. InvalidArgument: refused, with what differs.
  // Unavailable: nobody listens. Whoever the host is, it must run as this user.
  static Result<std::unique_ptr<Client>> Connect(ClientOptions options, Deadline deadline);
  virtual ~Client() = default;  // Close()

  // The next batch in step order; null at the end of the stream. DeadlineExceeded says what the
  // host waits for and who holds which steps; nothing is lost by calling again.
  virtual Result<std::shared_ptr<const ClientBatch>> Next(Deadline deadline) = 0;
  // The state after the last batch that Next returned to this client, or before `step`.
  virtual Result<std::string> StateJson(std::optional<std::uint64_t> step, Deadline deadline) = 0;
  // As the n-th decision of this rank: the same one from N ranks, after the same batch, counts
  // once. Takes effect behind all that this rank has asked for. A rank that fetches nothing waits
  // for one of the node that does.
  virtual Result<std::uint64_t> Decide(const Decision& decision, Deadline deadline) = 0;
  virtual Status CommitJournal(Deadline deadline) = 0;
  virtual Result<std::string> StatusJson(Deadline deadline) = 0;
  // Of a step that is not yet acknowledged by all ranks of the node.
  virtual Result<StepPlan> Plan(std::uint64_t step, Deadline deadline) = 0;
  // OK if the host is alive; does not wait.
  virtual Status CheckAlive() = 0;
  // Says goodbye. What is not acknowledged stays pending for the next client of this rank. Batches
  // stay valid; their memory is given back as they are dropped.
  virtual void Close() = 0;
  // Breaks the connection as the death of the process would: for tests. No batch may be held.
  virtual void DisconnectForTesting() = 0;
  virtual const Welcome& welcome() const = 0;
  virtual ClientCounters counters() const = 0;
};

}  // namespace widestream
