#include "engine/source/messages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace widestream {
namespace {

MetadataBatch RandomBatch() {
  MetadataBatch batch;
  batch.source = *rc::gen::arbitrary<std::uint32_t>();
  batch.epoch = *rc::gen::arbitrary<std::uint32_t>();
  batch.position = *rc::gen::inRange<std::uint64_t>(0, 1ULL << 60);
  batch.end_of_epoch = *rc::gen::arbitrary<bool>();
  batch.restart = {batch.epoch, *rc::gen::arbitrary<std::uint64_t>(), 1, 2, 3, 4};
  const int n = *rc::gen::inRange(0, 6);
  for (int i = 0; i < n; ++i) {
    const int outcome = *rc::gen::inRange(0, 6);
    batch.outcome.push_back(static_cast<RecordOutcome>(outcome));
    batch.tokens.push_back(outcome == 0 ? *rc::gen::arbitrary<std::uint32_t>() : 0);
    batch.bytes.push_back(*rc::gen::arbitrary<std::uint32_t>());
    batch.ids_hash.push_back(outcome == 0 ? *rc::gen::arbitrary<std::uint64_t>() : 0);
    batch.shard.push_back(*rc::gen::arbitrary<std::uint32_t>());
    batch.record.push_back(*rc::gen::arbitrary<std::uint64_t>());
  }
  return batch;
}

RC_GTEST_PROP(Messages, MetadataBatchesComeBackAsTheyWere, ()) {
  const MetadataBatch batch = RandomBatch();
  const std::string bytes = Encode(batch);
  const auto decoded = DecodeMetadataBatch(bytes);
  RC_ASSERT(decoded.ok());
  RC_ASSERT(*decoded == batch);
}

RC_GTEST_PROP(Messages, ACutMetadataBatchIsAnErrorAtEveryByte, ()) {
  const std::string bytes = Encode(RandomBatch());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    RC_ASSERT(!DecodeMetadataBatch(std::string_view(bytes).substr(0, size)).ok());
  }
  RC_ASSERT(!DecodeMetadataBatch(bytes + "x").ok());
}

TEST(Messages, ReadRequestsComeBackAndCutOnesAreErrors) {
  const ReadRequest request{7, 3, 1ULL << 40, 500, 2};
  const std::string bytes = Encode(request);
  const auto decoded = DecodeReadRequest(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, request);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeReadRequest(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
}

TEST(Messages, RefusesColumnsThatDiffer) {
  MetadataBatch batch;
  batch.outcome = {RecordOutcome::kDelivered, RecordOutcome::kFiltered};
  batch.tokens = {5, 0};
  batch.bytes = {20, 9};
  batch.ids_hash = {1, 0};
  batch.shard = {0, 0};
  batch.record = {0};
  const auto decoded = DecodeMetadataBatch(Encode(batch));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), StatusCode::kDataCorruption);
}

TEST(Messages, RefusesTokensOfARecordThatIsNotDelivered) {
  MetadataBatch batch;
  batch.outcome = {RecordOutcome::kHeldOut};
  batch.tokens = {5};
  batch.bytes = {20};
  batch.ids_hash = {0};
  batch.shard = {0};
  batch.record = {0};
  EXPECT_FALSE(DecodeMetadataBatch(Encode(batch)).ok());
}

TEST(Messages, RefusesAnotherKindAndAnotherVersion) {
  const std::string request = Encode(ReadRequest{});
  EXPECT_EQ(DecodeMetadataBatch(request).status().code(), StatusCode::kDataCorruption);
  std::string newer = request;
  newer[4] = 2;  // the version follows the four bytes of the magic
  EXPECT_EQ(DecodeReadRequest(newer).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace widestream
