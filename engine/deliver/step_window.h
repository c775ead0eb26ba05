// StepWindow: the steps that some place of the node has not acknowledged, and who holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/deliver/step.h"

namespace widestream::delivery {

// Pure bookkeeping, without I/O or time; not thread-safe. Places are numbered from 0. Invariant: a
// step is in memory exactly as long as a place that fetches has not acknowledged it.
class StepWindow {
 public:
  explicit StepWindow(const std::vector<bool>& fetches);

  // The next step. Its number is above that of the last one.
  Status Push(std::shared_ptr<const Step> step);

  // A client attaches: it has all steps before `begin_step`. InvalidArgument if the place has
  // acknowledged that step or a later one.
  Status Begin(std::size_t place, std::uint64_t begin_step);

  // What `place` gets after step `after` (none: from its beginning). Null: the next step must be
  // pushed first. InvalidArgument: it has acknowledged that step, or asks for what is not its turn.
  Result<std::shared_ptr<const Step>> Find(std::size_t place,
                                           std::optional<std::uint64_t> after) const;
  // InvalidArgument if the step was not pushed. Twice is once.
  Status Acknowledge(std::size_t place, std::uint64_t number);

  // The step if it is in memory.
  [[nodiscard]] std::shared_ptr<const Step> InMemory(std::uint64_t number) const;
  [[nodiscard]] std::vector<std::uint64_t> Unacknowledged(std::size_t place) const;
  [[nodiscard]] bool AnyAcknowledged(std::size_t place) const {
    return places_[place].acknowledged.has_value();
  }
  [[nodiscard]] std::size_t steps_in_memory() const;
  [[nodiscard]] std::uint64_t pushed() const { return pushed_; }

 private:
  struct Entry {
    std::uint64_t number = 0;
    std::shared_ptr<const Step> step;  // null: acknowledged by all
    std::vector<bool> acknowledged;    // by place
    std::size_t pending = 0;
  };
  struct Place {
    bool fetches = true;
    std::optional<std::uint64_t> acknowledged;  // the highest
    std::uint64_t begin_step = 0;
  };

  static void Mark(std::size_t place, Entry& entry);
  void Trim();

  std::vector<Place> places_;
  std::deque<Entry> entries_;             // by number
  std::optional<std::uint64_t> last_;     // pushed
  std::optional<std::uint64_t> trimmed_;  // the last that left entries_
  std::uint64_t pushed_ = 0;
};

// "3, 5 to 7".
std::string Ranges(const std::vector<std::uint64_t>& rising);

}  // namespace widestream::delivery
