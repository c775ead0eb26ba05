// ClientPlaceTree: the trainer's mesh, and which of its ranks needs which part of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// One rank of the trainer.
struct Place {
  std::uint32_t rank = 0;                        // in the world
  std::uint32_t dp = 0, cp = 0, tp = 0, pp = 0;  // HSDP: dp = replica * shards + shard
  std::uint32_t ep = 0;      // of the experts: ranks dp * cp + cp, cut in runs of mesh.ep
  bool fetches = true;       // false: it is given what `leader` fetches
  std::uint32_t leader = 0;  // world rank; itself if it fetches
  // What it fetches, for itself and those it leads.
  bool inputs = true;       // tokens and positions: of the first pipeline stage
  bool labels = true;       // labels and masks: of the last one
  bool all_slices = false;  // every cp slice instead of its own

  friend bool operator==(const Place&, const Place&) = default;
};

// A leader and the ranks that it fetches for, the leader first.
struct BroadcastGroup {
  std::uint32_t leader = 0;
  std::vector<std::uint32_t> ranks;
};

// A value. World ranks are numbered by MeshSpec::order, the last axis fastest.
class ClientPlaceTree {
 public:
  // InvalidArgument: a mesh that ParseJob would refuse.
  static Result<ClientPlaceTree> Make(const MeshSpec& mesh);

  std::uint32_t world() const { return static_cast<std::uint32_t>(places_.size()); }
  const std::vector<Place>& places() const { return places_; }
  const Place& place(std::uint32_t rank) const { return places_[rank]; }  // rank < world()
  // The ranks that differ from `rank` along `axis` only, in the order of their coordinate.
  std::vector<std::uint32_t> RanksAlong(Axis axis, std::uint32_t rank) const;
  // Of more than one rank each; none without broadcast_at.
  std::vector<BroadcastGroup> Groups() const;
  // The tree by dp, cp, pp and tp, a rank a line: what it gets and from whom.
  std::string ToText() const;

 private:
  explicit ClientPlaceTree(MeshSpec mesh) : mesh_(std::move(mesh)) {}

  MeshSpec mesh_;
  std::vector<Place> places_;
};

}  // namespace widestream
