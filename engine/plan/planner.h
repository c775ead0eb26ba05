// Planner::Plan: the pure function that decides what every rank sees in a step. Starts no thread,
// reads no clock, touches no payload. docs/stream.md sections 2 to 6 are its specification.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"
#include "engine/plan/plan.h"
#include "engine/source/messages.h"

namespace widestream {

// Job state between two steps (stream.md section 6). A value; its size does not depend on the
// position.
struct SourceState {
  std::string manifest;  // hash of the epoch's manifest, filled in by the runtime
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;  // of the open document, else of the next record to examine
  std::uint32_t token = 0;     // first unread token of the open document; 0 = none is open
  std::int64_t credit = 0;     // mixture: (wanted - drawn) * 2^32 since the counters restarted
  bool exhausted = false;
  std::uint64_t examined = 0, tokens = 0, rejected = 0, corrupt = 0, held_out = 0;
  std::uint64_t epoch_tokens = 0;  // drawn in this epoch: an epoch that yields nothing is an error
  RestartPoint
      restart;  // block of the oldest record that is still needed (carried, closing or open)

  friend bool operator==(const SourceState&, const SourceState&) = default;
};

struct PlannerState {
  std::uint64_t step = 0;   // the next step to plan
  std::uint64_t draws = 0;  // draws made so far
  std::uint64_t drawn = 0;  // the mixture's clock: tokens or samples drawn so far
  std::uint64_t mixture_start =
      0;                    // value of `drawn` when the mixture in force began: 0, or at an edit
  std::uint64_t stage = 0;  // of the mixture in force
  std::vector<std::uint64_t>
      base_weights;  // in force before an edit whose first stage ramps from them; else empty
  std::uint64_t real_tokens = 0;  // delivered so far
  bool ended = false;             // no draw is possible any more
  std::int64_t open_source = -1;  // unit samples: the source whose sample is not fully drawn
  std::vector<SourceState> sources;
  std::vector<Piece> carried;    // found no room in the last step's rows
  std::optional<Piece> closing;  // the piece that closed the last step

  friend bool operator==(const PlannerState&, const PlannerState&) = default;
};

// What cannot be recomputed from the data.
struct Decision {
  enum class Kind : std::uint8_t { kEdit = 0, kSkip = 1, kQuarantine = 2 };
  Kind kind = Kind::kEdit;
  std::uint64_t step = 0;  // takes effect before this step is planned
  // kEdit: a MixtureSpec as JSON (same sources) that replaces the mixture; its clock begins at the
  // edit.
  std::string mixture_json;
  // kSkip: this many steps from `step` on are planned and not delivered.
  std::uint64_t steps = 0;
  // kQuarantine: a record that could not be read.
  std::uint32_t source = 0;
  std::uint32_t epoch = 0;
  std::uint64_t position = 0;
  std::string reason;

  friend bool operator==(const Decision&, const Decision&) = default;
};

// The bytes of a decision in the journal and on the way to a host (docs/formats/journal.md).
std::string Encode(const Decision& decision);
Result<Decision> DecodeDecision(std::string_view bytes);

// "These records are needed before the step can be planned."
struct Need {
  std::vector<ReadRequest> requests;  // at most one a source
  // Of other sources: they will be needed soon, if pieces have the lengths that are expected. To be
  // read, not to be waited for.
  std::vector<ReadRequest> likely;
};

struct Planned {
  StepPlan plan;
  PlannerState next;
};

// The stream is over: no step follows. `left_tokens` were drawn or carried but not delivered
// (last_step: drop).
struct EndOfStream {
  std::uint64_t left_tokens = 0;
};

// Metadata the caller holds, at most one contiguous run of batches a source, in order, beginning at
// or before the cursor and possibly crossing epochs. More than needed changes nothing.
struct Metadata {
  std::vector<std::span<const std::shared_ptr<const MetadataBatch>>> sources;
};

// Immutable after Make; Plan is const and thread-safe.
class Planner {
 public:
  static Result<std::unique_ptr<Planner>> Make(const JobSpec& job);
  virtual ~Planner() = default;

  virtual PlannerState InitialState() const = 0;
  using Outcome = std::variant<Planned, Need, EndOfStream>;
  virtual Result<Outcome> Plan(const PlannerState& state, const Metadata& metadata,
                               std::span<const Decision> decisions) const = 0;
  // Whether the decision can be carried out, as far as that is known before its step:
  // InvalidArgument says what is wrong with an edit's mixture.
  virtual Status Check(const Decision& decision) const = 0;
  // Integer weights out of 2^32 in force for the next draw (for reports).
  virtual std::vector<std::uint64_t> Weights(const PlannerState& state,
                                             std::span<const Decision> decisions) const = 0;
};

// One versioned JSON document: {version, order_version, membership_version, stream_hash,
// stream_keys, seed, step, ..., decisions}. Reading checks the version, every key, type and bound,
// and that the sources match by name.
struct StateDocument {
  PlannerState state;
  std::vector<Decision> decisions;  // those that still have effect
  std::string stream_hash;
  std::vector<std::pair<std::string, std::string>> stream_keys;
};
std::string StateToJson(const JobSpec& job, const StateDocument& document);
Result<StateDocument> StateFromJson(const JobSpec& job, std::string_view json);

}  // namespace widestream
