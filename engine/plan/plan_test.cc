#include "engine/plan/plan.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/base/rng.h"
#include "engine/base/wire.h"
#include "engine/plan/digest.h"
#include "engine/plan/journal_format.h"
#include "engine/plan/planner.h"
#include "engine/plan/varint.h"
#include "engine/source/messages.h"
#include "engine/storage/file_system.h"

namespace widestream {
namespace {

StepPlan Sample() {
  StepPlan plan;
  plan.step = 1ULL << 40;
  plan.skipped = true;
  plan.pieces = {{3, 1, 900, 0, 10, 77, 2, 1ULL << 33, UINT64_MAX, false},
                 {3, 1, 900, 10, 4, 79, 2, 1ULL << 33, UINT64_MAX, true},
                 {0, 0, 5, 0, 1, 80, 0, 2, 1, true}};
  plan.rows = {{0}, {2, 1}, {}};
  plan.ranks = {{{{{{2, 1}, {}}}}, 12.5}, {{{{{0}, {}}}}, 3}};
  plan.real_tokens = 15;
  plan.supervised_tokens = 13;
  const std::vector<std::uint64_t> ids = {1, 2, 3, 4};
  plan.digest = StepDigest(plan, ids);
  return plan;
}

TEST(StepPlan, ComesBackFromItsBytes) {
  const auto decoded = DecodeStepPlan(Encode(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(*decoded, Sample());
}

// Whatever happens to the bytes, decoding ends with a plan or an error.
TEST(StepPlan, DamagedBytesNeverCrash) {
  const std::string bytes = Encode(Sample());
  std::size_t errors = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = bytes;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      const auto decoded = DecodeStepPlan(bad);
      if (!decoded.ok()) {
        ++errors;
      } else {
        EXPECT_FALSE(*decoded == Sample());
      }
    }
  }
  EXPECT_GT(errors, bytes.size());  // lengths, counts, indices and the header are checked
}

TEST(StepPlan, RefusesTokensThatDoNotAddUp) {
  StepPlan plan = Sample();
  plan.real_tokens = 16;
  const auto decoded = DecodeStepPlan(Encode(plan));
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), StatusCode::kDataCorruption);
}

TEST(StepPlan, RefusesRanksOfUnequalMicrobatches) {
  StepPlan plan = Sample();
  plan.ranks[1].microbatches.clear();
  EXPECT_FALSE(DecodeStepPlan(Encode(plan)).ok());
}

TEST(StepPlan, RefusesARowThatIsDeliveredTwice) {
  StepPlan plan = Sample();
  plan.ranks[1].microbatches = plan.ranks[0].microbatches;
  EXPECT_FALSE(DecodeStepPlan(Encode(plan)).ok());
}

TEST(StepPlan, AHugeCountAllocatesNothing) {
  StepPlan plan = Sample();
  plan.pieces.clear();
  plan.rows.clear();
  plan.ranks.clear();
  plan.real_tokens = plan.supervised_tokens = 0;
  std::string bytes = Encode(plan);
  bytes.resize(bytes.size() - 3);  // the three counts
  WireWriter writer;
  PutVarint(writer, 1ULL << 60);
  EXPECT_FALSE(DecodeStepPlan(bytes + writer.Take()).ok());
}

TEST(StepDigest, ChangesWithMembershipAndNotWithLayout) {
  const std::vector<std::uint64_t> ids = {1, 2, 3, 4};
  const std::string digest = Sample().digest;
  EXPECT_EQ(digest.size(), 32U);
  StepPlan plan = Sample();
  plan.ranks.clear();
  plan.skipped = false;
  EXPECT_EQ(StepDigest(plan, ids), digest);
  plan.rows = {{0}, {1, 2}, {}};
  EXPECT_NE(StepDigest(plan, ids), digest);
  plan = Sample();
  plan.pieces[1].ids_hash ^= 1;
  EXPECT_NE(StepDigest(plan, ids), digest);
}

TEST(Varint, RoundTripsAndBounds) {
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::uint64_t value = RandomAt(1, 0, 0, i) >> (i % 64);
    const std::uint64_t base = RandomAt(2, 0, 0, i);
    WireWriter writer;
    PutVarint(writer, value);
    PutDelta(writer, value, base);
    WireReader reader(writer.bytes(), "numbers");
    EXPECT_EQ(*GetVarint(reader), value);
    EXPECT_EQ(*GetDelta(reader, base), value);
    EXPECT_TRUE(reader.Finish().ok());
  }
  WireReader eleven("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "number");
  EXPECT_FALSE(GetVarint(eleven).ok());
  WireReader large("\x05", "number");
  EXPECT_FALSE(GetVarint(large, 4).ok());
}

// The fuzzers' corpus is built from docs/formats by a script: what the pages say is what is read.
TEST(Formats, ThePagesAndTheCodeAgree) {
  const char* root = std::getenv("WIDESTREAM_SOURCE_DIR");
  if (root == nullptr) GTEST_SKIP() << "WIDESTREAM_SOURCE_DIR is not set; run by ctest";
  const auto read = [&](const std::string& name) {
    const auto bytes =
        LocalFileSystem()->ReadAll(std::string(root) + "/fuzz/corpus/" + name, 1 << 20);
    EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
    return bytes.ok() ? bytes->substr(1) : std::string();  // after the byte that says which
  };
  JobSpec job;
  job.sources.resize(2);
  job.sources[0].name = "web";
  job.sources[1].name = "code";
  for (const char* name : {"state/plain", "state/decisions", "state/open_sample"}) {
    const auto state = StateFromJson(job, read(name));
    EXPECT_TRUE(state.ok()) << name << ": " << state.status().ToString();
  }
  const auto plan = DecodeStepPlan(read("state/step_plan"));
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(Encode(*plan), read("state/step_plan"));
  EXPECT_EQ(plan->pieces[1].start, 3U);
  EXPECT_TRUE(plan->pieces[1].last);
  EXPECT_EQ(plan->ranks[0].microbatches[0].rows, plan->rows);
  EXPECT_TRUE(DecodeMetadataBatch(read("state/metadata")).ok());
  EXPECT_TRUE(DecodeReadRequest(read("state/request")).ok());
  // Records: a flag, a type and a length of two bytes before each payload.
  JournalContents contents;
  contents.identity = {std::string(32, 'a'), {"web", "code"}};
  const std::string records = '\0' + read("journal/all");
  std::size_t applied = 0;
  for (std::size_t at = 0; at < records.size(); ++applied) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(records[at + i]); };
    const std::size_t length = byte(2) + 256U * byte(3);
    const journal_format::Record record{static_cast<journal_format::RecordType>(byte(1)), at + 1,
                                        records.substr(at + 4, length)};
    const Status status = journal_format::Apply(record, contents);
    EXPECT_TRUE(status.ok()) << status.ToString();
    at += 4 + length;
  }
  EXPECT_EQ(applied, 5U);
  EXPECT_EQ(contents.identity.stream_hash, std::string(32, 'b'));
}

}  // namespace
}  // namespace widestream
