#include "engine/plan/place_tree.h"

#include <algorithm>
#include <array>
#include <map>

#include "engine/base/format_text.h"

namespace widestream {
namespace {

constexpr std::uint64_t kMaxRanks = 1U << 20;

std::uint32_t SizeAlong(const MeshSpec& mesh, Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return mesh.pp;
    case Axis::kDp:
      return mesh.dp;
    case Axis::kCp:
      return mesh.cp;
    case Axis::kTp:
      return mesh.tp;
  }
  return 1;
}

std::uint32_t& CoordinateOf(Place* place, Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return place->pp;
    case Axis::kDp:
      return place->dp;
    case Axis::kCp:
      return place->cp;
    case Axis::kTp:
      break;
  }
  return place->tp;
}

std::uint32_t RankOf(const MeshSpec& mesh, Place place) {
  std::uint32_t rank = 0;
  for (const Axis axis : mesh.order)
    rank = rank * SizeAlong(mesh, axis) + CoordinateOf(&place, axis);
  return rank;
}

}  // namespace

Result<ClientPlaceTree> ClientPlaceTree::Make(const MeshSpec& mesh) {
  std::vector<Axis> sorted = mesh.order;
  std::sort(sorted.begin(), sorted.end());
  const bool each_once = sorted == std::vector<Axis>{Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp};
  std::uint64_t world = each_once ? 1 : 0;
  for (const Axis axis : mesh.order) world = std::min(world * SizeAlong(mesh, axis), kMaxRanks + 1);
  if (world == 0 || world > kMaxRanks || mesh.ep == 0) {
    return Status::InvalidArgument(StrCat("mesh: dp ", mesh.dp, " x cp ", mesh.cp, " x tp ",
                                          mesh.tp, " x pp ", mesh.pp, " is no mesh of 1 to ",
                                          kMaxRanks, " ranks, or its order names an axis twice"));
  }
  ClientPlaceTree tree(mesh);
  tree.places_.resize(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    Place& place = tree.places_[rank];
    place.rank = rank;
    std::uint32_t left = rank;
    for (auto axis = mesh.order.rbegin(); axis != mesh.order.rend(); ++axis) {
      CoordinateOf(&place, *axis) = left % SizeAlong(mesh, *axis);
      left /= SizeAlong(mesh, *axis);
    }
    place.ep = (place.dp * mesh.cp + place.cp) % mesh.ep;
    place.inputs = place.pp == 0;
    place.labels = place.pp + 1 == mesh.pp;
    Place leader = place;
    for (const Axis axis : mesh.broadcast_at) CoordinateOf(&leader, axis) = 0;
    place.leader = RankOf(mesh, leader);
    place.fetches = place.leader == rank;
    if (place.fetches) {
      const auto leads = [&](Axis axis) {
        return std::count(mesh.broadcast_at.begin(), mesh.broadcast_at.end(), axis) > 0;
      };
      if (leads(Axis::kPp)) place.inputs = place.labels = true;
      place.all_slices = mesh.cp > 1 && leads(Axis::kCp);
    }
  }
  return tree;
}

std::vector<std::uint32_t> ClientPlaceTree::RanksAlong(Axis axis, std::uint32_t rank) const {
  std::vector<std::uint32_t> ranks;
  Place place = places_[rank];
  for (std::uint32_t i = 0; i < SizeAlong(mesh_, axis); ++i) {
    CoordinateOf(&place, axis) = i;
    ranks.push_back(RankOf(mesh_, place));
  }
  return ranks;
}

std::vector<BroadcastGroup> ClientPlaceTree::Groups() const {
  std::map<std::uint32_t, BroadcastGroup> groups;
  for (const Place& place : places_) {
    BroadcastGroup& group = groups[place.leader];
    group.leader = place.leader;
    if (place.fetches) {
      group.ranks.insert(group.ranks.begin(), place.rank);
    } else {
      group.ranks.push_back(place.rank);
    }
  }
  std::vector<BroadcastGroup> out;
  for (auto& [leader, group] : groups) {
    if (group.ranks.size() > 1) out.push_back(std::move(group));
  }
  return out;
}

std::string ClientPlaceTree::ToText() const {
  std::vector<const Place*> sorted;
  for (const Place& place : places_) sorted.push_back(&place);
  std::sort(sorted.begin(), sorted.end(), [](const Place* a, const Place* b) {
    return std::array{a->dp, a->cp, a->pp, a->tp} < std::array{b->dp, b->cp, b->pp, b->tp};
  });
  std::string text;
  for (const Place* place : sorted) {
    text += StrCat("dp ", place->dp, "  cp ", place->cp, "  pp ", place->pp, "  tp ", place->tp,
                   "  rank ", place->rank, ": ");
    if (!place->fetches) {
      text += StrCat("from rank ", place->leader, "\n");
      continue;
    }
    text += StrCat("bucket ", place->dp);
    if (place->all_slices) {
      text += ", all slices";
    } else if (mesh_.cp > 1) {
      text += StrCat(", slice ", place->cp, " of ", mesh_.cp);
    }
    if (mesh_.pp > 1) {
      text += place->inputs && place->labels ? ", tokens, positions, labels and masks"
              : place->inputs                ? ", tokens and positions"
              : place->labels                ? ", labels and masks"
                                             : ", shapes and boundaries";
    }
    text += "\n";
  }
  return text;
}

}  // namespace widestream
