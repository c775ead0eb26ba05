// One call of Planner::Plan. Private to engine/plan.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/plan/mixture.h"
#include "engine/plan/planner.h"
#include "engine/plan/planner_setup.h"
#include "engine/plan/source_cursor.h"

namespace widestream {

// Works on a copy of the state and throws it away if metadata is missing.
class PlannerSession {
 public:
  PlannerSession(const PlannerSetup& setup, const PlannerState& state, const Metadata& metadata,
                 std::span<const Decision> decisions, MixtureInForce mixture)
      : setup_(setup),
        state_(state),
        decisions_(decisions),
        in_force_(std::move(mixture)),
        next_(WithMixtureBegun(state, in_force_)),
        metadata_(metadata),
        mixture_(in_force_.Get(setup), setup.job.seed, setup.source_ids, PositionOf(next_)) {}

  Result<Planner::Outcome> Run();

 private:
  enum class Drawn : std::uint8_t { kPiece, kNeed, kEnded };
  struct Taken {
    Piece piece;
    const RestartPoint* block = nullptr;  // nullptr: the piece was queued by an earlier step
  };

  void OpenCursors();
  Status ApplyQuarantines();
  void FillQueue();
  Piece TakeQueued();
  Result<Drawn> Draw(Taken* taken);
  Need BuildNeed(double remaining_tokens);
  std::vector<bool> PredictDraws(double remaining_units) const;
  Result<Planner::Outcome> Finish(std::vector<Taken> taken, std::size_t carried,
                                  std::optional<Taken> over);
  void MoveRestarts(std::span<const Taken> pending);
  const BatchSpec& batch() const { return setup_.job.batch; }

  const PlannerSetup& setup_;
  const PlannerState& state_;
  std::span<const Decision> decisions_;
  const MixtureInForce in_force_;
  PlannerState next_;
  const Metadata& metadata_;
  std::map<std::uint32_t, std::vector<RecordPlace>> quarantined_;
  std::vector<SourceCursor> cursors_;
  MixtureCursor mixture_;
  std::vector<Piece> queue_;       // carried, then closing
  std::size_t queue_carried_ = 0;  // how many of them were carried
  std::size_t queue_at_ = 0;       // the next of them to take
  std::uint32_t blocked_ = 0;      // the source whose metadata is missing
};

}  // namespace widestream
