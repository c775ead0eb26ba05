// What each place of a mesh gets: slices, stages, padding, fixed shapes.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/construct/testing.h"
#include "engine/plan/layout.h"

namespace widestream {
namespace {

using construct_testing::Bucket;
using construct_testing::Build;
using construct_testing::MakePiece;
using Ints = std::vector<std::int64_t>;
using Boundaries = std::vector<std::int32_t>;

BatchSpec Thd(std::uint32_t longest) {
  BatchSpec batch;
  batch.layout = BatchLayout::kThd;
  batch.sequence_length = longest;
  batch.tokens = 1000;
  return batch;
}

StepPlan OneMicrobatch(std::vector<Piece> pieces) {
  StepPlan plan;
  std::vector<std::uint32_t> row(pieces.size());
  std::iota(row.begin(), row.end(), 0U);
  plan.pieces = std::move(pieces);
  plan.ranks.resize(1);
  plan.ranks[0].microbatches.push_back({{row}});
  return plan;
}

MeshSpec ContextOf(std::uint32_t cp, std::optional<ContextSplit> split = std::nullopt) {
  MeshSpec mesh;
  mesh.cp = cp;
  mesh.cp_split = split;
  return mesh;
}

// The tensors of the place with these coordinates.
BatchView At(const Bucket& bucket, const MeshSpec& mesh, std::uint32_t cp, std::uint32_t pp = 0) {
  const auto tree = ClientPlaceTree::Make(mesh);
  EXPECT_TRUE(tree.ok()) << tree.status().ToString();
  for (const Place& place : tree->places()) {
    if (place.cp == cp && place.pp == pp) return SelectFor(bucket.view, place);
  }
  ADD_FAILURE() << "no place cp " << cp << " pp " << pp;
  return {};
}

TEST(Places, ZigzagByDocumentIsTheOrderOfTransformerEngine) {
  // Two documents of 8: rank 0 has 0,1,6,7,8,9,14,15; rank 1 has 2,3,4,5,10,11,12,13.
  const StepPlan plan = OneMicrobatch({MakePiece(0, 0, 8, true), MakePiece(1, 0, 8, true)});
  const MeshSpec mesh = ContextOf(2);
  const auto bucket = Build(Thd(8), mesh, plan);
  ASSERT_TRUE(bucket.ok()) << bucket.status().ToString();
  const BatchView first = At(*bucket, mesh, 0);
  const BatchView second = At(*bucket, mesh, 1);
  EXPECT_EQ(bucket->Get<std::int64_t>(first, 0, "tokens"),
            (Ints{100, 101, 106, 107, 200, 201, 206, 207}));
  EXPECT_EQ(bucket->Get<std::int64_t>(second, 0, "tokens"),
            (Ints{102, 103, 104, 105, 202, 203, 204, 205}));
  EXPECT_EQ(bucket->Get<std::int64_t>(first, 0, "position_ids"), (Ints{0, 1, 6, 7, 0, 1, 6, 7}));
  // The labels are those of the whole document, at the edges of the chunks, too.
  EXPECT_EQ(bucket->Get<std::int64_t>(first, 0, "labels"),
            (Ints{101, 102, 107, -100, 201, 202, 207, -100}));
  EXPECT_EQ(bucket->Get<std::int64_t>(second, 0, "labels"),
            (Ints{103, 104, 105, 106, 203, 204, 205, 206}));
  // Never sliced: boundaries and the longest segment.
  EXPECT_EQ(bucket->Get<std::int32_t>(second, 0, "cu_seqlens_padded"), (Boundaries{0, 8, 16}));
  EXPECT_EQ(second.microbatches[0].max_seqlen, 8);
  EXPECT_EQ(second.microbatches[0].shape, (Ints{1, 8}));
}

TEST(Places, TheOtherSplits) {
  const StepPlan plan = OneMicrobatch({MakePiece(0, 0, 5, false), MakePiece(1, 0, 3, true)});
  const std::vector<std::pair<ContextSplit, std::vector<Ints>>> expected = {
      {ContextSplit::kZigzagRow, {{100, 101, 201, 202}, {102, 103, 104, 200}}},
      {ContextSplit::kContiguous, {{100, 101, 102, 103}, {104, 200, 201, 202}}},
      {ContextSplit::kUlysses, {{100, 101, 102, 103}, {104, 200, 201, 202}}},
  };
  BatchSpec rows;
  rows.sequence_length = 8;
  rows.rows = 1;
  for (const BatchSpec& batch : {Thd(8), rows}) {
    for (const auto& [split, slices] : expected) {
      const MeshSpec mesh = ContextOf(2, split);
      const auto bucket = Build(batch, mesh, plan);
      ASSERT_TRUE(bucket.ok()) << bucket.status().ToString();
      for (std::uint32_t cp = 0; cp < 2; ++cp) {
        const BatchView view = At(*bucket, mesh, cp);
        EXPECT_EQ(bucket->Get<std::int64_t>(view, 0, "tokens"), slices[cp]);
        EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens"), (Boundaries{0, 5, 8}));
      }
    }
  }
}

TEST(Places, RowsAreSlicedRowByRow) {
  BatchSpec batch;
  batch.sequence_length = 4;
  batch.rows = 2;
  StepPlan plan = OneMicrobatch({MakePiece(0, 0, 4, true), MakePiece(1, 0, 3, true)});
  plan.ranks[0].microbatches[0].rows = {{0}, {1}};
  const MeshSpec mesh = ContextOf(2);
  const auto bucket = Build(batch, mesh, plan);
  ASSERT_TRUE(bucket.ok());
  const BatchView second = At(*bucket, mesh, 1);
  EXPECT_EQ(second.microbatches[0].tensors[0].shape, (Ints{2, 2}));
  EXPECT_EQ(bucket->Get<std::int64_t>(second, 0, "tokens"), (Ints{101, 102, 201, 202}));
  EXPECT_EQ(bucket->Get<std::int32_t>(second, 0, "segment_ids"), (Boundaries{1, 1, 1, 1}));
}

// B-08: each piece is padded to 2 * cp (and tp); real and padded lengths are both given.
TEST(Cases, B08PackedDocumentsArePaddedForContextParallelism) {
  const StepPlan plan = OneMicrobatch({MakePiece(0, 0, 5, true), MakePiece(1, 0, 3, false)});
  MeshSpec mesh = ContextOf(2);
  const auto bucket = Build(Thd(8), mesh, plan);
  ASSERT_TRUE(bucket.ok());
  const BatchView view = At(*bucket, mesh, 0);
  EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens"), (Boundaries{0, 5, 8}));
  EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens_padded"), (Boundaries{0, 8, 12}));
  EXPECT_EQ(view.microbatches[0].max_seqlen, 8) << "of the padded documents, before slicing";
  // 100 101 102 103 | 104 p p p || 200 201 202 p: positions run on through a piece's padding.
  EXPECT_EQ(bucket->Get<std::int64_t>(view, 0, "tokens"), (Ints{100, 101, 0, 0, 200, 0}));
  EXPECT_EQ(bucket->Get<std::int64_t>(view, 0, "position_ids"), (Ints{0, 1, 6, 7, 0, 3}));
  EXPECT_EQ(bucket->Get<std::int64_t>(view, 0, "labels"), (Ints{101, 102, -100, -100, 201, -100}));
  EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "segment_ids"), (Boundaries{1, 1, 0, 0, 2, 0}));
  // With sequence parallelism the multiple is 2 * cp * tp.
  mesh.tp = 3;
  mesh.sequence_parallel = true;
  const auto wider = Build(Thd(8), mesh, plan);
  ASSERT_TRUE(wider.ok());
  EXPECT_EQ(wider->Get<std::int32_t>(At(*wider, mesh, 0), 0, "cu_seqlens_padded"),
            (Boundaries{0, 12, 24}));
}

