#include "engine/deliver/messages.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <string>
#include <vector>

#include "engine/deliver/frame.h"

namespace widestream::delivery {
namespace {

BatchMessage SomeBatch() {
  BatchMessage batch;
  batch.step = 7;
  batch.slab_id = 3;
  batch.slab_bytes = 8192;
  batch.gone = {1, 2};
  batch.real_tokens = 100;
  batch.supervised_tokens = 99;
  batch.digest = std::string(32, 'a');
  batch.costs = {1.5, 2};
  batch.tokens_by_source = {60, 40};
  batch.weights = {1, 2};
  batch.view.rank = 1;
  batch.view.size_bytes = 4096;
  MicrobatchView microbatch;
  microbatch.max_seqlen = 64;
  microbatch.real_tokens = 100;
  microbatch.shape = {2, 64};
  microbatch.tensors = {
      {.name = "tokens", .shape = {2, 64}, .offset_bytes = 64},
      {.name = "loss_mask", .type = DataType::kBool, .shape = {2, 64}, .offset_bytes = 2048},
      {.name = "cu_seqlens", .type = DataType::kInt32, .shape = {}, .offset_bytes = 4096}};
  batch.view.microbatches = {microbatch, microbatch};
  return batch;
}

TEST(Messages, ABatchIsReadAsItWasWritten) {
  const std::string bytes = Encode(SomeBatch());
  const Result<BatchMessage> batch = DecodeBatch(bytes);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ(Encode(*batch), bytes);
  EXPECT_EQ(batch->view.step, 7U);
  EXPECT_EQ(batch->view.microbatches[0].shape, (std::vector<std::int64_t>{2, 64}));
  EXPECT_EQ(batch->view.microbatches[1].tensors[1].name, "loss_mask");
  EXPECT_EQ(batch->view.microbatches[1].tensors[1].offset_bytes, 2048U);
}

TEST(Messages, ATensorOutsideItsSlabIsRefused) {
  const auto refused = [](auto change) {
    BatchMessage batch = SomeBatch();
    change(batch.view.microbatches[0].tensors[0], batch);
    return DecodeBatch(Encode(batch)).status().code();
  };
  EXPECT_EQ(refused([](TensorView& t, BatchMessage&) { t.offset_bytes = 8192 - 64; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView& t, BatchMessage&) { t.offset_bytes = ~std::size_t{63}; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView& t, BatchMessage&) { t.offset_bytes = 65; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView& t, BatchMessage&) { t.shape = {1LL << 40, 1LL << 40}; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView& t, BatchMessage&) { t.shape = {-1}; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView&, BatchMessage& b) { b.view.microbatches[0].shape = {-1, 64}; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(
      refused([](TensorView&, BatchMessage& b) { b.view.microbatches[0].shape.assign(9, 1); }),
      StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView&, BatchMessage& b) { b.slab_bytes = 1ULL << 60; }),
            StatusCode::kDataCorruption);
  EXPECT_EQ(refused([](TensorView&, BatchMessage& b) { b.view.size_bytes = 8193; }),
            StatusCode::kDataCorruption);
}

TEST(Messages, EveryCutOfAMessageIsRefused) {
  const std::string bytes = Encode(SomeBatch());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(DecodeBatch(std::string_view(bytes).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeBatch(bytes + "x").ok());
}

RC_GTEST_PROP(Messages, AHelloIsReadAsItWasWritten, ()) {
  Hello hello;
  hello.rank = *rc::gen::arbitrary<std::uint32_t>();
  hello.world = *rc::gen::arbitrary<std::uint32_t>();
  hello.job_hash = *rc::gen::arbitrary<std::string>();
  hello.job_keys = *rc::gen::arbitrary<std::vector<std::pair<std::string, std::string>>>();
  hello.launcher_id = *rc::gen::arbitrary<std::string>();
  hello.state_json = *rc::gen::arbitrary<std::string>();
  hello.fork = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) hello.begin_step = *rc::gen::arbitrary<std::uint64_t>();
  const Result<Hello> read = DecodeHello(Encode(hello));
  RC_ASSERT(read.ok());
  RC_ASSERT(*read == hello);
}

RC_GTEST_PROP(Messages, ADecisionIsReadAsItWasWritten, ()) {
  DecideRequest request;
  request.number = *rc::gen::arbitrary<std::uint64_t>();
  request.decision.kind =
      *rc::gen::element(Decision::Kind::kEdit, Decision::Kind::kSkip, Decision::Kind::kQuarantine);
  request.decision.step = *rc::gen::arbitrary<std::uint64_t>();
  request.decision.mixture_json = *rc::gen::arbitrary<std::string>();
  request.decision.steps = *rc::gen::arbitrary<std::uint64_t>();
  request.decision.position = *rc::gen::arbitrary<std::uint64_t>();
  request.decision.reason = *rc::gen::arbitrary<std::string>();
  const Result<DecideRequest> read = DecodeDecide(Encode(request));
  RC_ASSERT(read.ok());
  RC_ASSERT(read->decision == request.decision);
  RC_ASSERT(read->number == request.number);
}

TEST(Messages, ErrorsKeepCodeAndMessage) {
  Status error;
  ASSERT_TRUE(DecodeError(Encode(Status::Unavailable("gone")), &error).ok());
  EXPECT_EQ(error.code(), StatusCode::kUnavailable);
  EXPECT_EQ(error.message(), "gone");
  EXPECT_FALSE(DecodeError(std::string(9, '\0'), &error).ok());
  EXPECT_FALSE(DecodeError(std::string(1, '\x7f') + std::string(8, '\0'), &error).ok());
}

TEST(Messages, ATextIsInlineOrOnlyItsSize) {
  EXPECT_EQ(DecodeText(Encode(TextMessage{3, "abc"}), false)->text, "abc");
  EXPECT_EQ(DecodeText(Encode(TextMessage{3, ""}), true)->size_bytes, 3U);
  EXPECT_FALSE(DecodeText(Encode(TextMessage{3, ""}), false).ok());
  EXPECT_FALSE(DecodeText(Encode(TextMessage{3, "abc"}), true).ok());
  EXPECT_EQ(DecodeText(EncodeNumber(UINT64_MAX), true).status().code(),
            StatusCode::kResourceExhausted);
}

TEST(Messages, WelcomesAreReadAsWritten) {
  WelcomeMessage welcome{12, "/log", "{}", 1, 2, 3, 4, false, 8, 9};
  const Result<WelcomeMessage> read = DecodeWelcome(Encode(welcome));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(*read, welcome);
}

TEST(Frames, ComeOutWholeHoweverTheBytesArrive) {
  const std::string bytes = EncodeFrame(MessageType::kHello, 1, "abc") +
                            EncodeFrame(MessageType::kNext, 2, "") +
                            EncodeFrame(MessageType::kBatch, 3, std::string(5000, 'x'), 1);
  for (const std::size_t part : {1U, 7U, 16U, 10000U}) {
    FrameBuffer buffer;
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < bytes.size(); at += part) {
      buffer.Append(std::string_view(bytes).substr(at, part));
      for (;;) {
        auto frame = buffer.Next();
        ASSERT_TRUE(frame.ok());
        if (!frame->has_value()) break;
        frames.push_back(**frame);
      }
    }
    ASSERT_EQ(frames.size(), 3U);
    EXPECT_EQ(frames[0].body, "abc");
    EXPECT_EQ(frames[1].request, 2U);
    EXPECT_EQ(frames[2].descriptors, 1U);
    EXPECT_EQ(buffer.pending_bytes(), 0U);
  }
}

TEST(Frames, AreRefusedBeforeTheirBodyIsAwaited) {
  const auto code = [](std::size_t at, char value) {
    std::string bytes = EncodeFrame(MessageType::kHello, 1, "");
    bytes[at] = value;
    FrameBuffer buffer;
    buffer.Append(bytes);
    return buffer.Next().status().code();
  };
  EXPECT_EQ(code(0, 'X'), StatusCode::kDataCorruption);
  EXPECT_EQ(code(4, 2), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(6, 0), StatusCode::kDataCorruption);
  EXPECT_EQ(code(6, 99), StatusCode::kDataCorruption);
  EXPECT_EQ(code(7, 2), StatusCode::kDataCorruption);
  EXPECT_EQ(code(15, 2), StatusCode::kResourceExhausted);
}

TEST(Frames, AnErrorIsReadOfEveryVersion) {
  std::string bytes = EncodeFrame(MessageType::kError, 0, Encode(Status::Internal("why")) + "more");
  bytes[4] = 77;
  FrameBuffer buffer;
  buffer.Append(bytes);
  const auto frame = buffer.Next();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  Status error;
  ASSERT_TRUE(DecodeError((*frame)->body, &error).ok());
  EXPECT_EQ(error.message(), "why");
}

}  // namespace
}  // namespace widestream::delivery
