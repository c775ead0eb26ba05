#include "engine/plan/journal.h"

#include <gtest/gtest.h>

#include "engine/plan/journal_format.h"
#include "engine/storage/faulty_file_system.h"
#include "engine/storage/temporary_folder.h"

namespace widestream {
namespace {

JournalIdentity Identity(char digit = 'a') { return {std::string(32, digit), {"web", "code"}}; }

StepPlan MakeStep(std::uint64_t step, std::uint64_t salt = 0) {
  StepPlan plan;
  plan.step = step;
  Piece piece;
  piece.position = step + salt;
  piece.length = 7;
  piece.draw = step;
  piece.ids_hash = 99;
  plan.pieces = {piece};
  plan.rows = {{0}};
  plan.ranks.resize(1);
  plan.ranks[0].microbatches = {{{{0}}}};
  plan.real_tokens = 7;
  plan.supervised_tokens = 7;
  plan.digest = Hash128{step, salt}.ToHex();
  return plan;
}

Decision Skip(std::uint64_t step) {
  Decision decision;
  decision.kind = Decision::Kind::kSkip;
  decision.step = step;
  decision.steps = 2;
  return decision;
}

class JournalTest : public testing::Test {
 protected:
  std::unique_ptr<JournalWriter> OpenWriter(const JournalIdentity& identity = Identity()) {
    auto writer = JournalWriter::Open(files_, path_, identity);
    EXPECT_TRUE(writer.ok()) << writer.status().ToString();
    return writer.ok() ? std::move(writer).value() : nullptr;
  }
  std::unique_ptr<JournalReader> OpenReader() {
    auto reader = JournalReader::Open(files_, path_);
    EXPECT_TRUE(reader.ok()) << reader.status().ToString();
    return reader.ok() ? std::move(reader).value() : nullptr;
  }
  std::string Bytes() const { return *LocalFileSystem()->ReadAll(path_, 1 << 20); }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "journal";
  std::shared_ptr<FileSystem> files_ = LocalFileSystem();
};

TEST_F(JournalTest, GivesBackWhatWasAppended) {
  Decision edit;
  edit.step = 3;
  edit.mixture_json = R"({"stages":[{"weights":{"web":1}}]})";
  Decision quarantine;
  quarantine.kind = Decision::Kind::kQuarantine;
  quarantine.step = 5;
  quarantine.source = 1;
  quarantine.epoch = 2;
  quarantine.position = 77;
  quarantine.reason = "I/O error";
  {
    auto writer = OpenWriter();
    ASSERT_TRUE(writer->AppendManifest({1, 0, "abc", "files"}).ok());
    for (std::uint64_t s = 0; s < 3; ++s) ASSERT_TRUE(writer->AppendStep(MakeStep(s)).ok());
    ASSERT_TRUE(writer->AppendDecision(edit).ok());
    ASSERT_TRUE(writer->AppendStep(MakeStep(3)).ok());
    ASSERT_TRUE(writer->AppendDecision(quarantine).ok());
    ASSERT_TRUE(writer->AppendNote("resumed").ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  const auto reader = OpenReader();
  const JournalContents& contents = reader->contents();
  EXPECT_EQ(contents.identity, Identity());
  EXPECT_EQ(contents.steps.size(), 4U);
  EXPECT_EQ(contents.decisions, (std::vector<Decision>{edit, quarantine}));
  EXPECT_EQ(contents.notes, std::vector<std::string>{"resumed"});
  EXPECT_FALSE(contents.tear.has_value());
  for (std::uint64_t s = 0; s < 4; ++s) {
    const auto plan = reader->ReadStep(s);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    EXPECT_EQ(*plan, MakeStep(s));
  }
  EXPECT_EQ(reader->ReadStep(4).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(*reader->ReadManifest(1, 0), (JournalManifest{1, 0, "abc", "files"}));
  EXPECT_EQ(reader->ReadManifest(0, 0).status().code(), StatusCode::kNotFound);
}

TEST_F(JournalTest, AStepPlannedAgainMustMatch) {
  auto writer = OpenWriter();
  ASSERT_TRUE(writer->AppendStep(MakeStep(0)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  const std::string before = Bytes();
  EXPECT_TRUE(writer->AppendStep(MakeStep(0)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(Bytes(), before);
  const Status other = writer->AppendStep(MakeStep(0, 1));
  EXPECT_EQ(other.code(), StatusCode::kDataCorruption);
  EXPECT_NE(other.message().find("step 0"), std::string::npos);
}

TEST_F(JournalTest, ADecisionVoidsTheStepsItAffects) {
  {
    auto writer = OpenWriter();
    for (std::uint64_t s = 0; s < 5; ++s) ASSERT_TRUE(writer->AppendStep(MakeStep(s)).ok());
    ASSERT_TRUE(writer->AppendDecision(Skip(3)).ok());
    EXPECT_EQ(writer->contents().steps.size(), 3U);
    ASSERT_TRUE(writer->AppendStep(MakeStep(3, 9)).ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  const auto reader = OpenReader();
  EXPECT_EQ(reader->contents().steps.size(), 4U);
  EXPECT_EQ(reader->ReadStep(3)->pieces[0].position, 12U);
  EXPECT_FALSE(reader->ReadStep(4).ok());
}

TEST_F(JournalTest, AForkVoidsStepsAndDecisionsAndDeletesNothing) {
  std::uint64_t before = 0;
  {
    auto writer = OpenWriter();
    ASSERT_TRUE(writer->AppendDecision(Skip(1)).ok());
    for (std::uint64_t s = 0; s < 5; ++s) ASSERT_TRUE(writer->AppendStep(MakeStep(s)).ok());
    ASSERT_TRUE(writer->AppendDecision(Skip(9)).ok());
    ASSERT_TRUE(writer->Close().ok());
    before = Bytes().size();
  }
  EXPECT_EQ(JournalWriter::Open(files_, path_, Identity('b')).status().code(),
            StatusCode::kInvalidArgument);
  auto fork = JournalWriter::OpenFork(files_, path_, Identity('b'), 2);
  ASSERT_TRUE(fork.ok()) << fork.status().ToString();
  EXPECT_GT(Bytes().size(), before);
  ASSERT_TRUE((*fork)->AppendStep(MakeStep(2, 5)).ok());
  ASSERT_TRUE((*fork)->Close().ok());
  const auto reader = OpenReader();
  EXPECT_EQ(reader->contents().identity, Identity('b'));
  EXPECT_EQ(reader->contents().steps.size(), 3U);
  EXPECT_EQ(reader->contents().decisions, std::vector<Decision>{Skip(1)});
}

TEST_F(JournalTest, RefusesOtherSources) {
  ASSERT_TRUE(OpenWriter()->Close().ok());
  JournalIdentity other = Identity();
  std::swap(other.sources[0], other.sources[1]);
  EXPECT_EQ(JournalWriter::Open(files_, path_, other).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(JournalTest, ACutAnywhereKeepsTheWholeRecordsBeforeIt) {
  std::vector<std::uint64_t> ends;
  {
    auto writer = OpenWriter();
    ends.push_back(Bytes().size());
    for (std::uint64_t s = 0; s < 3; ++s) {
      ASSERT_TRUE(writer->AppendStep(MakeStep(s)).ok());
      ASSERT_TRUE(writer->Commit().ok());
      ends.push_back(Bytes().size());
    }
  }
  const std::string whole = Bytes();
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    folder_.Write("journal", whole.substr(0, size));
    std::uint64_t kept = 0;
    std::size_t steps = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i] <= size) {
        kept = ends[i];
        steps = i;
      }
    }
    const bool torn = size != kept;
    const auto reader = JournalReader::Open(files_, path_);
    ASSERT_EQ(reader.ok(), kept > 0) << size;
    if (reader.ok()) {
      EXPECT_EQ((*reader)->contents().valid_bytes, kept);
      EXPECT_EQ((*reader)->contents().steps.size(), steps);
      EXPECT_EQ((*reader)->contents().tear.has_value(), torn);
    }
    // Repairing syncs, which is slow: at the records' borders and here and there between.
    if (size - kept > 1 && size % 61 != 0) continue;
    if (torn) {
      EXPECT_FALSE(JournalWriter::Open(files_, path_, Identity()).ok()) << size;
    }
    const auto tear = RepairJournal(files_, path_);
    ASSERT_TRUE(tear.ok()) << tear.status().ToString();
    ASSERT_EQ(tear->has_value(), torn);
    if (torn) {
      EXPECT_EQ((*tear)->offset_bytes, kept);
      EXPECT_EQ((*tear)->lost_bytes, size - kept);
      EXPECT_FALSE((*tear)->records_follow);
    }
    auto writer = OpenWriter();
    EXPECT_EQ(writer->contents().steps.size(), steps);
    ASSERT_TRUE(writer->AppendStep(MakeStep(steps)).ok());
    ASSERT_TRUE(writer->Close().ok());
    EXPECT_EQ(OpenReader()->contents().steps.size(), steps + 1);
  }
}

TEST_F(JournalTest, AFlippedByteIsFoundAndDamageInTheMiddleIsNotCutUnasked) {
  {
    auto writer = OpenWriter();
    for (std::uint64_t s = 0; s < 2; ++s) ASSERT_TRUE(writer->AppendStep(MakeStep(s)).ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  const std::string whole = Bytes();
  const std::uint64_t first = OpenReader()->contents().steps[0].offset_bytes;
  const std::uint64_t second = OpenReader()->contents().steps[1].offset_bytes;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    folder_.Write("journal", bad);
    const auto reader = JournalReader::Open(files_, path_);
    if (at < first) {
      EXPECT_FALSE(reader.ok()) << at;
      continue;
    }
    ASSERT_TRUE(reader.ok());
    ASSERT_TRUE((*reader)->contents().tear.has_value()) << at;
    EXPECT_EQ((*reader)->contents().steps.size(), at < second ? 0U : 1U);
  }
  std::string middle = whole;
  middle[first + journal_format::kFrameBytes] ^= 1;
  folder_.Write("journal", middle);
  EXPECT_EQ(RepairJournal(files_, path_).status().code(), StatusCode::kDataCorruption);
  const auto forced = RepairJournal(files_, path_, /*even_if_records_follow=*/true);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(OpenReader()->contents().steps.size(), 0U);
}

TEST_F(JournalTest, AFullDiskKeepsWholeRecordsAndTheWriterGoesOn) {
  constexpr int kNoSpace = 28;
  files_ = std::make_shared<FaultyFileSystem>(
      LocalFileSystem(), std::vector<Fault>{{.kind = FaultKind::kTornAppend,
                                             .operation = FileOperation::kAppend,
                                             .first = 1,
                                             .count = 2,
                                             .error_number = kNoSpace,
                                             .bytes = 11}});
  auto writer = OpenWriter();
  ASSERT_TRUE(writer->AppendStep(MakeStep(0)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  ASSERT_TRUE(writer->AppendStep(MakeStep(1)).ok());
  const Status full = writer->Commit();
  EXPECT_EQ(full.code(), StatusCode::kIoError);
  EXPECT_EQ(full.error_number(), kNoSpace);
  EXPECT_NE(full.message().find(path_), std::string::npos);
  EXPECT_EQ(OpenReader()->contents().steps.size(), 1U);
  EXPECT_FALSE(OpenReader()->contents().tear.has_value());
  // A decision that could not be written is not half accepted.
  EXPECT_FALSE(writer->AppendDecision(Skip(4)).ok());
  EXPECT_TRUE(writer->contents().decisions.empty());
  ASSERT_TRUE(writer->AppendDecision(Skip(5)).ok());
  ASSERT_TRUE(writer->Close().ok());
  const auto reader = OpenReader();
  EXPECT_EQ(reader->contents().steps.size(), 2U);
  EXPECT_EQ(reader->contents().decisions, std::vector<Decision>{Skip(5)});
}

TEST_F(JournalTest, AFailedSyncStopsTheWriter) {
  files_ = std::make_shared<FaultyFileSystem>(
      LocalFileSystem(),
      std::vector<Fault>{
          {.kind = FaultKind::kError, .operation = FileOperation::kSync, .count = 1}});
  auto writer = OpenWriter();
  ASSERT_TRUE(writer->AppendStep(MakeStep(0)).ok());
  EXPECT_FALSE(writer->Commit().ok());
  EXPECT_FALSE(writer->AppendStep(MakeStep(1)).ok());
  EXPECT_FALSE(writer->Commit().ok());
}

TEST_F(JournalTest, DamageOfALengthBeforeASyncedRecordIsNotCutUnasked) {
  {
    auto writer = OpenWriter();
    for (std::uint64_t s = 0; s < 3; ++s) ASSERT_TRUE(writer->AppendStep(MakeStep(s)).ok());
    ASSERT_TRUE(writer->AppendDecision(Skip(3)).ok());
    ASSERT_TRUE(writer->Close().ok());
  }
  const std::string whole = Bytes();
  const std::uint64_t second = OpenReader()->contents().steps[1].offset_bytes;
  for (const std::size_t at : {std::size_t{0}, std::size_t{2}, second, second + 2}) {
    std::string bad = whole;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    folder_.Write("journal", bad);
    EXPECT_EQ(RepairJournal(files_, path_).status().code(), StatusCode::kDataCorruption) << at;
    EXPECT_EQ(Bytes(), bad);
  }
}

TEST_F(JournalTest, AnotherFileIsNotEmptied) {
  const std::string text = "a file that somebody keeps under this name\n";
  folder_.Write("journal", text);
  EXPECT_EQ(RepairJournal(files_, path_).status().code(), StatusCode::kDataCorruption);
  EXPECT_EQ(Bytes(), text);
}

TEST_F(JournalTest, DecisionsSurviveACrashAtOnceAndStepsFromTheirCommit) {
  auto faulty = std::make_shared<FaultyFileSystem>(LocalFileSystem(), std::vector<Fault>());
  files_ = faulty;
  auto writer = OpenWriter();
  ASSERT_TRUE(writer->AppendStep(MakeStep(0)).ok());
  ASSERT_TRUE(writer->Commit().ok());
  ASSERT_TRUE(writer->AppendDecision(Skip(1)).ok());
  ASSERT_TRUE(writer->AppendStep(MakeStep(1)).ok());
  ASSERT_TRUE(faulty->Crash(/*kept_bytes=*/5).ok());
  ASSERT_TRUE(RepairJournal(files_, path_).ok());
  const auto reader = OpenReader();
  EXPECT_EQ(reader->contents().steps.size(), 1U);
  EXPECT_EQ(reader->contents().decisions.size(), 1U);
}

TEST_F(JournalTest, ManifestsAreFrozenForTheirEpoch) {
  auto writer = OpenWriter();
  ASSERT_TRUE(writer->AppendManifest({0, 0, "one", "files"}).ok());
  EXPECT_TRUE(writer->AppendManifest({0, 0, "one", "files"}).ok());
  EXPECT_EQ(writer->contents().manifests.size(), 1U);
  const Status changed = writer->AppendManifest({0, 0, "two", "files"});
  EXPECT_EQ(changed.code(), StatusCode::kDataCorruption);
  EXPECT_NE(changed.message().find("web"), std::string::npos);
  EXPECT_TRUE(writer->AppendManifest({0, 1, "two", "files"}).ok());
  EXPECT_EQ(writer->AppendManifest({2, 0, "x", ""}).code(), StatusCode::kInvalidArgument);
}

TEST_F(JournalTest, ALongLengthAllocatesNothing) {
  std::string bytes = journal_format::Frame(journal_format::RecordType::kHeader,
                                            journal_format::HeaderPayload(Identity()));
  bytes += std::string("\xff\xff\xff\x3f", 4) + std::string(12, '\0');
  folder_.Write("journal", bytes);
  const auto reader = OpenReader();
  const JournalTear tear = reader->contents().tear.value_or(JournalTear{});
  EXPECT_NE(tear.reason.find("cut short"), std::string::npos);
}

TEST_F(JournalTest, AMissingFileIsNotFoundAndAnEmptyOneHasNoHeader) {
  EXPECT_EQ(JournalReader::Open(files_, folder_ / "absent").status().code(), StatusCode::kNotFound);
  folder_.Write("journal", "");
  EXPECT_EQ(JournalReader::Open(files_, path_).status().code(), StatusCode::kDataCorruption);
}

}  // namespace
}  // namespace widestream
