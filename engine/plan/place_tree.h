// ClientPlaceTree: the trainer's mesh as a tree of places. Who consumes what, and who fetches it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// One trainer rank: its coordinates, and what it needs.
struct Place {
  std::uint32_t rank = 0;  // in the world
  std::uint32_t dp = 0, cp = 0, tp = 0, pp = 0;
  // False: `leader` fetches for this place and broadcasts along the axes of broadcast_at.
  bool fetches = true;
  std::uint32_t leader = 0;  // world rank of the place that fetches; itself if `fetches`
  bool first_stage = true;
  bool last_stage = true;
  // Of a place that fetches: it fetches for peers along cp (all slices), along pp (all stages).
  bool leads_cp = false;
  bool leads_pp = false;

  friend bool operator==(const Place&, const Place&) = default;
};

// The places of one leader, itself first, the others by rank: one process group of the trainer.
struct BroadcastGroup {
  std::uint32_t leader = 0;
  std::vector<std::uint32_t> ranks;

  friend bool operator==(const BroadcastGroup&, const BroadcastGroup&) = default;
};

// An immutable value; copies are independent, const calls may come from any thread. Places are in
// the order of world ranks. Invariants: every place has exactly one leader, which fetches; places
// of one dp coordinate share a bucket; tp never changes what a place needs.
class ClientPlaceTree {
 public:
  // InvalidArgument if the mesh or its broadcast_at is no mesh (ValidateMesh).
  static Result<ClientPlaceTree> Make(const MeshSpec& mesh);

  const MeshSpec& mesh() const { return mesh_; }
  std::uint32_t world() const { return static_cast<std::uint32_t>(places_.size()); }
  // `rank` < world().
  const Place& place(std::uint32_t rank) const { return places_[rank]; }
  const std::vector<Place>& places() const { return places_; }

  // Ranks that consume the bucket of `dp`, and those of them that fetch it.
  std::vector<std::uint32_t> ranks_of_dp(std::uint32_t dp) const;
  std::vector<std::uint32_t> fetching_ranks_of_dp(std::uint32_t dp) const;
  // Groups of more than one place, by their leader.
  std::vector<BroadcastGroup> groups() const;

  // InvalidArgument if the trainer runs another number of ranks: names both, and what to change.
  Status CheckWorld(std::uint32_t world) const;

  // One line a place, indented by axis: "dp 1 > cp 0 > pp 0: ranks 4 5: tokens, ...".
  std::string ToString() const;

 private:
  ClientPlaceTree(MeshSpec mesh, std::vector<Place> places)
      : mesh_(std::move(mesh)), places_(std::move(places)) {}

  MeshSpec mesh_;
  std::vector<Place> places_;
};

}  // namespace widestream