// B-09: whatever the trainer masks by, the borders of the documents are there.
TEST(Cases, B09BordersAreGivenAsBoundariesPositionsAndSegments) {
  for (const std::uint32_t cp : {1U, 2U}) {
    const MeshSpec mesh = ContextOf(cp);
    const auto bucket =
        Build(Thd(8), mesh, OneMicrobatch({MakePiece(0, 0, 4, true), MakePiece(1, 0, 4, true)}));
    ASSERT_TRUE(bucket.ok());
    for (std::uint32_t c = 0; c < cp; ++c) {
      const BatchView view = At(*bucket, mesh, c);
      EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens"), (Boundaries{0, 4, 8}));
      const auto segments = bucket->Get<std::int32_t>(view, 0, "segment_ids");
      const auto positions = bucket->Get<std::int64_t>(view, 0, "position_ids");
      ASSERT_EQ(segments.size(), 8 / cp);
      for (std::size_t i = 0; i < segments.size(); ++i) {
        EXPECT_EQ(segments[i], i < segments.size() / 2 ? 1 : 2);
        EXPECT_LT(positions[i], 4);
      }
    }
  }
}

std::set<std::string> NamesOf(const BatchView& view) {
  std::set<std::string> names;
  for (const TensorView& tensor : view.microbatches[0].tensors) names.insert(tensor.name);
  return names;
}

