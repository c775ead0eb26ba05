#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/plan/planner.h"
#include "engine/plan/testing.h"

namespace widestream {
namespace {

using plan_testing::FakeJob;

StateDocument Sample() {
  StateDocument document;
  document.stream_hash = std::string(32, 'c');
  document.stream_keys = {{"seed", "17"}, {"batch.rows", "8"}};
  PlannerState& state = document.state;
  state.step = 12;
  state.draws = 100;
  state.drawn = 5000;
  state.mixture_start = 400;
  state.stage = 1;
  state.base_weights = {1ULL << 31, 1ULL << 31};
  state.real_tokens = 4000;
  state.open_source = 1;
  state.sources.resize(2);
  state.sources[0].manifest = "abc";
  state.sources[0].epoch = 2;
  state.sources[0].position = 900;
  state.sources[0].credit = -(1LL << 40);
  state.sources[0].restart = {2, 890, 3, 4, 5, 6};
  state.sources[1].position = 7;
  state.sources[1].token = 30;
  state.sources[1].credit = 1LL << 40;
  state.sources[1].exhausted = true;
  state.carried = {{0, 1, 3, 0, 10, 90, 1, 2, UINT64_MAX, true},
                   {1, 0, 7, 10, 20, 98, 0, 7, 5, false}};
  state.closing = Piece{0, 2, 899, 0, 4, 99, 1, 2, 8, true};
  Decision edit;
  edit.step = 3;
  edit.mixture_json =
      R"({"stages":[{"until":9,"weights":{"source0":0.25}},{"weights":{"source1":1}}]})";
  Decision spaced = edit;
  spaced.step = 4;
  spaced.mixture_json = R"({ "stages": [{"weights": {"source0": 1}}] })";
  Decision quarantine;
  quarantine.kind = Decision::Kind::kQuarantine;
  quarantine.step = 20;
  quarantine.source = 1;
  quarantine.epoch = 3;
  quarantine.position = 4;
  quarantine.reason = "read \"failed\"\n";
  document.decisions = {edit, spaced, quarantine};
  return document;
}

TEST(StateJson, ComesBackAsItWas) {
  const JobSpec job = FakeJob(2, {1, 1});
  const StateDocument document = Sample();
  const std::string json = StateToJson(job, document);
  const auto read = StateFromJson(job, json);
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->state, document.state);
  EXPECT_EQ(read->decisions, document.decisions);
  EXPECT_EQ(read->stream_hash, document.stream_hash);
  EXPECT_EQ(read->stream_keys, document.stream_keys);
  EXPECT_EQ(StateToJson(job, *read), json);
}

TEST(StateJson, SourcesMatchByNameInAnyOrder) {
  const JobSpec job = FakeJob(2, {1, 1});
  JobSpec other = job;
  std::swap(other.sources[0], other.sources[1]);
  const auto read = StateFromJson(other, StateToJson(job, Sample()));
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ(read->state.sources[1].manifest, "abc");
  EXPECT_EQ(read->state.carried[0].source, 1U);
  EXPECT_EQ(read->state.open_source, 0);
  EXPECT_EQ(read->decisions[2].source, 0U);
}

TEST(StateJson, NamesMissingAndAdditionalSources) {
  const JobSpec job = FakeJob(2, {1, 1});
  JobSpec other = job;
  other.sources[1].name = "books";
  StateDocument document = Sample();
  document.state.carried.clear();
  document.state.open_source = -1;
  const auto read = StateFromJson(other, StateToJson(job, document));
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("books"), std::string::npos);
  EXPECT_NE(read.status().message().find("source1"), std::string::npos);
}

// Every value replaced by others, and every key removed: an error that is not Internal, or a state.
TEST(StateJson, EveryKeyIsNeededAndEveryTypeChecked) {
  const JobSpec job = FakeJob(2, {1, 1});
  const auto document = nlohmann::json::parse(StateToJson(job, Sample()));
  const nlohmann::json flat = document.flatten();
  const nlohmann::json replacements[] = {-1,
                                         1.5,
                                         "text",
                                         nullptr,
                                         true,
                                         18446744073709551615ULL,
                                         nlohmann::json::array(),
                                         nlohmann::json::object()};
  std::size_t refused = 0;
  std::size_t tried = 0;
  for (const auto& item : flat.items()) {
    const nlohmann::json::json_pointer at(item.key());
    for (const nlohmann::json& replacement : replacements) {
      nlohmann::json changed = document;
      changed[at] = replacement;
      const auto read = StateFromJson(job, changed.dump());
      ++tried;
      if (!read.ok()) {
        ++refused;
        EXPECT_EQ(read.status().code(), StatusCode::kInvalidArgument) << item.key();
      }
    }
    nlohmann::json removed = document;
    nlohmann::json& parent = removed[at.parent_pointer()];
    if (parent.is_object()) {
      parent.erase(at.back());
      const auto read = StateFromJson(job, removed.dump());
      const bool optional = item.key().find("/mixture/") != std::string::npos ||
                            item.key().find("base_weights") != std::string::npos;
      EXPECT_TRUE(!read.ok() || optional) << item.key();
    }
  }
  EXPECT_GT(refused, tried * 7 / 10);
}

TEST(StateJson, RefusesContradictions) {
  const JobSpec job = FakeJob(2, {1, 1});
  const auto fails = [&](auto change, const std::string& part) {
    StateDocument document = Sample();
    change(document);
    const auto read = StateFromJson(job, StateToJson(job, document));
    ASSERT_FALSE(read.ok()) << part;
    EXPECT_NE(read.status().message().find(part), std::string::npos) << read.status().ToString();
  };
  fails([](auto& d) { d.state.mixture_start = 5001; }, "mixture_start");
  fails([](auto& d) { d.state.carried[0].draw = 100; }, "schedule.draws");
  fails([](auto& d) { d.state.carried[1].draw = 80; }, "order of their draws");
  fails([](auto& d) { d.state.closing->position = 901; }, "cursor");
  fails([](auto& d) { d.state.carried[1].length = 21; }, "cursor");
  fails([](auto& d) { d.state.carried[0].length = 0; }, "at least one token");
  fails([](auto& d) { d.state.sources[0].restart.position = 901; }, "restart");
  fails([](auto& d) { d.state.base_weights[0] = 5; }, "2^32");
  fails([](auto& d) { std::swap(d.decisions[0], d.decisions[2]); }, "order of their steps");
  fails([](auto& d) { d.decisions[0].mixture_json = R"({"stages":[]})"; }, "stages is empty");
  fails([](auto& d) { d.stream_hash = "x"; }, "stream_hash");
}

TEST(StateJson, RefusesAnotherVersion) {
  const JobSpec job = FakeJob(2, {1, 1});
  for (const char* key : {"version", "order_version", "membership_version"}) {
    auto document = nlohmann::json::parse(StateToJson(job, Sample()));
    document[key] = 2;
    const auto read = StateFromJson(job, document.dump());
    ASSERT_FALSE(read.ok());
    EXPECT_NE(read.status().message().find(key), std::string::npos);
  }
}

TEST(StateJson, TextThatIsNoJsonIsAnErrorAtEveryCut) {
  const JobSpec job = FakeJob(2, {1, 1});
  const std::string json = StateToJson(job, Sample());
  for (std::size_t size = 0; size + 2 < json.size(); ++size) {
    EXPECT_FALSE(StateFromJson(job, std::string_view(json).substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(StateFromJson(job, std::string(1'000'000, '[')).ok());
}

}  // namespace
}  // namespace widestream
