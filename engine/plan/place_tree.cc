#include "engine/plan/place_tree.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/job/padding.h"
#include "engine/job/validate.h"

namespace widestream {
namespace {

constexpr std::size_t kAxes = 4;
using Coordinates = std::array<std::uint32_t, kAxes>;  // by MeshAxis

Coordinates SizesOf(const MeshSpec& mesh) { return {mesh.dp, mesh.cp, mesh.tp, mesh.pp}; }

Coordinates At(const MeshSpec& mesh, std::uint32_t rank) {
  const Coordinates sizes = SizesOf(mesh);
  Coordinates at{};
  for (auto axis = mesh.order.rbegin(); axis != mesh.order.rend(); ++axis) {
    const auto a = static_cast<std::size_t>(*axis);
    at[a] = rank % sizes[a];
    rank /= sizes[a];
  }
  return at;
}

std::uint32_t RankAt(const MeshSpec& mesh, const Coordinates& at) {
  const Coordinates sizes = SizesOf(mesh);
  std::uint32_t rank = 0;
  for (const MeshAxis axis : mesh.order) {
    const auto a = static_cast<std::size_t>(axis);
    rank = rank * sizes[a] + at[a];
  }
  return rank;
}

}  // namespace

Result<ClientPlaceTree> ClientPlaceTree::Make(const MeshSpec& mesh) {
  WS_RETURN_IF_ERROR(ValidateMesh(mesh));
  const std::uint32_t world = mesh.dp * mesh.cp * mesh.tp * mesh.pp;
  const auto broadcasts = [&](MeshAxis axis) {
    return std::find(mesh.broadcast_at.begin(), mesh.broadcast_at.end(), axis) !=
           mesh.broadcast_at.end();
  };
  std::vector<Place> places;
  places.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const Coordinates at = At(mesh, rank);
    Place place;
    place.rank = rank;
    place.dp = at[static_cast<std::size_t>(MeshAxis::kDp)];
    place.cp = at[static_cast<std::size_t>(MeshAxis::kCp)];
    place.tp = at[static_cast<std::size_t>(MeshAxis::kTp)];
    place.pp = at[static_cast<std::size_t>(MeshAxis::kPp)];
    place.first_stage = place.pp == 0;
    place.last_stage = place.pp + 1 == mesh.pp;
    Coordinates leader = at;
    for (const MeshAxis axis : mesh.broadcast_at) leader[static_cast<std::size_t>(axis)] = 0;
    place.leader = RankAt(mesh, leader);
    place.fetches = place.leader == rank;
    place.leads_cp = place.fetches && mesh.cp > 1 && broadcasts(MeshAxis::kCp);
    place.leads_pp = place.fetches && mesh.pp > 1 && broadcasts(MeshAxis::kPp);
    places.push_back(place);
  }
  return ClientPlaceTree(mesh, std::move(places));
}

std::vector<std::uint32_t> ClientPlaceTree::ranks_of_dp(std::uint32_t dp) const {
  std::vector<std::uint32_t> ranks;
  for (const Place& place : places_) {
    if (place.dp == dp) ranks.push_back(place.rank);
  }
  return ranks;
}

std::vector<std::uint32_t> ClientPlaceTree::fetching_ranks_of_dp(std::uint32_t dp) const {
  std::vector<std::uint32_t> ranks;
  for (const Place& place : places_) {
    if (place.dp == dp && place.fetches) ranks.push_back(place.rank);
  }
  return ranks;
}

std::vector<BroadcastGroup> ClientPlaceTree::groups() const {
  // A leader has the lowest coordinates of its group, so the lowest rank: it comes first.
  std::map<std::uint32_t, std::vector<std::uint32_t>> members;
  for (const Place& place : places_) members[place.leader].push_back(place.rank);
  std::vector<BroadcastGroup> groups;
  for (auto& [leader, ranks] : members) {
    if (ranks.size() > 1) groups.push_back({leader, std::move(ranks)});
  }
  return groups;
}

Status ClientPlaceTree::CheckWorld(std::uint32_t world) const {
  if (world == this->world()) return Status::Ok();
  const std::uint32_t others = mesh_.cp * mesh_.tp * mesh_.pp;
  std::string fix = StrCat("start ", this->world(), " ranks");
  if (world != 0 && world % others == 0) {
    fix = StrCat("set mesh.dp to ", world / others, ", or ", fix);
  } else {
    fix += StrCat(", or change cp, tp or pp so that their product divides ", world);
  }
  return Status::InvalidArgument(StrCat("mesh: dp ", mesh_.dp, " * cp ", mesh_.cp, " * tp ",
                                        mesh_.tp, " * pp ", mesh_.pp, " is ", this->world(),
                                        " ranks, but the trainer runs ", world, "; ", fix));
}

std::string ClientPlaceTree::ToString() const {
  std::string text = StrCat("world ", world(), " = dp ", mesh_.dp);
  if (mesh_.dp_replicate > 1) {
    StrAppend(text, " (", mesh_.dp_replicate, " replicas x ", mesh_.dp / mesh_.dp_replicate,
              " shards)");
  }
  StrAppend(text, " * cp ", mesh_.cp, " * tp ", mesh_.tp, " * pp ", mesh_.pp, ", ep ", mesh_.ep,
            ", vpp ", mesh_.vpp, "\n");
  // (dp, pp, cp) -> ranks along tp, which need the same.
  std::map<std::array<std::uint32_t, 3>, std::vector<std::uint32_t>> nodes;
  for (const Place& place : places_) nodes[{place.dp, place.pp, place.cp}].push_back(place.rank);
  std::uint32_t last_dp = mesh_.dp;
  for (const auto& [key, ranks] : nodes) {
    const auto [dp, pp, cp] = key;
    if (dp != last_dp) {
      StrAppend(text, "dp ", dp);
      if (mesh_.dp_replicate > 1) {
        const std::uint32_t shards = mesh_.dp / mesh_.dp_replicate;
        StrAppend(text, " (replica ", dp / shards, ", shard ", dp % shards, ")");
      }
      text += '\n';
      last_dp = dp;
    }
    const Place& first = places_[ranks[0]];
    text += "  ";
    if (mesh_.pp > 1) {
      StrAppend(text, "stage ", pp, first.first_stage ? " (tokens)" : "",
                first.last_stage ? " (labels)" : "",
                !first.first_stage && !first.last_stage ? " (shapes)" : "", ", ");
    }
    if (mesh_.cp > 1) StrAppend(text, "slice ", cp, " of ", mesh_.cp, ", ");
    text += ranks.size() > 1 ? "ranks" : "rank";
    for (const std::uint32_t rank : ranks) {
      StrAppend(text, " ", rank);
      const Place& place = places_[rank];
      if (!place.fetches) StrAppend(text, " (from ", place.leader, ")");
    }
    text += '\n';
  }
  return text;
}

}  // namespace widestream
