// Which source the next draw takes. Exact integer arithmetic; docs/stream.md section 3 is the
// specification.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/job/spec.h"

namespace widestream {

// Weights are integers that add up to this.
inline constexpr std::uint64_t kWeightOne = std::uint64_t{1} << 32;

// floor(weight / sum * 2^32 + 0.5) in IEEE double, the sum in the order given; what is missing to
// (or exceeds) 2^32 goes to the largest, the first on ties. InvalidArgument if a weight is negative
// or not finite, all are zero, or a positive one would be rounded to "never drawn".
Result<std::vector<std::uint64_t>> IntegerWeights(std::span<const double> weights);

// A mixture whose weights are integers out of kWeightOne. A value; immutable in use.
struct Mixture {
  struct Stage {
    std::optional<std::uint64_t> until;  // exclusive, counted from where the mixture came in force
    std::vector<std::uint64_t> weights;
    std::uint64_t ramp = 0;
  };
  MixtureUnit unit = MixtureUnit::kTokens;
  std::vector<Stage> stages;
};

// Checks and resolves a mixture for `sources` sources. A ramp of the first stage needs weights
// before it, so only an edit (`is_edit`) may have one.
Result<Mixture> ResolveMixture(const MixtureSpec& spec, std::size_t sources, bool is_edit);

// A mixture as JSON text, as in a job ("unit", "stages": [{"until", "weights": {name: weight},
// "ramp"}]); `names` gives the order of the sources. InvalidArgument names the key.
Result<MixtureSpec> ParseMixture(std::string_view json, std::span<const std::string> names);

// The mixture in motion: what is needed from one draw to the next. Not thread-safe; refers to the
// mixture, which must outlive it. Invariant: the weights in force are 0 for exhausted sources and
// add up to kWeightOne, or no source is live.
class MixtureCursor {
 public:
  struct Position {
    std::uint64_t clock = 0;                  // units drawn since the mixture came in force
    std::uint64_t stage = 0;                  // in force at the last draw
    std::uint64_t draws = 0;                  // number of the next draw
    bool ended = false;                       // no draw is possible any more
    std::vector<std::int64_t> credit;         // (wanted - drawn) * 2^32, by source
    std::vector<std::uint8_t> exhausted;      // by source
    std::vector<std::uint64_t> base_weights;  // before an edit's first stage; may be empty
  };

  MixtureCursor(const Mixture& mixture, std::uint64_t seed,
                std::span<const std::uint64_t> source_ids, Position position);

  // The source of the next draw; nullopt when the stream has ended. Moves to the stage that the
  // clock is in. Idempotent until Account or Exhaust is called.
  std::optional<std::uint32_t> Choose();
  // Books the draw that Choose named: `units` tokens, or one sample.
  void Account(std::uint32_t source, std::uint64_t units);
  // The source had nothing to give at the draw that Choose named: `renormalise` starts the counters
  // anew over the rest.
  void Exhaust(std::uint32_t source);
  void End() { position_.ended = true; }

  const Position& position() const { return position_; }
  // Weights in force for the next draw; all zero when no source is live.
  const std::vector<std::uint64_t>& weights();

 private:
  void EnterStage();      // moves `stage` to where the clock is
  void RefreshWeights();  // of stage, clock and exhausted sources
  void RestartCounters();
  std::uint32_t ChooseTokens() const;
  std::uint32_t ChooseSamples() const;
  std::uint32_t BreakTie(const std::vector<std::uint32_t>& tied) const;

  const Mixture& mixture_;
  const std::uint64_t seed_;
  const std::span<const std::uint64_t> source_ids_;
  Position position_;
  std::vector<std::uint64_t> weights_;
  std::vector<std::uint32_t> live_;  // sources with a weight in force
  bool stale_ = true;                // the weights must be computed anew
  bool ramping_ = false;
};

}  // namespace widestream
