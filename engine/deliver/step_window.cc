#include "engine/deliver/step_window.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"

namespace widestream::delivery {

StepWindow::StepWindow(const std::vector<bool>& fetches) {
  for (const bool fetches_itself : fetches) places_.push_back({fetches_itself, std::nullopt, 0});
}

Status StepWindow::Push(std::shared_ptr<const Step> step) {
  const std::uint64_t number = step->number;
  if (last_ && number <= *last_) {
    return Status::Internal(
        StrCat("step ", number, " came after step ", *last_, "; steps must rise"));
  }
  last_ = number;
  ++pushed_;
  Entry entry;
  entry.number = number;
  entry.step = std::move(step);
  entry.acknowledged.assign(places_.size(), false);
  entry.pending = places_.size();
  entries_.push_back(std::move(entry));
  for (std::size_t place = 0; place < places_.size(); ++place) {
    if (!places_[place].fetches || number < places_[place].begin_step) {
      Mark(place, entries_.back());
    }
  }
  Trim();
  return Status::Ok();
}

Status StepWindow::Begin(std::size_t place, std::uint64_t begin_step) {
  Place& state = places_[place];
  if (state.acknowledged && *state.acknowledged >= begin_step) {
    return Status::InvalidArgument(
        StrCat("it wants to begin at step ", begin_step, ", but has acknowledged step ",
               *state.acknowledged,
               " already, and the step may be gone; restart all ranks from one state"));
  }
  state.begin_step = std::max(state.begin_step, begin_step);
  for (Entry& entry : entries_) {
    if (entry.number < begin_step) Mark(place, entry);
  }
  Trim();
  return Status::Ok();
}

Result<std::shared_ptr<const Step>> StepWindow::Find(std::size_t place,
                                                     std::optional<std::uint64_t> after) const {
  const Place& state = places_[place];
  const auto acknowledged = [&](const std::string& what) {
    return Status::InvalidArgument(
        StrCat("it asks for ", what, ", but has acknowledged step ", state.acknowledged.value_or(0),
               " already, and the step may be gone; restart all ranks from one state"));
  };
  if (!after) {
    if (state.acknowledged) return acknowledged("the first step");
    if (trimmed_ && state.begin_step <= *trimmed_) return acknowledged("the first step");
  } else {
    if (trimmed_ && *after < *trimmed_) return acknowledged(StrCat("the step after ", *after));
    if ((!last_ || *after > *last_) && *after >= state.begin_step) {
      return Status::InvalidArgument(StrCat("it asks for the step after ", *after,
                                            ", which it has not had; steps come in order"));
    }
  }
  for (const Entry& entry : entries_) {
    if (after && entry.number <= *after) continue;
    if (entry.number < state.begin_step) continue;
    if (entry.acknowledged[place]) return acknowledged(StrCat("step ", entry.number));
    return entry.step;
  }
  return std::shared_ptr<const Step>();
}

Status StepWindow::Acknowledge(std::size_t place, std::uint64_t number) {
  if (!last_ || number > *last_) {
    return Status::InvalidArgument(
        StrCat("it acknowledges step ", number, ", which was not delivered"));
  }
  for (Entry& entry : entries_) {
    if (entry.number != number) continue;
    Mark(place, entry);
    Place& state = places_[place];
    state.acknowledged = std::max(state.acknowledged.value_or(0), number);
    break;
  }
  Trim();
  return Status::Ok();
}

std::shared_ptr<const Step> StepWindow::InMemory(std::uint64_t number) const {
  for (const Entry& entry : entries_) {
    if (entry.number == number) return entry.step;
  }
  return nullptr;
}

std::vector<std::uint64_t> StepWindow::Unacknowledged(std::size_t place) const {
  std::vector<std::uint64_t> numbers;
  for (const Entry& entry : entries_) {
    if (!entry.acknowledged[place]) numbers.push_back(entry.number);
  }
  return numbers;
}

std::size_t StepWindow::steps_in_memory() const {
  std::size_t count = 0;
  for (const Entry& entry : entries_) count += entry.step == nullptr ? 0 : 1;
  return count;
}

void StepWindow::Mark(std::size_t place, Entry& entry) {
  if (entry.acknowledged[place]) return;
  entry.acknowledged[place] = true;
  if (--entry.pending == 0) entry.step.reset();
}

void StepWindow::Trim() {
  while (!entries_.empty() && entries_.front().pending == 0) {
    trimmed_ = entries_.front().number;
    entries_.pop_front();
  }
}

std::string Ranges(const std::vector<std::uint64_t>& rising) {
  std::string text;
  for (std::size_t i = 0; i < rising.size();) {
    std::size_t last = i;
    while (last + 1 < rising.size() && rising[last + 1] == rising[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    StrAppend(text, rising[i]);
    if (last > i) StrAppend(text, " to ", rising[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace widestream::delivery
