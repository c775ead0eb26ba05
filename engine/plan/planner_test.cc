#include "engine/plan/planner.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "engine/plan/testing.h"

namespace widestream {
namespace {

using plan_testing::FakeJob;
using plan_testing::FakeRecord;
using plan_testing::FakeRuntime;
using plan_testing::FakeSource;
using plan_testing::RandomSource;

std::unique_ptr<Planner> MakePlanner(const JobSpec& job) {
  auto planner = Planner::Make(job);
  EXPECT_TRUE(planner.ok()) << planner.status().ToString();
  return planner.ok() ? std::move(planner).value() : nullptr;
}

TEST(Planner, PlansAllLayouts) {
  for (const BatchLayout layout : {BatchLayout::kRows, BatchLayout::kThd, BatchLayout::kPadded}) {
    JobSpec job = FakeJob(3, {0.5, 0.3, 0.2});
    job.batch.layout = layout;
    job.mesh.dp = 2;
    if (layout == BatchLayout::kThd) {
      job.batch.rows = 0;
      job.batch.tokens = 256;
      job.batch.microbatch_tokens = 64;
    }
    const auto planner = MakePlanner(job);
    FakeRuntime runtime(
        {RandomSource(1, 50, 100, 5), RandomSource(2, 20, 40), RandomSource(3, 7, 300, 3)});
    PlannerState state = planner->InitialState();
    for (int step = 0; step < 200; ++step) {
      auto planned = runtime.Step(*planner, state);
      ASSERT_TRUE(planned.ok()) << planned.status().ToString();
      ASSERT_TRUE(planned->has_value());
      state = (*planned)->next;
      EXPECT_EQ(state.step, static_cast<std::uint64_t>(step) + 1);
      EXPECT_LT(state.carried.size(), 8U);
    }
  }
}

}  // namespace
}  // namespace widestream
