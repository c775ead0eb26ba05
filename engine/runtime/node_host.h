// NodeHost: one host that feeds all ranks of a node through a Unix socket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/status.h"
#include "engine/deliver/server.h"
#include "engine/job/spec.h"

namespace widestream {

struct NodeHostOptions {
  std::string folder;    // private to this user; the socket is made in it
  std::string log_path;  // named in messages; "" = none
  std::uint32_t first_rank = 0;
  std::uint32_t ranks = 1;  // of this node, consecutive
  bool journal = true;      // false: another node's host keeps it
};

// What the ranks of a job must agree in: every key of the resolved job with its value (or a hash of
// a long one), and a hash of them all.
struct JobIdentity {
  std::string hash;
  std::vector<std::pair<std::string, std::string>> keys;
};
JobIdentity IdentityOf(const JobSpec& job);

// A server of the job's stream to ranks [first_rank, first_rank + ranks) of its mesh. Each session
// of the trainer opens the stream at its own state. InvalidArgument: ranks beyond the mesh.
Result<std::unique_ptr<Server>> ServeNode(const JobSpec& job, const NodeHostOptions& options);

}  // namespace widestream