// E-06: a later stage is no data rank: it has the boundaries of the same samples, or nothing.
TEST(Cases, E06LaterStagesHaveTheSameSamplesAndNoOthers) {
  MeshSpec mesh;
  mesh.dp = 2;
  mesh.pp = 3;
  StepPlan plan = OneMicrobatch({MakePiece(0, 0, 5, true), MakePiece(1, 0, 7, true)});
  plan.ranks[0].microbatches[0].rows = {{0}};
  plan.ranks.push_back({{{{{1}}}}, 0});
  const std::vector<std::set<std::string>> by_stage = {
      {"tokens", "position_ids", "segment_ids", "cu_seqlens", "cu_seqlens_padded"},
      {"cu_seqlens", "cu_seqlens_padded"},
      {"labels", "loss_mask", "cu_seqlens", "cu_seqlens_padded"}};
  const auto tree = ClientPlaceTree::Make(mesh);
  ASSERT_TRUE(tree.ok());
  ASSERT_EQ(tree->world(), 6U);
  for (const Place& place : tree->places()) {
    const auto bucket = Build(Thd(8), mesh, plan, place.dp);
    ASSERT_TRUE(bucket.ok());
    const BatchView view = SelectFor(bucket->view, place);
    EXPECT_EQ(NamesOf(view), by_stage[place.pp]);
    const std::int32_t length = place.dp == 0 ? 5 : 7;
    EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens"), (Boundaries{0, length}));
    EXPECT_EQ(view.microbatches[0].shape, (Ints{1, length}));
    EXPECT_EQ(view.microbatches[0].max_seqlen, length);
  }
  mesh.every_stage = {"position_ids"};
  const auto bucket = Build(Thd(8), mesh, plan);
  ASSERT_TRUE(bucket.ok());
  EXPECT_TRUE(NamesOf(At(*bucket, mesh, 0, 1)).contains("position_ids"));
}

// P-05: what a further tp, cp or pp rank adds to a node is no copy: all places share the bucket.
TEST(Cases, P05ABucketDoesNotGrowWithTheRanksThatShareIt) {
  const StepPlan plan = OneMicrobatch({MakePiece(0, 0, 64, true), MakePiece(1, 0, 64, true)});
  const auto alone = Build(Thd(64), MeshSpec(), plan);
  ASSERT_TRUE(alone.ok());
  for (const std::uint32_t cp : {1U, 2U, 4U}) {
    MeshSpec mesh = ContextOf(cp);
    mesh.tp = 4;
    mesh.pp = 2;
    const auto shared = Build(Thd(64), mesh, plan);
    ASSERT_TRUE(shared.ok());
    EXPECT_LE(shared->view.size_bytes, alone->view.size_bytes + std::size_t{5} * 64 * (cp - 1));
    const auto tree = ClientPlaceTree::Make(mesh);
    ASSERT_TRUE(tree.ok());
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<std::size_t>> offsets;
    for (const Place& place : tree->places()) {
      const BatchView view = SelectFor(shared->view, place);
      offsets[{place.cp, place.pp}].insert(view.microbatches[0].tensors[0].offset_bytes);
    }
    for (const auto& [place, found] : offsets) EXPECT_EQ(found.size(), 1U) << "along tp";
  }
}

