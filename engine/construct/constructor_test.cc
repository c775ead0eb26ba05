#include "engine/construct/constructor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "engine/construct/testing.h"

namespace widestream {
namespace {

using construct_testing::kHash;
using construct_testing::MakePiece;
using construct_testing::Name;
using construct_testing::Provide;

struct Built {
  BatchView view;
  std::vector<std::byte> memory;

  template <typename T>
  std::vector<T> Get(std::size_t microbatch, const std::string& name) const {
    for (const TensorView& tensor : view.microbatches[microbatch].tensors) {
      if (tensor.name != name) continue;
      std::vector<T> out(tensor.size_bytes() / sizeof(T));
      std::memcpy(out.data(), memory.data() + tensor.offset_bytes, tensor.size_bytes());
      return out;
    }
    ADD_FAILURE() << "no tensor " << name;
    return {};
  }
};

Result<Built> Build(const BatchSpec& batch, StepPlan plan) {
  Built built;
  WS_ASSIGN_OR_RETURN(built.view,
                      LayOut(batch, std::make_shared<const StepPlan>(std::move(plan)), 0));
  built.memory.assign(built.view.size_bytes, std::byte{0xEE});
  WS_RETURN_IF_ERROR(Construct(batch, built.view, Provide, Name, built.memory));
  return built;
}

BatchSpec Rows(std::uint32_t sequence_length) {
  BatchSpec batch;
  batch.sequence_length = sequence_length;
  batch.rows = 1;
  return batch;
}

StepPlan OneMicrobatch(std::vector<Piece> pieces, std::vector<std::vector<std::uint32_t>> rows) {
  StepPlan plan;
  plan.pieces = std::move(pieces);
  plan.ranks.resize(1);
  plan.ranks[0].microbatches.push_back({std::move(rows)});
  return plan;
}

TEST(Constructor, LabelsLookAheadInsideADocumentAndNeverAcrossDocuments) {
  // Piece 0: the middle of a document (more follows); piece 1: a whole document's end; then one
  // padding position.
  const auto built = Build(
      Rows(6), OneMicrobatch({MakePiece(0, 2, 3, false), MakePiece(1, 18, 2, true)}, {{0, 1}}));
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  EXPECT_EQ(built->Get<std::int64_t>(0, "tokens"),
            (std::vector<std::int64_t>{102, 103, 104, 218, 219, 0}));
  EXPECT_EQ(built->Get<std::int64_t>(0, "labels"),
            (std::vector<std::int64_t>{103, 104, 105, 219, -100, -100}));
  EXPECT_EQ(built->Get<char>(0, "loss_mask"), (std::vector<char>{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(built->Get<std::int64_t>(0, "position_ids"),
            (std::vector<std::int64_t>{0, 1, 2, 0, 1, 0}));
  EXPECT_EQ(built->Get<std::int32_t>(0, "segment_ids"),
            (std::vector<std::int32_t>{1, 1, 1, 2, 2, 0}));
  EXPECT_EQ(built->Get<std::int32_t>(0, "cu_seqlens"), (std::vector<std::int32_t>{0, 3, 5, 6}));
  EXPECT_EQ(built->view.microbatches[0].max_seqlen, 3);
}

TEST(Constructor, AFillerRowIsAllPadding) {
  const auto built = Build(Rows(4), OneMicrobatch({MakePiece(0, 0, 4, false)}, {{0}, {}}));
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  EXPECT_EQ(built->Get<std::int64_t>(0, "labels"),
            (std::vector<std::int64_t>{101, 102, 103, 104, -100, -100, -100, -100}));
  EXPECT_EQ(built->Get<std::int32_t>(0, "cu_seqlens"), (std::vector<std::int32_t>{0, 4, 8}));
  EXPECT_EQ(built->view.microbatches[0].real_tokens, 4U);
}

TEST(Constructor, CrossDocumentAttentionMakesOneSegmentARow) {
  BatchSpec batch = Rows(6);
  batch.cross_document_attention = true;
  const auto built =
      Build(batch, OneMicrobatch({MakePiece(0, 0, 3, true), MakePiece(1, 0, 2, true)}, {{0, 1}}));
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  EXPECT_EQ(built->Get<std::int64_t>(0, "position_ids"),
            (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(built->Get<std::int32_t>(0, "cu_seqlens"), (std::vector<std::int32_t>{0, 6}));
  EXPECT_EQ(built->Get<std::int64_t>(0, "labels"),
            (std::vector<std::int64_t>{101, 102, -100, 201, -100, -100}));
}

TEST(Constructor, ThdIsAsLongAsItsPiecesAndNeverEmpty) {
  BatchSpec batch;
  batch.layout = BatchLayout::kThd;
  batch.tokens = 8;
  batch.sequence_length = 8;
  StepPlan plan = OneMicrobatch({MakePiece(0, 0, 3, false), MakePiece(1, 0, 2, true)}, {{0, 1}});
  plan.ranks[0].microbatches.push_back({{{}}});
  const auto built = Build(batch, std::move(plan));
  ASSERT_TRUE(built.ok()) << built.status().ToString();
  EXPECT_EQ(built->view.microbatches[0].tensors[0].shape, (std::vector<std::int64_t>{1, 5}));
  EXPECT_EQ(built->Get<std::int32_t>(0, "cu_seqlens_padded"), (std::vector<std::int32_t>{0, 3, 5}));
  EXPECT_EQ(built->view.microbatches[1].tensors[0].shape, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(built->Get<std::int64_t>(1, "labels"), (std::vector<std::int64_t>{-100}));
  EXPECT_EQ(built->Get<std::int32_t>(1, "cu_seqlens"), (std::vector<std::int32_t>{0, 1}));
}

TEST(Constructor, ARecordThatReadsDifferentlyIsRefusedByName) {
  Piece piece = MakePiece(0, 0, 4, true);
  piece.ids_hash = kHash + 1;
  piece.record = 31;
  const auto built = Build(Rows(4), OneMicrobatch({piece}, {{0}}));
  ASSERT_EQ(built.status().code(), StatusCode::kDataCorruption);
  EXPECT_NE(built.status().message().find("record 31"), std::string::npos);
}

TEST(Constructor, ARankOutsideThePlanIsAnError) {
  const auto view = LayOut(Rows(4), std::make_shared<const StepPlan>(), 0);
  EXPECT_EQ(view.status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace widestream
