#include "engine/plan/mixture.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/base/hash.h"
#include "engine/base/rng.h"

namespace widestream {
namespace {

__extension__ using Int128 = __int128;
__extension__ using Uint128 = unsigned __int128;

// Gives what `weights` lack to kWeightOne to the largest, the first on ties.
void GiveRemainder(std::vector<std::uint64_t>& weights) {
  std::uint64_t sum = 0;
  for (const std::uint64_t weight : weights) sum += weight;
  *std::max_element(weights.begin(), weights.end()) += kWeightOne - sum;  // modulo 2^64: may shrink
}

// floor((from * (ramp - x) + to * x) / ramp), remainder to the largest.
std::vector<std::uint64_t> Between(const std::vector<std::uint64_t>& from,
                                   const std::vector<std::uint64_t>& to, std::uint64_t x,
                                   std::uint64_t ramp) {
  std::vector<std::uint64_t> weights(to.size());
  for (std::size_t s = 0; s < to.size(); ++s) {
    if (from[s] == to[s]) {
      weights[s] = to[s];
      continue;
    }
    const Uint128 sum = Uint128{from[s]} * (ramp - x) + Uint128{to[s]} * x;
    // The 64-bit division is several times faster, and enough for ramps below 2^32 units.
    weights[s] = (sum >> 64) == 0 ? static_cast<std::uint64_t>(sum) / ramp
                                  : static_cast<std::uint64_t>(sum / ramp);
  }
  GiveRemainder(weights);
  return weights;
}

// What a random number of the mixture is for (first coordinate of RandomAt).
std::uint64_t TiePurpose() {
  static const std::uint64_t purpose = Xxh3_64("mixture");
  return purpose;
}

}  // namespace

Result<std::vector<std::uint64_t>> IntegerWeights(std::span<const double> weights) {
  double sum = 0;
  for (std::size_t s = 0; s < weights.size(); ++s) {
    if (!std::isfinite(weights[s]) || weights[s] < 0) {
      return Status::InvalidArgument(StrCat("weight of source ", s, " is ", weights[s],
                                            "; give a finite number that is not negative"));
    }
    sum += weights[s];
  }
  if (!(sum > 0) || !std::isfinite(sum)) {
    return Status::InvalidArgument(StrCat("the weights add up to ", sum,
                                          "; at least one must be positive and the sum finite"));
  }
  std::vector<std::uint64_t> result(weights.size());
  for (std::size_t s = 0; s < weights.size(); ++s) {
    result[s] = static_cast<std::uint64_t>(std::floor(weights[s] / sum * 4294967296.0 + 0.5));
    if (weights[s] > 0 && result[s] == 0) {
      return Status::InvalidArgument(
          StrCat("weight of source ", s, " is ", weights[s], " of ", sum,
                 ", less than one in 2^33: it would never be drawn; write 0 or a larger weight"));
    }
  }
  GiveRemainder(result);
  return result;
}

Result<Mixture> ResolveMixture(const MixtureSpec& spec, std::size_t sources, bool is_edit) {
  if (spec.stages.empty()) {
    return Status::InvalidArgument("mixture.stages is empty; give at least one stage");
  }
  Mixture mixture;
  mixture.unit = spec.unit;
  std::uint64_t start = 0;
  for (std::size_t i = 0; i < spec.stages.size(); ++i) {
    const StageSpec& stage = spec.stages[i];
    const std::string where = StrCat("mixture.stages[", i, "]");
    if (stage.weights.size() != sources) {
      return Status::InvalidArgument(StrCat(where, ".weights has ", stage.weights.size(),
                                            " entries; give one for each of the ", sources,
                                            " sources"));
    }
    auto weights = IntegerWeights(stage.weights);
    if (!weights.ok()) return weights.status().WithContext(where + ".weights");
    if (!stage.until && i + 1 != spec.stages.size()) {
      return Status::InvalidArgument(where + " has no `until`; only the last stage may omit it");
    }
    if (stage.until && *stage.until <= start) {
      return Status::InvalidArgument(StrCat(where, ".until is ", *stage.until,
                                            "; it must exceed the end of the stage before it, ",
                                            start));
    }
    if (stage.ramp > 0 && i == 0 && !is_edit) {
      return Status::InvalidArgument(
          where + ".ramp: there are no weights before the first stage; remove `ramp`");
    }
    if (stage.until && stage.ramp > *stage.until - start) {
      return Status::InvalidArgument(StrCat(where, ".ramp is ", stage.ramp,
                                            ", longer than the stage, ", *stage.until - start,
                                            "; shorten it or move `until`"));
    }
    mixture.stages.push_back({stage.until, std::move(weights).value(), stage.ramp});
    if (stage.until) start = *stage.until;
  }
  return mixture;
}

MixtureCursor::MixtureCursor(const Mixture& mixture, std::uint64_t seed,
                             std::span<const std::uint64_t> source_ids, Position position)
    : mixture_(mixture),
      seed_(seed),
      source_ids_(source_ids),
      position_(std::move(position)),
      weights_(source_ids.size(), 0) {}

void MixtureCursor::RestartCounters() {
  std::fill(position_.credit.begin(), position_.credit.end(), 0);
}

void MixtureCursor::EnterStage() {
  while (true) {
    const Mixture::Stage& stage = mixture_.stages[position_.stage];
    if (!stage.until || position_.clock < *stage.until) return;
    if (position_.stage + 1 == mixture_.stages.size()) {
      position_.ended = true;
      return;
    }
    ++position_.stage;
    stale_ = true;
    if (mixture_.stages[position_.stage].ramp == 0) RestartCounters();
  }
}

void MixtureCursor::RefreshWeights() {
  const Mixture::Stage& stage = mixture_.stages[position_.stage];
  const std::uint64_t start =
      position_.stage == 0 ? 0 : mixture_.stages[position_.stage - 1].until.value_or(0);
  const std::vector<std::uint64_t>& before =
      position_.stage == 0 ? position_.base_weights : mixture_.stages[position_.stage - 1].weights;
  const std::uint64_t x = position_.clock - start;
  ramping_ = x < stage.ramp && before.size() == stage.weights.size();
  weights_ = ramping_ ? Between(before, stage.weights, x, stage.ramp) : stage.weights;
  std::uint64_t rest = 0;
  bool rescale = false;
  for (std::size_t s = 0; s < weights_.size(); ++s) {
    if (position_.exhausted[s] != 0 && weights_[s] > 0) {
      weights_[s] = 0;
      rescale = true;
    }
    rest += weights_[s];
  }
  if (rescale && rest > 0) {
    // w * 2^32 / rest needs 65 bits only for w = 2^32 = rest, where nothing was taken away.
    for (std::uint64_t& weight : weights_) weight = (weight << 32) / rest;
    GiveRemainder(weights_);
  }
  live_.clear();
  for (std::uint32_t s = 0; s < weights_.size(); ++s) {
    if (weights_[s] > 0) live_.push_back(s);
  }
  stale_ = false;
}

const std::vector<std::uint64_t>& MixtureCursor::weights() {
  EnterStage();
  if (stale_ || ramping_) RefreshWeights();
  return weights_;
}

std::optional<std::uint32_t> MixtureCursor::Choose() {
  if (position_.ended) return std::nullopt;
  EnterStage();
  if (position_.ended) return std::nullopt;
  if (stale_ || ramping_) RefreshWeights();
  if (live_.empty()) {
    position_.ended = true;
    return std::nullopt;
  }
  if (live_.size() == 1) return live_.front();
  return mixture_.unit == MixtureUnit::kTokens ? ChooseTokens() : ChooseSamples();
}

std::uint32_t MixtureCursor::ChooseTokens() const {
  std::int64_t best = INT64_MIN;
  std::size_t ties = 0;
  std::uint32_t choice = 0;
  for (const std::uint32_t s : live_) {
    const std::int64_t score = position_.credit[s] + static_cast<std::int64_t>(weights_[s]);
    if (score > best) {
      best = score;
      choice = s;
      ties = 1;
    } else if (score == best) {
      ++ties;
    }
  }
  if (ties == 1) return choice;
  std::vector<std::uint32_t> tied;
  for (const std::uint32_t s : live_) {
    if (position_.credit[s] + static_cast<std::int64_t>(weights_[s]) == best) tied.push_back(s);
  }
  return BreakTie(tied);
}

std::uint32_t MixtureCursor::ChooseSamples() const {
  const std::int64_t n = static_cast<std::int64_t>(live_.size());
  const Int128 threshold = static_cast<std::int64_t>(kWeightOne);
  const Int128 latest = threshold * (2 * n - 3);
  std::vector<std::uint32_t> tied;
  Int128 best = 0;  // numerator of the earliest deadline so far; its denominator is best_weight
  std::int64_t best_weight = 0;
  std::int64_t largest = INT64_MIN;
  std::vector<std::uint32_t> largest_of;
  for (const std::uint32_t s : live_) {
    const auto weight = static_cast<std::int64_t>(weights_[s]);
    const std::int64_t sigma = position_.credit[s] + weight;
    if (tied.empty() && sigma >= largest) {
      if (sigma > largest) largest_of.clear();
      largest = sigma;
      largest_of.push_back(s);
    }
    const Int128 scaled = Int128{sigma} * (2 * n - 2);
    if (scaled < threshold) continue;
    const Int128 deadline = latest - scaled;
    const Int128 left = deadline * best_weight;
    const Int128 right = best * weight;
    if (tied.empty() || left < right) {
      tied.assign(1, s);
      best = deadline;
      best_weight = weight;
    } else if (left == right) {
      tied.push_back(s);
    }
  }
  // While a ramp takes a source out, its credit leaves with it and nobody may be eligible.
  if (tied.empty()) tied = std::move(largest_of);
  return tied.size() == 1 ? tied.front() : BreakTie(tied);
}

std::uint32_t MixtureCursor::BreakTie(const std::vector<std::uint32_t>& tied) const {
  const RandomSequence random(seed_, TiePurpose(), position_.draws);
  std::uint32_t choice = tied.front();
  std::uint64_t smallest = random.At(source_ids_[choice]);
  for (std::size_t i = 1; i < tied.size(); ++i) {
    const std::uint64_t value = random.At(source_ids_[tied[i]]);
    if (value < smallest) {
      smallest = value;
      choice = tied[i];
    }
  }
  return choice;
}

void MixtureCursor::Account(std::uint32_t source, std::uint64_t units) {
  for (const std::uint32_t s : live_) {
    position_.credit[s] += static_cast<std::int64_t>(weights_[s] * units);
  }
  position_.credit[source] -= static_cast<std::int64_t>(units << 32);
  position_.clock += units;
  ++position_.draws;
}

void MixtureCursor::Exhaust(std::uint32_t source) {
  position_.exhausted[source] = 1;
  stale_ = true;
  RestartCounters();
}

}  // namespace widestream