// H-09: all ranks of a step have the same number of microbatches, an empty one is filler.
TEST(Cases, H09ARankWithoutPiecesHasZeroLossFiller) {
  StepPlan plan = OneMicrobatch({MakePiece(0, 0, 5, true)});
  plan.ranks.push_back({{{{{}}}}, 0});
  MeshSpec mesh = ContextOf(2);
  mesh.dp = 2;
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const auto bucket = Build(Thd(8), mesh, plan, rank);
    ASSERT_TRUE(bucket.ok());
    ASSERT_EQ(bucket->view.microbatches.size(), 1U);
    if (rank == 0) continue;
    const BatchView view = At(*bucket, mesh, 1);
    EXPECT_EQ(bucket->Get<std::int64_t>(view, 0, "tokens"), (Ints{0, 0}));
    EXPECT_EQ(bucket->Get<std::int64_t>(view, 0, "labels"), (Ints{-100, -100}));
    EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens"), (Boundaries{0, 4}));
    EXPECT_EQ(view.microbatches[0].real_tokens, 0U);
  }
}

TEST(Places, FixedShapesAreTheSameForEveryMicrobatch) {
  BatchSpec batch = Thd(8);
  batch.microbatch_tokens = 24;
  batch.microbatch_pieces = 2;
  batch.fixed_shapes = true;
  StepPlan plan = OneMicrobatch({MakePiece(0, 0, 5, true), MakePiece(1, 0, 2, false)});
  plan.ranks[0].microbatches.push_back({{{}}});
  const MeshSpec mesh = ContextOf(2);
  const auto bucket = Build(batch, mesh, plan);
  ASSERT_TRUE(bucket.ok()) << bucket.status().ToString();
  const BatchView view = At(*bucket, mesh, 0);
  for (std::size_t m = 0; m < 2; ++m) {
    EXPECT_EQ(view.microbatches[m].shape, (Ints{1, 12}));
    EXPECT_EQ(view.microbatches[m].max_seqlen, 8);
    EXPECT_EQ(bucket->Get<std::int32_t>(view, m, "cu_seqlens").size(), 6U);
  }
  // Pieces of 8 and 4 in memory, filler of 8 and 4, then segments of length 0.
  EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens_padded"),
            (Boundaries{0, 8, 12, 20, 24, 24}));
  EXPECT_EQ(bucket->Get<std::int32_t>(view, 0, "cu_seqlens"), (Boundaries{0, 5, 7, 15, 19, 19}));
  EXPECT_EQ(bucket->Get<std::int32_t>(view, 1, "cu_seqlens"), (Boundaries{0, 8, 16, 24, 24, 24}));
  EXPECT_EQ(bucket->Get<std::int64_t>(view, 1, "labels"), Ints(12, -100));
}

TEST(Places, FixedShapesOfRowsFixTheBoundariesToo) {
  BatchSpec batch;
  batch.sequence_length = 4;
  batch.rows = 1;
  batch.fixed_shapes = true;
  const auto bucket = Build(batch, MeshSpec(), OneMicrobatch({MakePiece(0, 0, 3, true)}));
  ASSERT_TRUE(bucket.ok());
  EXPECT_EQ(bucket->Get<std::int32_t>(bucket->view, 0, "cu_seqlens"), (Boundaries{0, 3, 4, 4, 4}));
  EXPECT_EQ(bucket->view.microbatches[0].max_seqlen, 4);
}

