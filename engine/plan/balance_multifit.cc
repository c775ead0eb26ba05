// MULTIFIT (Coffman, Garey, Johnson 1978) and Karmarkar-Karp (1982) for any number of bins.
#include <algorithm>
#include <bit>
#include <queue>
#include <utility>

#include "engine/plan/balance_internal.h"

namespace widestream::balance_internal {
namespace {

// First-fit decreasing: a tree over the bins of how much the roomiest one below has left.
class FirstFit {
 public:
  FirstFit(const BalanceInput& input, const CostOrder& order)
      : input_(input), order_(order), leaves_(std::bit_ceil(std::size_t{input.bins})) {}

  // Whether all atoms fit below `capacity` and the caps.
  bool Run(std::uint64_t capacity, Assignment* result) {
    free_.assign(2 * leaves_, 0);
    // One more than is free, so that a bin that does not exist has room for nothing.
    for (std::size_t bin = 0; bin < input_.bins; ++bin) free_[leaves_ + bin] = capacity + 1;
    for (std::size_t at = leaves_ - 1; at > 0; --at) {
      free_[at] = std::max(free_[2 * at], free_[2 * at + 1]);
    }
    room_.emplace(input_);
    visits_ = 64 * order_.atoms.size() + 4096;
    result->bin_of.resize(input_.costs.size());
    result->loads.assign(input_.bins, 0);
    for (std::size_t i = 0; i < order_.atoms.size(); ++i) {
      const std::uint32_t atom = order_.atoms[i];
      const std::uint64_t cost = order_.costs[i];
      const std::size_t leaf = Find(1, atom, cost);
      if (leaf == 0) return false;
      const auto bin = static_cast<std::uint32_t>(leaf - leaves_);
      if (room_->capped()) room_->Add(atom, bin);
      result->bin_of[atom] = bin;
      result->loads[bin] += cost;
      free_[leaf] -= cost;
      for (std::size_t at = leaf / 2; at > 0; at /= 2) {
        free_[at] = std::max(free_[2 * at], free_[2 * at + 1]);
      }
    }
    return true;
  }

 private:
  // The first bin that has room, 0 if none. Caps may turn bins down, which costs visits; when they
  // are used up the capacity counts as too small.
  std::size_t Find(std::size_t at, std::uint32_t atom, std::uint64_t cost) {
    if (free_[at] <= cost) return 0;
    if (at >= leaves_) {
      // NOLINTBEGIN(bugprone-unchecked-optional-access): set before every search
      if (!room_->capped()) return at;
      if (visits_ == 0) return 0;
      --visits_;
      return room_->Fits(atom, static_cast<std::uint32_t>(at - leaves_)) ? at : 0;
      // NOLINTEND(bugprone-unchecked-optional-access)
    }
    const std::size_t left = Find(2 * at, atom, cost);
    return left != 0 || visits_ == 0 ? left : Find(2 * at + 1, atom, cost);
  }

  const BalanceInput& input_;
  const CostOrder& order_;
  const std::size_t leaves_;
  std::vector<std::uint64_t> free_;
  std::optional<Room> room_;
  std::uint64_t visits_ = 0;
};

// A partial solution of Karmarkar-Karp: a chain of atoms a bin, the dearest bin first.
struct Chain {
  std::uint64_t load = 0;
  std::uint32_t first = UINT32_MAX;
  std::uint32_t last = UINT32_MAX;
};
struct Partial {
  std::uint64_t spread = 0;
  std::uint32_t number = 0;  // of its first atom in the order: for ties
  std::vector<Chain> bins;
};
struct LessSpread {
  bool operator()(const Partial& a, const Partial& b) const {
    return a.spread != b.spread ? a.spread < b.spread : a.number > b.number;
  }
};

}  // namespace

std::optional<Assignment> Multifit(const BalanceInput& input, const CostOrder& order,
                                   std::uint64_t lower_bound, std::uint64_t at_most) {
  constexpr int kRounds = 12;
  FirstFit first_fit(input, order);
  std::optional<Assignment> best;
  std::uint64_t low = lower_bound;
  std::uint64_t high = at_most;
  for (int round = 0; round < kRounds && low <= high; ++round) {
    const std::uint64_t capacity = low + (high - low) / 2;
    Assignment found;
    if (first_fit.Run(capacity, &found)) {
      Finish(&found);
      high = found.max_load - 1;
      best = std::move(found);
      if (high < low) break;
    } else {
      low = capacity + 1;
    }
  }
  return best;
}

Assignment KarmarkarKarp(const BalanceInput& input, const CostOrder& order) {
  std::vector<std::uint32_t> next(input.costs.size(), UINT32_MAX);
  std::vector<Partial> heap;
  for (std::uint32_t i = 0; i < order.atoms.size(); ++i) {
    Partial partial{.spread = order.costs[i], .number = i, .bins = std::vector<Chain>(input.bins)};
    partial.bins[0] = {.load = order.costs[i], .first = order.atoms[i], .last = order.atoms[i]};
    if (input.bins == 1) partial.spread = 0;
    heap.push_back(std::move(partial));
  }
  std::make_heap(heap.begin(), heap.end(), LessSpread{});
  while (heap.size() > 1) {
    std::pop_heap(heap.begin(), heap.end(), LessSpread{});
    Partial one = std::move(heap.back());
    heap.pop_back();
    std::pop_heap(heap.begin(), heap.end(), LessSpread{});
    const Partial other = std::move(heap.back());
    heap.pop_back();
    // The dearest of the one with the cheapest of the other.
    for (std::size_t b = 0; b < one.bins.size(); ++b) {
      Chain& chain = one.bins[b];
      const Chain& more = other.bins[one.bins.size() - 1 - b];
      if (more.first == UINT32_MAX) continue;
      chain.load += more.load;
      if (chain.first == UINT32_MAX) {
        chain.first = more.first;
      } else {
        next[chain.last] = more.first;
      }
      chain.last = more.last;
    }
    std::sort(one.bins.begin(), one.bins.end(), [](const Chain& a, const Chain& b) {
      return a.load != b.load ? a.load > b.load : a.first < b.first;
    });
    one.spread = one.bins.front().load - one.bins.back().load;
    one.number = std::min(one.number, other.number);
    heap.push_back(std::move(one));
    std::push_heap(heap.begin(), heap.end(), LessSpread{});
  }
  Assignment assignment;
  assignment.bin_of.resize(input.costs.size());
  assignment.loads.assign(input.bins, 0);
  if (heap.empty()) return assignment;
  for (std::uint32_t bin = 0; bin < input.bins; ++bin) {
    const Chain& chain = heap.front().bins[bin];
    assignment.loads[bin] = chain.load;
    for (std::uint32_t atom = chain.first; atom != UINT32_MAX; atom = next[atom]) {
      assignment.bin_of[atom] = bin;
    }
  }
  Finish(&assignment);
  return assignment;
}

}  // namespace widestream::balance_internal
