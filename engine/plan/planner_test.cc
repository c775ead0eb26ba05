#include "engine/plan/planner.h"

#include <gtest/gtest.h>

#include <numeric>

#include "engine/base/hash.h"
#include "engine/plan/testing.h"

namespace widestream {
namespace {

using plan_testing::FakeJob;
using plan_testing::FakeRuntime;
using plan_testing::FakeSource;
using plan_testing::RandomSource;

std::unique_ptr<Planner> MakePlanner(const JobSpec& job) {
  auto planner = Planner::Make(job);
  EXPECT_TRUE(planner.ok()) << planner.status().ToString();
  return planner.ok() ? std::move(planner).value() : nullptr;
}

FakeSource Records(const std::vector<std::uint32_t>& tokens) {
  FakeSource source;
  for (const std::uint32_t n : tokens) source.records.push_back({RecordOutcome::kDelivered, n});
  return source;
}

// Plans up to `steps` steps; stops at the end of the stream or an error.
struct Outcome {
  std::vector<StepPlan> plans;
  PlannerState state;
  Status status;
  bool ended = false;
};
Outcome PlanSteps(const JobSpec& job, std::vector<FakeSource> sources, int steps,
                  std::vector<Decision> decisions = {}) {
  const auto planner = MakePlanner(job);
  FakeRuntime runtime(std::move(sources));
  Outcome outcome;
  outcome.state = planner->InitialState();
  for (int i = 0; i < steps; ++i) {
    auto step = runtime.Step(*planner, outcome.state, decisions);
    outcome.status = step.status();
    if (!step.ok()) break;
    outcome.ended = step->ended;
    if (outcome.ended) break;
    outcome.plans.push_back(step->plan);
    outcome.state = step->next;
  }
  return outcome;
}

JobSpec OneRow(std::uint32_t length, OverflowPolicy overflow = OverflowPolicy::kSplit) {
  JobSpec job = FakeJob(1, {1});
  job.batch.sequence_length = length;
  job.batch.rows = 1;
  job.batch.overflow = overflow;
  return job;
}

TEST(Planner, SplitsALongDocumentOverSteps) {
  const Outcome outcome = PlanSteps(OneRow(10), {Records({25, 5})}, 3);
  ASSERT_EQ(outcome.plans.size(), 3U);
  const std::vector<std::pair<std::uint32_t, bool>> expected[] = {
      {{10, false}}, {{10, false}}, {{5, true}, {5, true}}};
  for (int i = 0; i < 3; ++i) {
    std::vector<std::pair<std::uint32_t, bool>> found;
    for (const Piece& piece : outcome.plans[i].pieces) found.emplace_back(piece.length, piece.last);
    EXPECT_EQ(found, expected[i]) << i;
  }
  EXPECT_EQ(outcome.plans[0].supervised_tokens, 10U);
  EXPECT_EQ(outcome.plans[2].supervised_tokens, 8U);
}

TEST(Planner, AppliesTheOverflowPolicy) {
  const Outcome truncated =
      PlanSteps(OneRow(10, OverflowPolicy::kTruncate), {Records({25, 10})}, 2);
  EXPECT_EQ(truncated.plans[0].pieces[0].length, 10U);
  EXPECT_TRUE(truncated.plans[0].pieces[0].last);
  EXPECT_EQ(truncated.plans[1].pieces[0].position, 1U);
  const Outcome dropped = PlanSteps(OneRow(10, OverflowPolicy::kDrop), {Records({25, 10})}, 1);
  EXPECT_EQ(dropped.plans[0].pieces[0].position, 1U);
  EXPECT_GE(dropped.state.sources[0].rejected, 1U);
  const Outcome failed = PlanSteps(OneRow(10, OverflowPolicy::kError), {Records({25, 10})}, 1);
  EXPECT_EQ(failed.status.code(), StatusCode::kInvalidArgument);
  for (const char* part : {"source0", "shard 0", "record 0", "25"}) {
    EXPECT_NE(failed.status.message().find(part), std::string::npos) << part;
  }
}

TEST(Planner, AnEpochWithoutATokenIsAnErrorWithItsCounts) {
  FakeSource source = Records({5, 5, 5});
  source.records[0].outcome = RecordOutcome::kHeldOut;
  source.records[1].outcome = RecordOutcome::kFiltered;
  source.records[2].outcome = RecordOutcome::kCorrupt;
  const Outcome outcome = PlanSteps(OneRow(10), {source}, 1);
  EXPECT_EQ(outcome.status.code(), StatusCode::kInvalidArgument);
  for (const char* part : {"source0", "3 examined", "1 held out", "1 filtered", "1 bad"}) {
    EXPECT_NE(outcome.status.message().find(part), std::string::npos) << outcome.status.ToString();
  }
  EXPECT_FALSE(PlanSteps(OneRow(10), {Records({0, 0})}, 1).status.ok());
}

TEST(Planner, TheErrorBudgetIsKept) {
  FakeSource source = Records(std::vector<std::uint32_t>(40, 10));
  for (std::size_t i = 0; i < 12; ++i) source.records[i].outcome = RecordOutcome::kCorrupt;
  JobSpec job = OneRow(10);
  job.errors.budget = 0;
  const Outcome over = PlanSteps(job, {source}, 40);
  EXPECT_EQ(over.status.code(), StatusCode::kDataCorruption);
  EXPECT_NE(over.status.message().find("record 2"), std::string::npos);  // the 11th, shard 1
  job.errors.budget = 0.2;
  const Outcome within = PlanSteps(job, {source}, 20);
  EXPECT_TRUE(within.status.ok());
  EXPECT_EQ(within.state.sources[0].corrupt, 12U);
  job.errors.skip_bad_records = false;
  EXPECT_EQ(PlanSteps(job, {source}, 1).status.code(), StatusCode::kDataCorruption);
}

TEST(Planner, AnExhaustedSourceFollowsItsPolicy) {
  JobSpec job = FakeJob(2, {1, 1});
  job.batch.sequence_length = 10;
  job.batch.rows = 2;
  job.sources[0].max_epochs = 1;
  const std::vector<FakeSource> sources = {Records({10, 10}), Records({10})};
  const Outcome rest = PlanSteps(job, sources, 6);
  ASSERT_TRUE(rest.status.ok());
  EXPECT_TRUE(rest.state.sources[0].exhausted);
  EXPECT_EQ(rest.state.sources[0].tokens, 20U);
  EXPECT_EQ(rest.plans.size(), 6U);
  job.sources[0].on_exhausted = ExhaustedPolicy::kStop;
  const Outcome stopped = PlanSteps(job, sources, 20);
  EXPECT_TRUE(stopped.ended);
  EXPECT_LT(stopped.plans.size(), 5U);
  job.sources[0].on_exhausted = ExhaustedPolicy::kError;
  const Outcome failed = PlanSteps(job, sources, 20);
  EXPECT_EQ(failed.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(failed.status.message().find("source0"), std::string::npos);
}

TEST(Planner, TheLastStepIsFilledOrDropped) {
  JobSpec job = FakeJob(1, {1});
  job.batch.sequence_length = 10;
  job.batch.rows = 2;
  job.sources[0].max_epochs = 1;
  const std::vector<FakeSource> sources = {Records({10, 10, 7})};
  const Outcome filled = PlanSteps(job, sources, 5);
  EXPECT_TRUE(filled.ended);
  ASSERT_EQ(filled.plans.size(), 2U);
  EXPECT_EQ(filled.plans[1].real_tokens, 7U);
  EXPECT_EQ(filled.plans[1].rows, (std::vector<std::vector<std::uint32_t>>{{0}, {}}));
  job.batch.last_step = LastStepPolicy::kDrop;
  const auto planner = MakePlanner(job);
  FakeRuntime runtime(sources);
  auto first = runtime.Step(*planner, planner->InitialState());
  ASSERT_TRUE(first.ok() && !first->ended);
  auto second = runtime.Step(*planner, first->next);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->ended);
  EXPECT_EQ(runtime.left_tokens, 7U);
}

TEST(Planner, ADrawInSamplesTakesTheWholeSampleOverSteps) {
  JobSpec job = FakeJob(2, {1, 1});
  job.mixture.unit = MixtureUnit::kSamples;
  job.batch.sequence_length = 10;
  job.batch.rows = 1;
  const Outcome outcome = PlanSteps(job, {Records({35}), Records({35})}, 8);
  ASSERT_EQ(outcome.plans.size(), 8U);
  for (std::size_t sample = 0; sample < 2; ++sample) {
    for (std::size_t i = 0; i < 4; ++i) {
      const Piece& piece = outcome.plans[4 * sample + i].pieces[0];
      EXPECT_EQ(piece.draw, sample);
      EXPECT_EQ(piece.start, 10U * i);
      EXPECT_EQ(piece.source, outcome.plans[4 * sample].pieces[0].source);
    }
  }
}

Decision Edit(std::uint64_t step, std::string mixture) {
  Decision decision;
  decision.step = step;
  decision.mixture_json = std::move(mixture);
  return decision;
}

TEST(Planner, AnEditTakesEffectAtItsStepAndOnlyThere) {
  JobSpec job = FakeJob(2, {1, 0});
  job.batch.sequence_length = 10;
  job.batch.rows = 2;
  const std::vector<FakeSource> sources = {Records({10, 10, 10}), Records({10, 10})};
  const auto edit = Edit(3, R"({"stages":[{"weights":{"source1":1}}]})");
  const Outcome outcome = PlanSteps(job, sources, 6, {edit});
  ASSERT_EQ(outcome.plans.size(), 6U);
  for (const StepPlan& plan : outcome.plans) {
    for (const Piece& piece : plan.pieces) {
      // The piece that closed step 2 was drawn before the edit.
      const bool old = plan.step < 3 || (plan.step == 3 && piece.draw <= 6);
      EXPECT_EQ(piece.source, old ? 0U : 1U) << plan.step << ' ' << piece.draw;
    }
  }
  const auto planner = MakePlanner(job);
  EXPECT_EQ(planner->Weights(outcome.state, std::vector<Decision>{edit})[1], 1ULL << 32);
  EXPECT_EQ(planner->Weights(planner->InitialState(), {})[0], 1ULL << 32);
}

TEST(Planner, AnEditMayRampFromTheWeightsBeforeIt) {
  JobSpec job = FakeJob(2, {1, 0});
  job.batch.sequence_length = 10;
  job.batch.rows = 2;
  const auto edit = Edit(2, R"({"stages":[{"ramp":100,"weights":{"source1":1}}]})");
  const Outcome outcome = PlanSteps(job, {Records({10, 10, 10}), Records({10, 10})}, 4, {edit});
  const auto planner = MakePlanner(job);
  const auto weights = planner->Weights(outcome.state, std::vector<Decision>{edit});
  EXPECT_EQ(weights[0] + weights[1], 1ULL << 32);
  EXPECT_NEAR(static_cast<double>(weights[1]) / 4294967296.0, 0.4, 1e-6);
}

TEST(Planner, ABadEditIsAnErrorThatNamesItsStep) {
  const Outcome outcome = PlanSteps(OneRow(10), {Records({5})}, 3, {Edit(1, "{}")});
  EXPECT_EQ(outcome.plans.size(), 1U);
  EXPECT_EQ(outcome.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(outcome.status.message().find("edit at step 1"), std::string::npos);
}

Decision Quarantine(std::uint64_t step, std::uint64_t position) {
  Decision decision;
  decision.kind = Decision::Kind::kQuarantine;
  decision.step = step;
  decision.position = position;
  return decision;
}

TEST(Planner, AQuarantinedRecordIsPassed) {
  const Outcome outcome = PlanSteps(OneRow(10), {Records({10, 10, 10, 10})}, 2, {Quarantine(0, 1)});
  EXPECT_EQ(outcome.plans[1].pieces[0].position, 2U);
  EXPECT_EQ(outcome.state.sources[0].corrupt, 1U);
}

TEST(Planner, AQuarantineEndsTheSampleThatIsPartlyDrawn) {
  JobSpec job = OneRow(10);
  job.mixture.unit = MixtureUnit::kSamples;
  ASSERT_EQ(PlanSteps(job, {Records({35, 10, 10})}, 1).state.open_source, 0);
  const Outcome outcome = PlanSteps(job, {Records({35, 10, 10})}, 2, {Quarantine(1, 0)});
  ASSERT_EQ(outcome.plans.size(), 2U);
  EXPECT_EQ(outcome.plans[1].pieces[0].position, 1U);
  EXPECT_EQ(outcome.plans[1].pieces[0].draw, 1U);
}

TEST(Planner, EachEpochMustDeliverATokenOfItsOwn) {
  Decision quarantine = Quarantine(0, 0);
  quarantine.epoch = 1;
  const Outcome outcome = PlanSteps(OneRow(5), {Records({5})}, 3, {quarantine});
  EXPECT_EQ(outcome.status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(outcome.status.message().find("epoch 1"), std::string::npos)
      << outcome.status.ToString();
}

TEST(Planner, AQuarantineRemovesTheOpenDocumentAndItsQueuedPiece) {
  // After step 0 the second piece of record 0 closes the step, and its third is open.
  const Outcome before = PlanSteps(OneRow(10), {Records({30, 10, 10})}, 1);
  ASSERT_TRUE(before.state.closing.has_value());
  ASSERT_EQ(before.state.sources[0].token, 20U);
  const Outcome outcome = PlanSteps(OneRow(10), {Records({30, 10, 10})}, 2, {Quarantine(1, 0)});
  EXPECT_EQ(outcome.plans[1].pieces[0].position, 1U);
  EXPECT_EQ(outcome.state.sources[0].corrupt, 1U);
  // It has no effect on a step before, nor on what was delivered.
  EXPECT_EQ(outcome.plans[0], before.plans[0]);
}

TEST(Planner, SkippedStepsArePlannedAndNotCounted) {
  Decision skip;
  skip.kind = Decision::Kind::kSkip;
  skip.step = 1;
  skip.steps = 2;
  const Outcome outcome = PlanSteps(OneRow(10), {Records({10, 10})}, 4, {skip});
  const Outcome plain = PlanSteps(OneRow(10), {Records({10, 10})}, 4);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(outcome.plans[i].skipped, i == 1 || i == 2);
    EXPECT_EQ(outcome.plans[i].digest, plain.plans[i].digest);
  }
  EXPECT_EQ(outcome.state.real_tokens, 20U);
}

TEST(Planner, ALongerCarriedPieceIsCutAgain) {
  JobSpec job = OneRow(10);
  PlannerState state = MakePlanner(job)->InitialState();
  state.draws = 1;
  state.sources[0].position = 1;
  Piece piece;
  piece.length = 25;
  piece.last = true;
  state.carried = {piece};
  FakeRuntime runtime({Records({25, 10})});
  const auto planner = MakePlanner(job);
  std::vector<std::pair<std::uint32_t, std::uint32_t>> found;
  for (int i = 0; i < 3; ++i) {
    auto step = runtime.Step(*planner, state);
    ASSERT_TRUE(step.ok() && !step->ended);
    for (const Piece& p : step->plan.pieces) found.emplace_back(p.start, p.length);
    EXPECT_EQ(step->plan.pieces[0].last, i == 2);
    state = step->next;
  }
  EXPECT_EQ(found,
            (std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 10}, {10, 10}, {20, 5}}));
}

TEST(Planner, FewRoundsOfMetadataAreNeeded) {
  JobSpec job = FakeJob(20, std::vector<double>(20, 1.0));
  job.batch.rows = 64;
  job.batch.sequence_length = 256;
  std::vector<FakeSource> sources;
  for (std::uint64_t s = 0; s < 20; ++s) {
    sources.push_back(RandomSource(s, 500, 800, 10));
    sources.back().block_records = 50;
  }
  const auto planner = MakePlanner(job);
  FakeRuntime runtime(std::move(sources));
  PlannerState state = planner->InitialState();
  for (int i = 0; i < 30; ++i) {
    auto step = runtime.Step(*planner, state);
    ASSERT_TRUE(step.ok() && !step->ended);
    state = step->next;
  }
  EXPECT_LT(runtime.rounds, 40U);  // for 30 steps
}

TEST(Planner, TheRestartPointReachesBackToWhatIsStillNeeded) {
  JobSpec job = OneRow(10);
  FakeSource source = Records({4, 5, 6, 4, 10, 10, 10});
  source.block_records = 2;
  const Outcome outcome = PlanSteps(job, {source}, 1);
  // 4 and 5 fill the row; 6, in the block that begins at 2, closes the step.
  ASSERT_TRUE(outcome.state.closing.has_value());
  EXPECT_EQ(outcome.state.closing.value_or(Piece{}).position, 2U);
  EXPECT_EQ(outcome.state.sources[0].restart.position, 2U);
  EXPECT_EQ(outcome.state.sources[0].position, 3U);
}

TEST(Planner, MakeRefusesJobsThatCannotBePlanned) {
  const auto fails = [](auto change, const std::string& part) {
    JobSpec job = FakeJob(2, {1, 1});
    change(job);
    const auto planner = Planner::Make(job);
    ASSERT_FALSE(planner.ok()) << part;
    EXPECT_EQ(planner.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(planner.status().message().find(part), std::string::npos)
        << planner.status().ToString();
  };
  fails([](JobSpec& j) { j.sources.clear(); }, "sources");
  fails([](JobSpec& j) { j.sources[1].name = "source0"; }, "source0");
  fails([](JobSpec& j) { j.sources[1].max_epochs = 0; }, "max_epochs");
  fails([](JobSpec& j) { j.mixture.stages.clear(); }, "stages");
  fails([](JobSpec& j) { j.batch.sequence_length = 0; }, "sequence_length");
  fails([](JobSpec& j) { j.batch.rows = 0; }, "rows");
  fails([](JobSpec& j) { j.batch.microbatch_tokens = 31; }, "microbatch_tokens");
  fails([](JobSpec& j) { j.mesh.vpp = 0; }, "mesh");
  fails([](JobSpec& j) { j.balance = "magic"; }, "magic");
  fails(
      [](JobSpec& j) {
        j.batch.layout = BatchLayout::kThd;
        j.batch.tokens = 31;
      },
      "batch.tokens");
  fails(
      [](JobSpec& j) {
        j.batch.layout = BatchLayout::kThd;
        j.batch.tokens = 100;
        j.batch.max_piece_tokens = 50;
        j.batch.microbatch_tokens = 49;
      },
      "microbatch_tokens");
}

TEST(Planner, PlanRefusesInputsThatDoNotBelongToTheJob) {
  const auto planner = MakePlanner(FakeJob(2, {1, 1}));
  const PlannerState good = planner->InitialState();
  Metadata metadata;
  metadata.sources.resize(2);
  const auto fails = [&](const PlannerState& state, const Metadata& given,
                         const std::vector<Decision>& decisions) {
    EXPECT_FALSE(planner->Plan(state, given, decisions).ok());
  };
  PlannerState state = good;
  state.sources.pop_back();
  fails(state, metadata, {});
  fails(good, Metadata{}, {});
  state = good;
  state.stage = 1;
  fails(state, metadata, {});
  state = good;
  state.carried.resize(1);
  state.carried[0].source = 2;
  fails(state, metadata, {});
  Decision late;
  late.kind = Decision::Kind::kSkip;
  late.step = 5;
  fails(good, metadata, {late, Edit(2, "{}")});
  Decision nowhere = Quarantine(0, 0);
  nowhere.source = 9;
  fails(good, metadata, {nowhere});
}

TEST(Planner, MetadataThatContradictsTheStateIsAnError) {
  const JobSpec job = OneRow(10);
  const auto planner = MakePlanner(job);
  FakeRuntime runtime({Records({25, 10})});
  auto first = runtime.Step(*planner, planner->InitialState());
  ASSERT_TRUE(first.ok() && !first->ended);
  // The open document has become shorter than what was delivered of it.
  FakeRuntime changed({Records({15, 10})});
  auto step = changed.Step(*planner, first->next);
  if (step.ok()) step = changed.Step(*planner, step->next);
  EXPECT_EQ(step.status().code(), StatusCode::kDataCorruption);
  // The epoch has become shorter than the cursor.
  PlannerState beyond = planner->InitialState();
  beyond.sources[0].position = 5;
  const auto batch = plan_testing::Read(Records({25, 10}), {0, 0, 0, 10, 0});
  const std::vector<std::shared_ptr<const MetadataBatch>> held = {batch};
  Metadata metadata;
  metadata.sources = {held};
  const auto outcome = planner->Plan(beyond, metadata, {});
  EXPECT_EQ(outcome.status().code(), StatusCode::kDataCorruption);
}

// The digests of the first 1,000 steps of three jobs. They change only together with
// kMembershipVersion.
TEST(Planner, TheFirstThousandStepsAreWhatTheyWere) {
  JobSpec rows = FakeJob(3, {0.5, 0.3, 0.2});
  rows.mixture.stages.front().until = 20'000;
  StageSpec second;
  second.weights = {0.1, 0.1, 0.8};
  second.ramp = 10'000;
  rows.mixture.stages.push_back(second);
  JobSpec thd = FakeJob(3, {1, 1, 1});
  thd.batch.layout = BatchLayout::kThd;
  thd.batch.rows = 0;
  thd.batch.tokens = 200;
  thd.batch.max_piece_tokens = 64;
  thd.mixture.unit = MixtureUnit::kSamples;
  JobSpec padded = FakeJob(3, {3, 2, 1});
  padded.batch.layout = BatchLayout::kPadded;
  padded.batch.overflow = OverflowPolicy::kTruncate;
  padded.sources[1].max_epochs = 2;
  const std::pair<JobSpec, const char*> cases[] = {
      {rows, "fce762c15696663b8f469d3f2e1284c0"},
      {thd, "0f70285508eeaa104e21f6ea36168d89"},
      {padded, "b750ed8b198c0addb8d954b660a8fb31"},
  };
  for (const auto& [job, expected] : cases) {
    const Outcome outcome = PlanSteps(
        job, {RandomSource(1, 300, 100, 5), RandomSource(2, 200, 40), RandomSource(3, 70, 300, 3)},
        1000);
    ASSERT_EQ(outcome.plans.size(), 1000U) << outcome.status.ToString();
    Xxh3Digest digest;
    for (const StepPlan& plan : outcome.plans) digest.Update(plan.digest);
    EXPECT_EQ(digest.Digest128().ToHex(), expected);
  }
}

}  // namespace
}  // namespace widestream
