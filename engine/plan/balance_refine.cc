// What is done to an assignment that is not at the lower bound: moves, swaps, pairs divided anew.
#include <algorithm>
#include <set>
#include <utility>

#include "engine/plan/balance_internal.h"

namespace widestream::balance_internal {
namespace {

struct Item {
  std::uint64_t cost;
  std::uint32_t atom;
};

// Dearest first, ties by atom.
bool DearestFirst(const Item& a, const Item& b) {
  return a.cost != b.cost ? a.cost > b.cost : a.atom < b.atom;
}

// Bins of an assignment that change by single atoms; the assignment follows.
class OpenBins {
 public:
  OpenBins(const BalanceInput& input, const CostOrder& order, Assignment* assignment)
      : assignment_(assignment), room_(input), items_(input.bins) {
    std::vector<std::uint32_t> counts(input.bins, 0);
    for (const std::uint32_t bin : assignment->bin_of) ++counts[bin];
    for (std::uint32_t bin = 0; bin < input.bins; ++bin) items_[bin].reserve(counts[bin] + 1);
    for (std::size_t i = 0; i < order.atoms.size(); ++i) {
      const std::uint32_t bin = assignment->bin_of[order.atoms[i]];
      items_[bin].push_back({order.costs[i], order.atoms[i]});
      if (room_.capped()) room_.Add(order.atoms[i], bin);
    }
    for (std::uint32_t bin = 0; bin < input.bins; ++bin) {
      by_load_.insert(by_load_.end(), {assignment->loads[bin], bin});
    }
  }

  using ByLoad = std::set<std::pair<std::uint64_t, std::uint32_t>>;
  const ByLoad& by_load() const { return by_load_; }
  const std::vector<Item>& items(std::uint32_t bin) const { return items_[bin]; }
  const Room& room() const { return room_; }

  void Move(const Item& item, std::uint32_t from, std::uint32_t to) {
    std::vector<Item>& source = items_[from];
    source.erase(std::lower_bound(source.begin(), source.end(), item, DearestFirst));
    std::vector<Item>& target = items_[to];
    target.insert(std::lower_bound(target.begin(), target.end(), item, DearestFirst), item);
    if (room_.capped()) {
      room_.Remove(item.atom, from);
      room_.Add(item.atom, to);
    }
    assignment_->bin_of[item.atom] = to;
    SetLoad(from, assignment_->loads[from] - item.cost);
    SetLoad(to, assignment_->loads[to] + item.cost);
  }

 private:
  void SetLoad(std::uint32_t bin, std::uint64_t load) {
    auto node = by_load_.extract({assignment_->loads[bin], bin});
    node.value().first = load;
    by_load_.insert(std::move(node));
    assignment_->loads[bin] = load;
  }

  Assignment* const assignment_;
  Room room_;
  std::vector<std::vector<Item>> items_;
  ByLoad by_load_;
};

struct Change {
  std::uint64_t gain = 0;  // how far both bins end below the dearer one
  bool swap = false;
  Item out{};
  Item in{};
  std::uint32_t bin = 0;
};

// The best move or swap from the dear bin to the cheap one, if better than `best`.
void FindChange(const OpenBins& bins, std::uint32_t dear, std::uint32_t cheap, std::uint64_t gap,
                Change* best) {
  const std::vector<Item>& from = bins.items(dear);
  const std::vector<Item>& to = bins.items(cheap);
  const Room& room = bins.room();
  const auto consider = [&](const Item& out, const Item* in) {
    const std::uint64_t shift = out.cost - (in == nullptr ? 0 : in->cost);
    const std::uint64_t gain = std::min(shift, gap - shift);
    if (gain <= best->gain) return;
    if (room.capped()) {
      if (in == nullptr && !room.Fits(out.atom, cheap)) return;
      if (in != nullptr && (!room.FitsInstead(out.atom, in->atom, cheap) ||
                            !room.FitsInstead(in->atom, out.atom, dear))) {
        return;
      }
    }
    *best = {.gain = gain,
             .swap = in != nullptr,
             .out = out,
             .in = in == nullptr ? Item{} : *in,
             .bin = cheap};
  };
  // With `out` going down, the cost that its partner should have goes down, too.
  std::size_t partner = 0;
  for (const Item& out : from) {
    if (out.cost < gap) consider(out, nullptr);
    const std::uint64_t wanted = out.cost > gap / 2 ? out.cost - gap / 2 : 0;
    while (partner < to.size() && to[partner].cost > wanted) ++partner;
    // The two around what is wanted, if the swap lowers the dear bin and leaves the other below it.
    if (partner > 0 && to[partner - 1].cost < out.cost) consider(out, &to[partner - 1]);
    if (partner < to.size() && to[partner].cost < out.cost && out.cost - to[partner].cost < gap) {
      consider(out, &to[partner]);
    }
  }
}

// Divides the items of two bins, dearest first, so that the dearer one is below `best_`.
class PairSearch {
 public:
  PairSearch(const BalanceInput& input, std::vector<Item> items, std::uint64_t bound)
      : items_(std::move(items)),
        best_(bound),
        side_(items_.size(), 0),
        pair_(PairOf(input)),
        room_(pair_) {
    std::uint64_t sum = 0;
    for (const Item& item : items_) sum += item.cost;
    perfect_ = sum / 2 + sum % 2;
  }

