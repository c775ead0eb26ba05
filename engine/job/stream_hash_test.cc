#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/job/spec.h"

namespace widestream {
namespace {

JobSpec Job() {
  JobSpec job;
  job.name = "job";
  job.seed = 3;
  job.data_roots = {"/data"};
  job.tokenizer = TokenizerSpec{.file = "/t", .pattern = "gpt2", .append = {"<|endoftext|>"}};
  job.sources.resize(2);
  job.sources[0].name = "a";
  job.sources[0].paths = {"/data/a"};
  job.sources[1].name = "b";
  job.sources[1].paths = {"/data/b"};
  job.mixture.stages = {StageSpec{.until = {}, .weights = {0.5, 0.5}}};
  job.batch.sequence_length = 64;
  job.batch.rows = 8;
  return job;
}

// The keys whose values differ between the two jobs.
std::vector<std::string> Differences(const JobSpec& before, const JobSpec& after) {
  const auto a = StreamKeys(before, "d");
  const auto b = StreamKeys(after, "d");
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i >= a.size() || i >= b.size() || a[i] != b[i]) {
      keys.push_back(i < b.size() ? b[i].first : a[i].first);
    }
  }
  return keys;
}

TEST(StreamHash, ChangesWithWhatMayChangeTheStream) {
  using Edit = std::function<void(JobSpec&)>;
  const std::vector<std::pair<std::string, Edit>> edits = {
      {"seed", [](JobSpec& j) { j.seed = 4; }},
      {"tokenizer.append", [](JobSpec& j) { j.tokenizer->append.clear(); }},
      {"validation_fraction", [](JobSpec& j) { j.validation_fraction = 0.5; }},
      {"errors.skip_bad_records", [](JobSpec& j) { j.errors.skip_bad_records = false; }},
      {"errors.record_bytes", [](JobSpec& j) { j.errors.record_bytes = 5; }},
      {"errors.budget", [](JobSpec& j) { j.errors.budget = 0.5; }},
      {"batch.layout", [](JobSpec& j) { j.batch.layout = BatchLayout::kPadded; }},
      {"batch.sequence_length", [](JobSpec& j) { j.batch.sequence_length = 32; }},
      {"batch.rows", [](JobSpec& j) { j.batch.rows = 9; }},
      {"batch.overflow", [](JobSpec& j) { j.batch.overflow = OverflowPolicy::kDrop; }},
      {"batch.last_step", [](JobSpec& j) { j.batch.last_step = LastStepPolicy::kDrop; }},
      {"sources.b.text", [](JobSpec& j) { j.sources[1].text = "t"; }},
      {"sources.b.max_epochs", [](JobSpec& j) { j.sources[1].max_epochs = 1; }},
      {"sources.a.on_exhausted",
       [](JobSpec& j) { j.sources[0].on_exhausted = ExhaustedPolicy::kStop; }},
      {"sources.a.shuffle", [](JobSpec& j) { j.sources[0].shuffle.records = 5; }},
      {"sources.b.shuffle",
       [](JobSpec& j) { j.sources[1].shuffle.mode = ShuffleSpec::Mode::kOff; }},
      {"mixture.unit", [](JobSpec& j) { j.mixture.unit = MixtureUnit::kSamples; }},
      {"mixture.stages[0]", [](JobSpec& j) { j.mixture.stages[0].until = 5; }},
      {"mixture.stages[0]", [](JobSpec& j) { j.mixture.stages[0].weights[0] = 0.25; }},
  };
  for (const auto& [key, edit] : edits) {
    JobSpec job = Job();
    edit(job);
    EXPECT_EQ(Differences(Job(), job), std::vector<std::string>{key});
    EXPECT_NE(StreamHash(job, "d"), StreamHash(Job(), "d")) << key;
  }
  EXPECT_NE(StreamHash(Job(), "e"), StreamHash(Job(), "d"));
  JobSpec swapped = Job();
  std::swap(swapped.sources[0], swapped.sources[1]);
  EXPECT_NE(StreamHash(swapped, "d"), StreamHash(Job(), "d"));
}

TEST(StreamHash, IgnoresEverythingElse) {
  const std::vector<std::function<void(JobSpec&)>> edits = {
      [](JobSpec& j) { j.name = "other"; },
      [](JobSpec& j) { j.run_dir = "/r"; },
      [](JobSpec& j) { j.data_roots = {"/"}; },
      [](JobSpec& j) { j.tokenizer->file = "/u"; },
      [](JobSpec& j) { j.tokenizer->pattern = ""; },
      [](JobSpec& j) { j.sources[0].paths = {"/data/z"}; },
      [](JobSpec& j) { j.sources[0].format = "parquet"; },
      [](JobSpec& j) { j.batch.microbatch_tokens = 64; },
      [](JobSpec& j) { j.batch.cross_document_attention = true; },
      [](JobSpec& j) { j.lookahead_steps = 9; },
      [](JobSpec& j) { j.balance = "none"; },
      [](JobSpec& j) { j.balance_group_size = 1; },
      [](JobSpec& j) { j.cost.linear_tokens = 100; },
      [](JobSpec& j) { j.batch.pad_documents_to = 16; },
      [](JobSpec& j) { j.batch.pad_microbatch_to = 16; },
      [](JobSpec& j) { j.batch.microbatch_pieces = 16; },
      [](JobSpec& j) { j.batch.fixed_shapes = true; },
      [](JobSpec& j) { j.mesh.dp = 8; },
      [](JobSpec& j) { j.mesh = {.dp = 2, .cp = 2, .tp = 2, .pp = 2, .vpp = 2, .ep = 2}; },
      [](JobSpec& j) { j.mesh.cp_split = ContextSplit::kUlysses; },
      [](JobSpec& j) { j.mesh.broadcast_at = {MeshAxis::kTp}; },
      [](JobSpec& j) { j.limits.threads = 8; },
      [](JobSpec& j) { j.limits.host_memory_bytes = 1U << 30; },
  };
  for (std::size_t i = 0; i < edits.size(); ++i) {
    JobSpec job = Job();
    edits[i](job);
    EXPECT_EQ(StreamHash(job, "d"), StreamHash(Job(), "d")) << "edit " << i;
  }
}

TEST(StreamHash, TakesTheEffectivePieceLength) {
  JobSpec job = Job();
  job.batch.layout = BatchLayout::kThd;
  job.batch.rows = 0;
  job.batch.tokens = 512;
  JobSpec spelled_out = job;
  spelled_out.batch.max_piece_tokens = job.batch.sequence_length;
  EXPECT_EQ(StreamHash(job, "d"), StreamHash(spelled_out, "d"));
  spelled_out.batch.max_piece_tokens = 32;
  EXPECT_NE(StreamHash(job, "d"), StreamHash(spelled_out, "d"));
}

TEST(StreamHash, IsPinned) {
  // Changes only with order_version or membership_version: a stored state names this value.
  EXPECT_EQ(StreamHash(Job(), "d"), "9bd42a4cea5d74626d08ff7e885f6add");
}

}  // namespace
}  // namespace widestream
