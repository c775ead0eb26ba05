// Properties of the stream that hold for every job, checked on random small ones.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "engine/plan/layout.h"
#include "engine/plan/planner.h"
#include "engine/plan/source_cursor.h"
#include "engine/plan/testing.h"

namespace widestream {
namespace {

using plan_testing::FakeJob;
using plan_testing::FakeRuntime;
using plan_testing::FakeSource;
using plan_testing::RandomSource;

struct Case {
  JobSpec job;
  std::vector<FakeSource> sources;
  std::vector<Decision> decisions;
};

int Draw(int low, int high) { return *rc::gen::inRange(low, high + 1); }
bool Coin() { return Draw(0, 1) == 1; }

std::vector<double> Weights(std::size_t n) {
  std::vector<double> weights(n);
  for (std::size_t s = 0; s < n; ++s) weights[s] = Draw(s == 0 ? 1 : 0, 9);
  return weights;
}

Case RandomCase() {
  Case c;
  const std::size_t n = static_cast<std::size_t>(Draw(1, 4));
  c.job = FakeJob(n, Weights(n));
  c.job.seed = static_cast<std::uint64_t>(Draw(0, 1000));
  c.job.mixture.unit = Coin() ? MixtureUnit::kTokens : MixtureUnit::kSamples;
  if (Coin()) {
    const auto until = static_cast<std::uint64_t>(Draw(1, 300));
    c.job.mixture.stages.front().until = until;
    StageSpec stage;
    stage.weights = Weights(n);
    stage.ramp = Coin() ? static_cast<std::uint64_t>(Draw(1, 300)) : 0;
    if (Draw(0, 3) == 0)
      stage.until = until + stage.ramp + static_cast<std::uint64_t>(Draw(1, 900));
    c.job.mixture.stages.push_back(stage);
  }
  BatchSpec& batch = c.job.batch;
  batch.layout = static_cast<BatchLayout>(Draw(0, 2));
  batch.sequence_length = static_cast<std::uint32_t>(Draw(1, 24));
  batch.rows = static_cast<std::uint32_t>(Draw(1, 9));
  if (batch.layout == BatchLayout::kThd) {
    batch.rows = 0;
    batch.max_piece_tokens = Coin() ? 0 : static_cast<std::uint32_t>(Draw(1, 30));
    batch.tokens = PieceLimit(batch) + static_cast<std::uint64_t>(Draw(0, 100));
  }
  batch.overflow = static_cast<OverflowPolicy>(Draw(0, 2));
  batch.last_step = Coin() ? LastStepPolicy::kFill : LastStepPolicy::kDrop;
  for (std::size_t s = 0; s < n; ++s) {
    c.sources.push_back(RandomSource(static_cast<std::uint64_t>(Draw(0, 1000)),
                                     static_cast<std::uint64_t>(Draw(1, 20)), 60,
                                     static_cast<std::uint64_t>(Draw(0, 3))));
    // One that always fits, so that no epoch is empty.
    c.sources.back().records.front() = {RecordOutcome::kDelivered, 1};
    if (Coin()) c.job.sources[s].max_epochs = static_cast<std::uint32_t>(Draw(1, 3));
    c.job.sources[s].on_exhausted =
        Draw(0, 3) == 0 ? ExhaustedPolicy::kStop : ExhaustedPolicy::kRenormalise;
  }
  if (Draw(0, 2) == 0) {
    Decision edit;
    edit.step = static_cast<std::uint64_t>(Draw(0, 8));
    edit.mixture_json =
        StrCat(R"({"unit":")", Coin() ? "tokens" : "samples", R"(","stages":[{"ramp":)",
               Draw(0, 50), R"(,"weights":{"source0":)", Draw(1, 9), "}}]}");
    c.decisions.push_back(edit);
  }
  if (Draw(0, 2) == 0) {
    Decision skip;
    skip.kind = Decision::Kind::kSkip;
    skip.step = 8;
    skip.steps = static_cast<std::uint64_t>(Draw(1, 3));
    c.decisions.push_back(skip);
  }
  return c;
}

struct Trace {
  std::vector<StepPlan> plans;
  std::vector<PlannerState> states;  // states[i] is before plans[i]; one more at the end
  bool ended = false;
  std::uint64_t left_tokens = 0;
};

Trace Run(const Case& c, int steps, std::uint64_t at_most = UINT64_MAX, std::uint64_t extra = 0) {
  auto planner = Planner::Make(c.job);
  if (!planner.ok()) RC_FAIL(planner.status().ToString());
  FakeRuntime runtime(c.sources);
  runtime.at_most = at_most;
  runtime.extra = extra;
  Trace trace;
  trace.states.push_back((*planner)->InitialState());
  for (int i = 0; i < steps; ++i) {
    auto step = runtime.Step(**planner, trace.states.back(), c.decisions);
    if (!step.ok()) RC_FAIL(step.status().ToString());
    if (step->ended) {
      trace.ended = true;
      trace.left_tokens = runtime.left_tokens;
      break;
    }
    trace.plans.push_back(std::move(step->plan));
    trace.states.push_back(std::move(step->next));
  }
  return trace;
}

constexpr int kSteps = 12;

// Another mesh, balance, padding and cap for the job: everything that is layout only.
void RandomLayout(JobSpec* job) {
  MeshSpec& mesh = job->mesh;
  BatchSpec& batch = job->batch;
  mesh.dp = static_cast<std::uint32_t>(Draw(1, 5));
  mesh.cp = static_cast<std::uint32_t>(Draw(1, 3));
  mesh.tp = static_cast<std::uint32_t>(Draw(1, 3));
  mesh.pp = static_cast<std::uint32_t>(Draw(1, 2));
  mesh.vpp = static_cast<std::uint32_t>(Draw(1, 3));
  mesh.sequence_parallel = Coin();
  mesh.cp_split = static_cast<ContextSplit>(Draw(0, 3));
  job->balance = Coin() ? "lpt" : "none";
  if (batch.layout == BatchLayout::kThd) {
    batch.pad_documents_to = static_cast<std::uint32_t>(Draw(0, 5));
    batch.pad_microbatch_to = static_cast<std::uint32_t>(Draw(0, 5));
    batch.microbatch_pieces = static_cast<std::uint32_t>(Draw(0, 4));
  } else if (!ValidatePadding(batch, mesh).ok()) {
    mesh.cp = mesh.tp = 1;
  }
  const PaddingRule padding = PaddingOf(batch, mesh);
  const std::uint64_t least = padding.Microbatch(padding.Piece(PieceLimit(batch)));
  if (Coin()) batch.microbatch_tokens = least + static_cast<std::uint64_t>(Draw(0, 60));
  batch.fixed_shapes = Coin() && batch.microbatch_tokens != 0;
  if (batch.fixed_shapes) {
    batch.microbatch_tokens = padding.Microbatch(batch.microbatch_tokens);
  }
}

RC_GTEST_PROP(Stream, MembershipDoesNotDependOnMeshBalanceOrCaps, ()) {
  Case c = RandomCase();
  const Trace base = Run(c, kSteps);
  RandomLayout(&c.job);
  Trace other = Run(c, kSteps);
  RC_ASSERT(base.states == other.states);
  RC_ASSERT(base.plans.size() == other.plans.size());
  for (std::size_t i = 0; i < base.plans.size(); ++i) {
    other.plans[i].ranks = base.plans[i].ranks;
    RC_ASSERT(base.plans[i] == other.plans[i]);
  }
}

RC_GTEST_PROP(Stream, DoesNotDependOnHowMetadataComes, ()) {
  const Case c = RandomCase();
  const Trace base = Run(c, kSteps);
  const Trace other = Run(c, kSteps, static_cast<std::uint64_t>(Draw(1, 3)),
                          static_cast<std::uint64_t>(Draw(0, 40)));
  RC_ASSERT(base.plans == other.plans);
  RC_ASSERT(base.states == other.states);
  RC_ASSERT(base.left_tokens == other.left_tokens);
}

RC_GTEST_PROP(Stream, GoesOnAlikeFromEverySavedState, ()) {
  const Case c = RandomCase();
  const Trace base = Run(c, kSteps);
  auto planner = Planner::Make(c.job);
  for (std::size_t i = 0; i < base.states.size(); ++i) {
    StateDocument document;
    document.state = base.states[i];
    document.decisions = c.decisions;
    auto read = StateFromJson(c.job, StateToJson(c.job, document));
    if (!read.ok()) RC_FAIL(read.status().ToString());
    RC_ASSERT(read->state == base.states[i]);
    FakeRuntime runtime(c.sources);  // holds nothing, as after a restart
    if (i == base.plans.size()) break;
    auto step = runtime.Step(**planner, read->state, read->decisions);
    RC_ASSERT(step.ok() && !step->ended);
    RC_ASSERT(step->plan == base.plans[i]);
    RC_ASSERT(step->next == base.states[i + 1]);
  }
}

RC_GTEST_PROP(Stream, DeliversEachDocumentOnceInOrder, ()) {
  const Case c = RandomCase();
  const Trace trace = Run(c, 40);
  // Everything drawn: delivered, or still queued at the end (dropped when the stream ended so).
  std::map<std::pair<std::uint64_t, std::uint32_t>, Piece> drawn;  // by draw, start
  std::uint64_t queued = 0;
  const auto add = [&](const Piece& piece) {
    RC_ASSERT(drawn.emplace(std::pair(piece.draw, piece.start), piece).second);
  };
  for (const StepPlan& plan : trace.plans) {
    for (const Piece& piece : plan.pieces) add(piece);
  }
  const PlannerState& last = trace.states.back();
  for (const Piece& piece : last.carried) {
    add(piece);
    queued += piece.length;
  }
  if (last.closing) {
    add(*last.closing);
    queued += last.closing->length;
  }
  const std::uint32_t limit = PieceLimit(c.job.batch);
  for (std::uint32_t s = 0; s < c.sources.size(); ++s) {
    const FakeSource& source = c.sources[s];
    std::uint32_t epoch = 0;
    std::uint64_t position = 0;
    std::uint32_t start = 0;
    for (const auto& [order, piece] : drawn) {
      if (piece.source != s) continue;
      // The next document that is delivered.
      std::uint32_t length = 0;
      while (true) {
        if (position == source.records.size()) {
          ++epoch;
          position = 0;
        }
        const auto& record = source.records[source.RecordAt(epoch, position)];
        length = record.outcome == RecordOutcome::kDelivered ? record.tokens : 0;
        if (length > limit && c.job.batch.overflow == OverflowPolicy::kTruncate) length = limit;
        if (length > limit && c.job.batch.overflow == OverflowPolicy::kDrop) length = 0;
        if (length > 0) break;
        ++position;
      }
      RC_ASSERT(piece.epoch == epoch);
      RC_ASSERT(piece.position == position);
      RC_ASSERT(piece.start == start);
      RC_ASSERT(piece.length == std::min(limit, length - start));
      start += piece.length;
      RC_ASSERT(piece.last == (start == length));
      if (start == length) {
        start = 0;
        ++position;
      }
    }
    RC_ASSERT(epoch < c.job.sources[s].max_epochs.value_or(UINT32_MAX));
  }
  if (trace.ended && c.job.batch.last_step == LastStepPolicy::kFill) {
    RC_ASSERT(queued == 0U);
    RC_ASSERT(trace.left_tokens == 0U);
  }
  if (trace.ended && c.job.batch.last_step == LastStepPolicy::kDrop) {
    RC_ASSERT(trace.left_tokens >= queued);
  }
}

RC_GTEST_PROP(Stream, EveryStepKeepsItsBounds, ()) {
  Case c = RandomCase();
  const Trace trace = Run(c, 30);
  const BatchSpec& batch = c.job.batch;
  const std::uint32_t limit = PieceLimit(batch);
  std::uint64_t delivered = 0;
  for (std::size_t i = 0; i < trace.plans.size(); ++i) {
    const StepPlan& plan = trace.plans[i];
    const PlannerState& next = trace.states[i + 1];
    std::uint64_t real = 0;
    std::uint64_t targets = 0;
    for (const Piece& piece : plan.pieces) {
      RC_ASSERT(piece.length >= 1U && piece.length <= limit);
      real += piece.length;
      targets += piece.length - (piece.last ? 1 : 0);
    }
    RC_ASSERT(plan.real_tokens == real);
    RC_ASSERT(plan.supervised_tokens == targets);
    RC_ASSERT(!plan.pieces.empty());
    if (!plan.skipped) delivered += real;
    RC_ASSERT(next.real_tokens == delivered);
    RC_ASSERT(plan.skipped == (std::any_of(c.decisions.begin(), c.decisions.end(), [&](auto& d) {
                return d.kind == Decision::Kind::kSkip && plan.step >= d.step &&
                       plan.step < d.step + d.steps;
              })));
    if (batch.layout == BatchLayout::kThd) {
      RC_ASSERT(real <= batch.tokens);
      if (next.closing) RC_ASSERT(real + limit > batch.tokens);
      RC_ASSERT(next.carried.empty());
      continue;
    }
    RC_ASSERT(plan.rows.size() == batch.rows);
    std::vector<int> seen(plan.pieces.size(), 0);
    for (const auto& row : plan.rows) {
      std::uint64_t length = 0;
      for (const std::uint32_t piece : row) {
        length += plan.pieces[piece].length;
        ++seen[piece];
      }
      RC_ASSERT(length <= batch.sequence_length);
    }
    RC_ASSERT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
    // Fewer than R pieces are carried, and none twice.
    RC_ASSERT(next.carried.size() < batch.rows);
    for (const Piece& piece : trace.states[i].carried) {
      RC_ASSERT(std::find(next.carried.begin(), next.carried.end(), piece) == next.carried.end());
    }
  }
}

RC_GTEST_PROP(Stream, LayoutHoldsEachAtomOnceUnderItsCaps, ()) {
  Case c = RandomCase();
  RandomLayout(&c.job);
  const PaddingRule padding = PaddingOf(c.job.batch, c.job.mesh);
  const std::size_t group = MicrobatchMultiple(c.job.mesh);
  const std::size_t most_pieces = c.job.batch.microbatch_pieces;
  const std::uint64_t cap = c.job.batch.microbatch_tokens;
  const bool thd = c.job.batch.layout == BatchLayout::kThd;
  for (const StepPlan& plan : Run(c, 6).plans) {
    RC_ASSERT(plan.ranks.size() == c.job.mesh.dp);
    const std::size_t microbatches = plan.ranks.front().microbatches.size();
    RC_ASSERT(microbatches > 0 && microbatches % group == 0);
    std::vector<int> seen(plan.pieces.size(), 0);
    const std::size_t rows = plan.ranks.front().microbatches.front().rows.size();
    for (const RankPlan& rank : plan.ranks) {
      RC_ASSERT(rank.microbatches.size() == microbatches);
      for (const MicrobatchPlan& microbatch : rank.microbatches) {
        RC_ASSERT(microbatch.rows.size() == rows);
        std::uint64_t tokens = 0;
        for (const auto& row : microbatch.rows) {
          for (const std::uint32_t piece : row) {
            ++seen[piece];
            tokens += padding.Piece(plan.pieces[piece].length);
          }
          if (thd && most_pieces != 0) RC_ASSERT(row.size() <= most_pieces);
        }
        tokens = padding.Microbatch(tokens);
        if (!thd) tokens = rows * c.job.batch.sequence_length;
        if (cap != 0) RC_ASSERT(tokens <= cap);
      }
    }
    if (thd) RC_ASSERT(rows == 1U);
    RC_ASSERT(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
  }
}

RC_GTEST_PROP(Stream, PlansComeBackFromTheirBytes, ()) {
  Case c = RandomCase();
  c.job.mesh.dp = static_cast<std::uint32_t>(Draw(1, 3));
  for (const StepPlan& plan : Run(c, 3).plans) {
    const std::string bytes = Encode(plan);
    const auto decoded = DecodeStepPlan(bytes);
    if (!decoded.ok()) RC_FAIL(decoded.status().ToString());
    RC_ASSERT(*decoded == plan);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      RC_ASSERT(!DecodeStepPlan(std::string_view(bytes).substr(0, size)).ok());
    }
    RC_ASSERT(!DecodeStepPlan(bytes + "x").ok());
  }
}

}  // namespace
}  // namespace widestream
