// Synthetic sources for tests of the planner: metadata as a function of (source, epoch, position).
// Only for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"
#include "engine/plan/planner.h"

namespace widestream::plan_testing {

struct FakeRecord {
  RecordOutcome outcome = RecordOutcome::kDelivered;
  std::uint32_t tokens = 0;
};

// Epoch e delivers the records rotated by 3 * e, in blocks of `block_records`.
struct FakeSource {
  std::vector<FakeRecord> records;
  std::uint64_t block_records = 4;

  std::uint64_t RecordAt(std::uint32_t epoch, std::uint64_t position) const {
    return (position + std::uint64_t{3} * epoch) % records.size();
  }
};

inline std::shared_ptr<const MetadataBatch> Read(const FakeSource& source,
                                                 const ReadRequest& request,
                                                 std::uint64_t at_most = UINT64_MAX) {
  auto batch = std::make_shared<MetadataBatch>();
  const std::uint64_t n = source.records.size();
  batch->source = request.source;
  batch->epoch = request.epoch;
  batch->position = request.position;
  const std::uint64_t block = request.position / source.block_records;
  std::uint64_t end = std::min(n, (block + 1) * source.block_records);
  end = std::min(end, request.position + std::min(request.records, at_most));
  if (request.position >= n) end = request.position;
  for (std::uint64_t p = request.position; p < end; ++p) {
    const std::uint64_t record = source.RecordAt(request.epoch, p);
    const FakeRecord& fake = source.records[record];
    batch->outcome.push_back(fake.outcome);
    const bool delivered = fake.outcome == RecordOutcome::kDelivered;
    batch->tokens.push_back(delivered ? fake.tokens : 0);
    batch->bytes.push_back(fake.tokens);
    batch->ids_hash.push_back(delivered ? std::uint64_t{1000} * request.source + record + 1 : 0);
    batch->shard.push_back(static_cast<std::uint32_t>(record / 8));
    batch->record.push_back(record % 8);
  }
  batch->end_of_epoch = end >= n;
  batch->restart.epoch = request.epoch;
  batch->restart.position = block * source.block_records;
  batch->restart.block = block;
  return batch;
}

// What one step came to; `plan` and `next` are those of Planned unless the stream ended.
struct Stepped {
  StepPlan plan;
  PlannerState next;
  bool ended = false;
};

// Holds metadata as a runtime would and answers what the planner needs.
class FakeRuntime {
 public:
  explicit FakeRuntime(std::vector<FakeSource> sources)
      : sources_(std::move(sources)), held_(sources_.size()) {}

  // How batches are cut: at most this many records each, and this many more than asked.
  std::uint64_t at_most = UINT64_MAX;
  std::uint64_t extra = 0;
  std::uint64_t rounds = 0;  // answers of Need

  const std::vector<FakeSource>& sources() const { return sources_; }
  // Forgets everything, as after a restart.
  void Clear() {
    for (auto& held : held_) held.clear();
  }
  Metadata View() const {
    Metadata metadata;
    for (const auto& held : held_) metadata.sources.emplace_back(held);
    return metadata;
  }
  void Answer(const Need& need) {
    ++rounds;
    for (ReadRequest request : need.requests) {
      request.records += extra;
      const std::uint64_t until = request.position + request.records;
      auto& held = held_[request.source];
      while (true) {
        held.push_back(Read(sources_[request.source], request, at_most));
        request.position += held.back()->size();
        request.records = until - std::min(until, request.position);
        if (request.records == 0 || held.back()->end_of_epoch) break;
      }
    }
  }
  // Drops batches that lie wholly before the cursor.
  void Trim(const PlannerState& state) {
    for (std::size_t s = 0; s < held_.size(); ++s) {
      const auto& source = state.sources[s];
      std::erase_if(held_[s], [&](const auto& batch) {
        return batch->epoch < source.epoch ||
               (batch->epoch == source.epoch &&
                batch->position + batch->size() <= source.position && !batch->end_of_epoch);
      });
    }
  }

  // One step, asking for metadata as often as needed.
  Result<Stepped> Step(const Planner& planner, const PlannerState& state,
                       std::span<const Decision> decisions = {}) {
    for (int round = 0; round < 100'000; ++round) {
      WS_ASSIGN_OR_RETURN(Planner::Outcome outcome, planner.Plan(state, View(), decisions));
      if (auto* planned = std::get_if<Planned>(&outcome)) {
        Trim(planned->next);
        return Stepped{std::move(planned->plan), std::move(planned->next), false};
      }
      if (auto* end = std::get_if<EndOfStream>(&outcome)) {
        left_tokens = end->left_tokens;
        return Stepped{{}, {}, true};
      }
      Answer(std::get<Need>(outcome));
    }
    return Status::Internal("no plan after 100000 rounds");
  }
  std::uint64_t left_tokens = 0;

 private:
  std::vector<FakeSource> sources_;
  std::vector<std::vector<std::shared_ptr<const MetadataBatch>>> held_;
};

// A source of `records` records of 1 to about `longest` tokens, mostly short; every `bad_every`th
// yields nothing, in turn for each reason but corruption (0 = none).
inline FakeSource RandomSource(std::uint64_t seed, std::uint64_t records, std::uint32_t longest,
                               std::uint64_t bad_every = 0) {
  FakeSource source;
  for (std::uint64_t i = 0; i < records; ++i) {
    FakeRecord record;
    const double u = RandomUniform(seed, 1, 0, i);
    record.tokens = 1 + static_cast<std::uint32_t>(u * u * u * (longest - 1));
    if (bad_every != 0 && RandomBelow(bad_every, seed, 2, 0, i) == 0) {
      constexpr RecordOutcome kOutcomes[] = {RecordOutcome::kHeldOut, RecordOutcome::kFiltered,
                                             RecordOutcome::kDropped};
      record.outcome = kOutcomes[RandomBelow(3, seed, 3, 0, i)];
    }
    source.records.push_back(record);
  }
  source.block_records = 1 + RandomBelow(7, seed, 4, 0, 0);
  return source;
}

inline JobSpec FakeJob(std::size_t sources, std::vector<double> weights) {
  JobSpec job;
  job.name = "test";
  job.seed = 17;
  for (std::size_t s = 0; s < sources; ++s) {
    SourceSpec source;
    source.name = StrCat("source", s);
    source.paths = {"data"};
    job.sources.push_back(source);
  }
  StageSpec stage;
  stage.weights = std::move(weights);
  job.mixture.stages.push_back(stage);
  job.batch.sequence_length = 32;
  job.batch.rows = 8;
  return job;
}

}  // namespace widestream::plan_testing