TEST(Places, AMicrobatchIsPaddedForTheRowsOfEachContextRank) {
  BatchSpec batch = Thd(8);
  batch.pad_microbatch_to = 16;
  const MeshSpec mesh = ContextOf(2);
  const auto bucket = Build(batch, mesh, OneMicrobatch({MakePiece(0, 0, 5, true)}));
  ASSERT_TRUE(bucket.ok());
  EXPECT_EQ(bucket->view.microbatches[0].shape, (Ints{1, 16}));
  EXPECT_EQ(bucket->Get<std::int32_t>(bucket->view, 0, "cu_seqlens_padded"),
            (Boundaries{0, 8, 16, 24, 32}));
}

TEST(Places, ALeaderGetsWhatItSends) {
  MeshSpec mesh = ContextOf(2);
  mesh.pp = 2;
  mesh.broadcast_at = {MeshAxis::kCp, MeshAxis::kPp};
  const auto bucket = Build(Thd(8), mesh, OneMicrobatch({MakePiece(0, 0, 8, true)}));
  ASSERT_TRUE(bucket.ok());
  const auto tree = ClientPlaceTree::Make(mesh);
  ASSERT_TRUE(tree.ok());
  const BatchView leader = SelectFor(bucket->view, tree->place(0));
  EXPECT_EQ(leader.microbatches[0].tensors.size(), 5U * 2 + 2);
  const Place& last = tree->place(3);
  EXPECT_FALSE(last.fetches);
  EXPECT_EQ(last.leader, 0U);
  const BatchView peer = SelectFor(bucket->view, last);
  EXPECT_EQ(NamesOf(peer),
            (std::set<std::string>{"labels", "loss_mask", "cu_seqlens", "cu_seqlens_padded"}));
  EXPECT_EQ(bucket->Get<std::int64_t>(peer, 0, "labels"),
            bucket->Get<std::int64_t>(leader, 0, "labels@1"));
}

// --- properties, against an index list written from the rule of Transformer Engine --------------

// Local index t of context rank `rank` -> index in the whole microbatch; `cu` are domains.
std::size_t GlobalIndex(const std::vector<std::size_t>& cu, std::size_t cp, bool zigzag,
                        std::size_t rank, std::size_t t) {
  std::size_t s = 0;
  while (cu[s + 1] / cp <= t) ++s;
  const std::size_t length = (cu[s + 1] - cu[s]) / cp;
  const std::size_t index = t - cu[s] / cp;
  if (!zigzag) return cu[s] + rank * length + index;
  const std::size_t offset = index < length / 2 ? rank : 2 * (cp - 1) - rank;
  return index + cu[s] + length / 2 * offset;
}

std::uint32_t Draw(std::uint32_t low, std::uint32_t high) {
  // At full size: inRange would stay close to `low` for most of the cases.
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::uint32_t>(low, high + 1));
}

struct Case {
  BatchSpec batch;
  MeshSpec mesh;
  StepPlan plan;
};

Case RandomCase() {
  Case c;
  c.mesh.dp = Draw(1, 3);
  c.mesh.cp = Draw(1, 4);
  c.mesh.tp = Draw(1, 2);
  c.mesh.pp = Draw(1, 3);
  c.mesh.sequence_parallel = Draw(0, 1) == 1;
  c.mesh.cp_split = static_cast<ContextSplit>(Draw(0, 3));
  const bool thd = Draw(0, 1) == 1;
  if (thd) {
    c.batch = Thd(Draw(1, 40));
    c.batch.pad_documents_to = Draw(0, 5);
    c.batch.pad_microbatch_to = Draw(0, 5);
    if (Draw(0, 1) == 1) {
      const PaddingRule padding = PaddingOf(c.batch, c.mesh);
      c.batch.microbatch_tokens =
          padding.Microbatch(padding.Piece(c.batch.sequence_length) * Draw(1, 2));
      c.batch.fixed_shapes = Draw(0, 1) == 1;
    }
  } else {
    if (c.mesh.cp_split == ContextSplit::kZigzagDocument)
      c.mesh.cp_split = ContextSplit::kZigzagRow;
    c.batch.sequence_length = 2 * c.mesh.cp * c.mesh.tp * Draw(1, 4);
    c.batch.rows = Draw(1, 6);
    c.batch.cross_document_attention = Draw(0, 1) == 1;
    c.batch.fixed_shapes = Draw(0, 1) == 1;
    if (Draw(0, 1) == 1)
      c.batch.microbatch_tokens = std::uint64_t{c.batch.sequence_length} * Draw(1, 2);
  }
  const std::uint32_t longest = std::min(40U, c.batch.sequence_length);
  const std::uint32_t count = thd ? Draw(0, 12) : c.batch.rows;
  for (std::uint32_t i = 0; i < count; ++i) {
    const bool last = Draw(0, 1) == 1;
    c.plan.pieces.push_back(MakePiece(i, Draw(0, 9), Draw(1, longest), last));
    if (!thd) c.plan.rows.push_back({i});
  }
  JobSpec job;
  job.batch = c.batch;
  job.mesh = c.mesh;
  auto ranks = BuildLayout(LayoutOptionsOf(job), c.plan);
  if (!ranks.ok()) RC_FAIL(ranks.status().ToString());
  c.plan.ranks = std::move(ranks).value();
  return c;
}

