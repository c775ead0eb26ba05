#include "engine/plan/place_tree.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace widestream {
namespace {

using Ranks = std::vector<std::uint32_t>;

ClientPlaceTree TreeOf(const MeshSpec& mesh) {
  auto tree = ClientPlaceTree::Make(mesh);
  EXPECT_TRUE(tree.ok()) << tree.status().ToString();
  return std::move(tree).value();
}

TEST(PlaceTree, NeighboursAreAlongTheInnermostAxis) {
  const ClientPlaceTree tree = TreeOf({.dp = 2, .cp = 2, .tp = 2, .pp = 2});
  EXPECT_EQ(tree.world(), 16U);
  const Place& place = tree.place(11);  // pp 1, dp 0, cp 1, tp 1
  EXPECT_EQ(std::tuple(place.pp, place.dp, place.cp, place.tp), std::tuple(1U, 0U, 1U, 1U));
  EXPECT_FALSE(place.first_stage);
  EXPECT_TRUE(place.last_stage);
  EXPECT_EQ(tree.ranks_of_dp(1), (Ranks{4, 5, 6, 7, 12, 13, 14, 15}));
}

TEST(PlaceTree, AnyOrderOfTheAxes) {
  MeshSpec mesh{.dp = 2, .tp = 3};
  mesh.order = {MeshAxis::kTp, MeshAxis::kCp, MeshAxis::kPp, MeshAxis::kDp};
  const ClientPlaceTree tree = TreeOf(mesh);
  EXPECT_EQ(tree.ranks_of_dp(0), (Ranks{0, 2, 4}));
  EXPECT_EQ(tree.place(5).tp, 2U);
}

TEST(PlaceTree, OnlyLeadersFetch) {
  MeshSpec mesh{.dp = 2, .cp = 2, .tp = 2};
  mesh.broadcast_at = {MeshAxis::kTp};
  const ClientPlaceTree by_tp = TreeOf(mesh);
  EXPECT_EQ(by_tp.fetching_ranks_of_dp(1), (Ranks{4, 6}));
  EXPECT_EQ(by_tp.groups(),
            (std::vector<BroadcastGroup>{{0, {0, 1}}, {2, {2, 3}}, {4, {4, 5}}, {6, {6, 7}}}));
  EXPECT_FALSE(by_tp.place(0).leads_cp);
  mesh.broadcast_at = {MeshAxis::kCp, MeshAxis::kTp};
  const ClientPlaceTree by_both = TreeOf(mesh);
  EXPECT_EQ(by_both.groups(), (std::vector<BroadcastGroup>{{0, {0, 1, 2, 3}}, {4, {4, 5, 6, 7}}}));
  EXPECT_TRUE(by_both.place(4).leads_cp);
  mesh.broadcast_at = {};
  EXPECT_TRUE(TreeOf(mesh).groups().empty());
}

TEST(PlaceTree, AnotherWorldIsRefusedWithBothNumbersAndTheFix) {
  const ClientPlaceTree tree = TreeOf({.dp = 2, .tp = 2});
  EXPECT_TRUE(tree.CheckWorld(4).ok());
  const auto message = [&](std::uint32_t world) {
    EXPECT_EQ(tree.CheckWorld(world).code(), StatusCode::kInvalidArgument);
    return std::string(tree.CheckWorld(world).message());
  };
  EXPECT_NE(message(6).find("is 4 ranks, but the trainer runs 6; set mesh.dp to 3"),
            std::string::npos)
      << message(6);
  EXPECT_NE(message(3).find("start 4 ranks, or change cp, tp or pp"), std::string::npos)
      << message(3);
}

TEST(PlaceTree, WhatIsNoMeshIsRefused) {
  const auto refused = [](const MeshSpec& mesh, const char* part) {
    const auto tree = ClientPlaceTree::Make(mesh);
    ASSERT_FALSE(tree.ok()) << part;
    EXPECT_NE(tree.status().message().find(part), std::string::npos) << tree.status().ToString();
  };
  refused({.dp = 0}, "mesh.dp: found 0");
  refused({.dp = 65'536, .tp = 65'536}, "dp * cp * tp * pp");
  refused({.dp = 6, .ep = 4}, "mesh.ep: found 4");
  refused({.dp = 6, .dp_replicate = 4}, "mesh.dp_replicate: found 4");
  MeshSpec mesh;
  mesh.order = {MeshAxis::kDp, MeshAxis::kDp, MeshAxis::kTp, MeshAxis::kPp};
  refused(mesh, "mesh.order");
  mesh.order = {MeshAxis::kDp};
  refused(mesh, "expected all of pp, dp, cp and tp");
  mesh = MeshSpec();
  mesh.broadcast_at = {MeshAxis::kDp};
  refused(mesh, "data-parallel ranks have different data");
  mesh = MeshSpec();
  mesh.every_stage = {"token"};
  refused(mesh, "did you mean \"tokens\"");
}

TEST(PlaceTree, PrintsWhoNeedsWhat) {
  MeshSpec mesh{.dp = 2, .tp = 2, .pp = 3, .dp_replicate = 2};
  mesh.broadcast_at = {MeshAxis::kTp};
  const std::string text = TreeOf(mesh).ToString();
  for (const char* part :
       {"world 12 = dp 2 (2 replicas x 1 shards)", "dp 1 (replica 1, shard 0)",
        "stage 0 (tokens), ranks 0 1 (from 0)", "stage 1 (shapes)", "stage 2 (labels)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
}

RC_GTEST_PROP(PlaceTree, EveryPlaceHasALeaderOfItsBucket, ()) {
  const auto draw = [] { return *rc::gen::inRange<std::uint32_t>(1, 4); };
  MeshSpec mesh;
  mesh.dp = draw();
  mesh.cp = draw();
  mesh.tp = draw();
  mesh.pp = draw();
  std::vector<MeshAxis> axes = {MeshAxis::kTp, MeshAxis::kCp, MeshAxis::kPp};
  for (const MeshAxis axis : axes) {
    if (*rc::gen::arbitrary<bool>()) mesh.broadcast_at.push_back(axis);
  }
  const int turns = *rc::gen::inRange(0, 24);
  std::sort(mesh.order.begin(), mesh.order.end());
  for (int i = 0; i < turns; ++i) std::next_permutation(mesh.order.begin(), mesh.order.end());
  const auto tree = ClientPlaceTree::Make(mesh);
  RC_ASSERT(tree.ok());
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>> coordinates;
  std::uint32_t in_groups = 0;
  for (const Place& place : tree->places()) {
    coordinates.insert({place.dp, place.cp, place.tp, place.pp});
    const Place& leader = tree->place(place.leader);
    RC_ASSERT(leader.fetches && leader.leader == leader.rank && leader.dp == place.dp);
    RC_ASSERT(place.fetches == (place.leader == place.rank));
    RC_ASSERT(place.cp == leader.cp || leader.leads_cp);
    RC_ASSERT(place.pp == leader.pp || leader.leads_pp);
  }
  RC_ASSERT(coordinates.size() == tree->world());
  for (const BroadcastGroup& group : tree->groups()) {
    RC_ASSERT(group.ranks.front() == group.leader && group.ranks.size() > 1);
    in_groups += static_cast<std::uint32_t>(group.ranks.size());
  }
  RC_ASSERT(in_groups == (tree->groups().empty() ? 0 : tree->world()));
}

}  // namespace
}  // namespace widestream