  // The side of each item, empty if nothing below the bound was found.
  std::vector<std::uint8_t> Run() {
    Place(0);
    return found_;
  }
  const std::vector<Item>& items() const { return items_; }
  std::uint64_t tried() const { return kNodes - nodes_; }

 private:
  static constexpr std::uint64_t kNodes = 2000;

  static BalanceInput PairOf(BalanceInput input) {
    input.bins = 2;
    return input;
  }

  void Place(std::size_t index) {
    if (index == items_.size()) {
      best_ = std::max(load_[0], load_[1]);
      found_ = side_;
      return;
    }
    const std::uint8_t cheap = load_[0] <= load_[1] ? 0 : 1;
    for (const std::uint8_t side : {cheap, static_cast<std::uint8_t>(1 - cheap)}) {
      if (nodes_ == 0 || best_ <= perfect_) return;
      const Item& item = items_[index];
      if (load_[side] + item.cost >= best_ || !room_.Fits(item.atom, side)) continue;
      --nodes_;
      room_.Add(item.atom, side);
      load_[side] += item.cost;
      side_[index] = side;
      Place(index + 1);
      load_[side] -= item.cost;
      room_.Remove(item.atom, side);
    }
  }

  const std::vector<Item> items_;
  std::uint64_t best_;
  std::uint64_t perfect_ = 0;
  std::uint64_t nodes_ = kNodes;
  std::uint64_t load_[2] = {0, 0};
  std::vector<std::uint8_t> side_;
  std::vector<std::uint8_t> found_;
  const BalanceInput pair_;
  Room room_;
};

}  // namespace

void Refine(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
            Assignment* assignment) {
  constexpr int kPartners = 8;
  if (input.bins < 2) return;
  OpenBins bins(input, order, assignment);
  // Both are far more than a balanced assignment needs; they bound what a strange one takes.
  std::uint64_t rounds = 4 * std::uint64_t{input.bins} + 64;
  std::uint64_t work = 64 * std::uint64_t{order.atoms.size()} + 1'000'000;
  while (rounds-- > 0) {
    const auto [most, dear] = *bins.by_load().rbegin();
    if (most <= lower_bound) break;
    Change best;
    int partners = 0;
    std::uint64_t looked_at = 0;
    for (const auto& [load, cheap] : bins.by_load()) {
      const std::uint64_t gap = most - load;
      if (cheap == dear || gap < 2 || partners++ == kPartners) break;
      looked_at += bins.items(dear).size() + bins.items(cheap).size();
      FindChange(bins, dear, cheap, gap, &best);
      if (best.gain >= gap / 2 - gap / 16) break;
    }
    if (best.gain == 0 || looked_at > work) break;
    work -= looked_at;
    bins.Move(best.out, dear, best.bin);
    if (best.swap) bins.Move(best.in, best.bin, dear);
  }
  Finish(assignment);
}

void DividePairs(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
                 Assignment* assignment) {
  constexpr int kPartners = 64;
  if (input.bins < 2) return;
  OpenBins bins(input, order, assignment);
  std::uint64_t work = 200 * std::uint64_t{order.atoms.size()} + 200'000;
  bool changed = true;
  while (changed) {
    changed = false;
    const auto [most, dear] = *bins.by_load().rbegin();
    if (most <= lower_bound) break;
    std::vector<std::uint32_t> partners;
    for (const auto& [load, bin] : bins.by_load()) {
      if (most - load < 2 || partners.size() == kPartners) break;
      partners.push_back(bin);
    }
    for (const std::uint32_t cheap : partners) {
      std::vector<Item> items = bins.items(dear);
      items.insert(items.end(), bins.items(cheap).begin(), bins.items(cheap).end());
      std::sort(items.begin(), items.end(), DearestFirst);
      PairSearch search(input, std::move(items), most);
      const std::vector<std::uint8_t> sides = search.Run();
      if (search.tried() > work) {
        Finish(assignment);
        return;
      }
      work -= search.tried();
      if (sides.empty()) continue;
      // Moves pass through states above a cap, which the final one is not.
      for (std::size_t i = 0; i < sides.size(); ++i) {
        const Item& item = search.items()[i];
        const std::uint32_t now = assignment->bin_of[item.atom];
        const std::uint32_t then = sides[i] == 0 ? dear : cheap;
        if (now != then) bins.Move(item, now, then);
      }
      changed = true;
      break;
    }
  }
  Finish(assignment);
}

}  // namespace widestream::balance_internal