// Domains that the split cuts, from the delivered boundaries.
std::vector<std::size_t> DomainsOf(const Case& c, const Boundaries& cu_padded, const Ints& shape) {
  std::vector<std::size_t> domains = {0};
  if (c.batch.layout == BatchLayout::kThd && c.mesh.cp_split == ContextSplit::kZigzagDocument) {
    for (std::size_t i = 1; i < cu_padded.size(); ++i) {
      if (cu_padded[i] != cu_padded[i - 1])
        domains.push_back(static_cast<std::size_t>(cu_padded[i]));
    }
    return domains;
  }
  const std::size_t width = static_cast<std::size_t>(shape[1]) * c.mesh.cp;
  for (std::int64_t row = 0; row < shape[0]; ++row) domains.push_back(domains.back() + width);
  return domains;
}

RC_GTEST_PROP(PlacesProperty, TheSlicesAreTheWholeEachTokenOnce, ()) {
  const Case c = RandomCase();
  const auto tree = ClientPlaceTree::Make(c.mesh);
  RC_ASSERT(tree.ok());
  std::multiset<std::pair<std::int64_t, std::int64_t>> targets;  // (token, label), over all places
  for (std::uint32_t dp = 0; dp < c.mesh.dp; ++dp) {
    const auto bucket = Build(c.batch, c.mesh, c.plan, dp);
    if (!bucket.ok()) RC_FAIL(bucket.status().ToString());
    MeshSpec no_stages = c.mesh;
    no_stages.pp = no_stages.tp = 1;
    no_stages.sequence_parallel = false;
    for (std::size_t m = 0; m < bucket->view.microbatches.size(); ++m) {
      const MicrobatchView& whole = bucket->view.microbatches[m];
      const auto cu = bucket->Get<std::int32_t>(bucket->view, m, "cu_seqlens_padded");
      const auto domains = DomainsOf(c, cu, whole.shape);
      const bool zigzag = c.mesh.cp_split == ContextSplit::kZigzagDocument ||
                          c.mesh.cp_split == ContextSplit::kZigzagRow;
      std::vector<int> seen(domains.back(), 0);
      std::vector<std::uint64_t> work(c.mesh.cp, 0);
      // Positions by index in the whole microbatch: they must rise by one inside a segment.
      std::vector<std::int64_t> positions(domains.back());
      for (std::uint32_t cp = 0; cp < c.mesh.cp; ++cp) {
        const BatchView first = At(*bucket, c.mesh, cp, 0);
        const BatchView last = At(*bucket, c.mesh, cp, c.mesh.pp - 1);
        const auto tokens = bucket->Get<std::int64_t>(first, m, "tokens");
        const auto position_ids = bucket->Get<std::int64_t>(first, m, "position_ids");
        const auto labels = bucket->Get<std::int64_t>(last, m, "labels");
        const auto mask = bucket->Get<char>(last, m, "loss_mask");
        RC_ASSERT(!tokens.empty());
        RC_ASSERT(tokens.size() * c.mesh.cp == domains.back());
        for (std::size_t t = 0; t < tokens.size(); ++t) {
          const std::size_t index = GlobalIndex(domains, c.mesh.cp, zigzag, cp, t);
          ++seen[index];
          positions[index] = position_ids[t];
          RC_ASSERT(mask[t] == (labels[t] == kIgnoreLabel ? 0 : 1));
          if (mask[t] == 1) {
            RC_ASSERT(labels[t] == tokens[t] + 1);
            targets.emplace(tokens[t], labels[t]);
          }
          const auto domain = std::upper_bound(domains.begin(), domains.end(), index) - 1;
          work[cp] += index - *domain + 1;
        }
      }
      RC_ASSERT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
      if (zigzag) {
        RC_ASSERT(
            std::all_of(work.begin(), work.end(), [&](std::uint64_t w) { return w == work[0]; }));
      }
      for (std::size_t i = 0; i < positions.size(); ++i) {
        const std::int64_t next = i == 0 ? 0 : positions[i - 1] + 1;
        RC_ASSERT(positions[i] == 0 || positions[i] == next);
      }
    }
  }
  std::multiset<std::pair<std::int64_t, std::int64_t>> expected;
  for (const Piece& piece : c.plan.pieces) {
    const std::int64_t base = 100 * (static_cast<std::int64_t>(piece.position) + 1) + piece.start;
    for (std::int64_t i = 0; i + (piece.last ? 1 : 0) < piece.length; ++i)
      expected.emplace(base + i, base + i + 1);
  }
  RC_ASSERT(targets == expected);
}

