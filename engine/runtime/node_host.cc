#include "engine/runtime/node_host.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/construct/constructor.h"
#include "engine/plan/place_tree.h"
#include "engine/runtime/host.h"

namespace widestream {
namespace {

constexpr std::size_t kLongestValueBytes = 200;

class HostFactory final : public SessionFactory {
 public:
  HostFactory(JobSpec job, std::vector<std::uint32_t> dp_ranks, bool journal)
      : job_(std::move(job)), dp_ranks_(std::move(dp_ranks)), journal_(journal) {}

  Result<std::unique_ptr<StepProvider>> Open(const std::string& state_json, bool fork) override {
    HostOptions options;
    options.dp_ranks = dp_ranks_;
    options.journal = journal_;
    options.state_json = state_json;
    options.fork = fork;
    WS_ASSIGN_OR_RETURN(std::unique_ptr<Host> host, Host::Make(job_, std::move(options)));
    return std::unique_ptr<StepProvider>(std::move(host));
  }

 private:
  JobSpec job_;
  std::vector<std::uint32_t> dp_ranks_;
  bool journal_;
};

}  // namespace

JobIdentity IdentityOf(const JobSpec& job) {
  JobIdentity identity;
  const std::string text = ToJson(job);
  identity.hash = Xxh3_128(text).ToHex();
  const nlohmann::json flat = nlohmann::json::parse(text).flatten();
  for (const auto& [pointer, value] : flat.items()) {
    std::string key = pointer.substr(std::min<std::size_t>(1, pointer.size()));
    std::replace(key.begin(), key.end(), '/', '.');
    std::string shown = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    if (shown.size() > kLongestValueBytes) shown = "hash " + Xxh3_128(shown).ToHex();
    identity.keys.emplace_back(std::move(key), std::move(shown));
  }
  return identity;
}

Result<std::unique_ptr<Server>> ServeNode(const JobSpec& job, const NodeHostOptions& options) {
  WS_ASSIGN_OR_RETURN(const ClientPlaceTree tree, ClientPlaceTree::Make(job.mesh));
  if (options.ranks == 0 || options.first_rank >= tree.world() ||
      options.ranks > tree.world() - options.first_rank) {
    return Status::InvalidArgument(
        StrCat("ranks ", options.first_rank, " to ", options.first_rank + options.ranks - 1,
               " are not in a mesh of ", tree.world(), " ranks; change the mesh or the world"));
  }
  std::vector<std::uint32_t> dp_ranks;
  std::vector<Place> places;
  for (std::uint32_t r = options.first_rank; r < options.first_rank + options.ranks; ++r) {
    places.push_back(tree.place(r));
    // Only what someone fetches is built.
    if (tree.place(r).fetches) dp_ranks.push_back(tree.place(r).dp);
  }
  std::sort(dp_ranks.begin(), dp_ranks.end());
  dp_ranks.erase(std::unique(dp_ranks.begin(), dp_ranks.end()), dp_ranks.end());

  ServerOptions server;
  server.folder = options.folder;
  server.log_path = options.log_path;
  JobIdentity identity = IdentityOf(job);
  server.job_hash = std::move(identity.hash);
  server.job_keys = std::move(identity.keys);
  server.world = tree.world();
  for (const Place& place : places) {
    ServedPlace served;
    served.rank = place.rank;
    const auto bucket = std::lower_bound(dp_ranks.begin(), dp_ranks.end(), place.dp);
    served.bucket = static_cast<std::uint32_t>(bucket - dp_ranks.begin());
    served.fetches = place.fetches;
    served.leader = place.leader;
    served.dp = place.dp;
    served.cp = place.cp;
    served.tp = place.tp;
    served.pp = place.pp;
    server.places.push_back(served);
  }
  server.select = [places, first = options.first_rank](const BatchView& bucket,
                                                       const ServedPlace& place) {
    return SelectFor(bucket, places[place.rank - first]);
  };
  server.hold_deadline =
      std::chrono::milliseconds(static_cast<std::int64_t>(job.limits.read_deadline_seconds * 1000));
  return Server::Make(std::move(server),
                      std::make_unique<HostFactory>(job, std::move(dp_ranks), options.journal));
}

}  // namespace widestream