RC_GTEST_PROP(PlacesProperty, ShapesOfOneNumberAgree, ()) {
  const Case c = RandomCase();
  std::set<Ints> shapes;
  std::set<std::size_t> boundaries;
  const std::size_t count = c.plan.ranks[0].microbatches.size();
  RC_ASSERT(count % MicrobatchMultiple(c.mesh) == 0);
  for (std::uint32_t dp = 0; dp < c.mesh.dp; ++dp) {
    const auto bucket = Build(c.batch, c.mesh, c.plan, dp);
    if (!bucket.ok()) RC_FAIL(bucket.status().ToString());
    RC_ASSERT(bucket->view.microbatches.size() == count);
    // In thd the pieces here are too short for their padding to be foreseen.
    if (c.batch.layout != BatchLayout::kThd)
      RC_ASSERT(bucket->view.size_bytes <= ReservedBytes(c.batch, c.mesh));
    for (std::size_t m = 0; m < count; ++m) {
      const MicrobatchView& view = bucket->view.microbatches[m];
      shapes.insert(view.shape);
      const auto cu = bucket->Get<std::int32_t>(bucket->view, m, "cu_seqlens");
      boundaries.insert(cu.size());
      const auto padded = c.batch.layout == BatchLayout::kThd
                              ? bucket->Get<std::int32_t>(bucket->view, m, "cu_seqlens_padded")
                              : cu;
      RC_ASSERT(cu[0] == 0 && padded[0] == 0 && cu.size() == padded.size());
      RC_ASSERT(padded.back() == view.shape[0] * view.shape[1] * c.mesh.cp);
      for (std::size_t i = 1; i < cu.size(); ++i) {
        const std::int32_t length = padded[i] - padded[i - 1];
        RC_ASSERT(cu[i] - cu[i - 1] <= length && cu[i] >= cu[i - 1]);
        RC_ASSERT(length <= view.max_seqlen);
      }
      if (c.batch.microbatch_tokens != 0)
        RC_ASSERT(static_cast<std::uint64_t>(padded.back()) <= c.batch.microbatch_tokens);
    }
  }
  if (c.batch.fixed_shapes || c.batch.layout != BatchLayout::kThd) RC_ASSERT(shapes.size() == 1U);
  if (c.batch.fixed_shapes) RC_ASSERT(boundaries.size() == 1U);
}

}  // namespace
}  // namespace widestream
