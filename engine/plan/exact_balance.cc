#include "engine/plan/exact_balance.h"

#include <algorithm>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/balance_internal.h"
#include "engine/plan/exact_balance_internal.h"

namespace widestream {
namespace balance_internal {
namespace {

// Depth first, the dearest atoms first, each into the cheapest bins first.
class Search {
 public:
  Search(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
         std::uint64_t nodes, Assignment* best)
      : order_(order),
        lower_bound_(lower_bound),
        nodes_(nodes),
        best_(best),
        room_(input),
        bin_of_(input.costs.size(), 0),
        loads_(input.bins, 0) {
    left_.assign(order.costs.size() + 1, 0);
    for (std::size_t i = order.costs.size(); i > 0; --i)
      left_[i - 1] = left_[i] + order.costs[i - 1];
  }

  bool Run() {
    Place(0);
    return best_->max_load == lower_bound_ || nodes_ > 0;
  }

 private:
  // Whether two bins are alike for all that follows.
  bool Alike(std::uint32_t a, std::uint32_t b) const {
    return loads_[a] == loads_[b] && room_.SameAs(a, b);
  }

  void Place(std::size_t index) {
    if (index == order_.atoms.size()) {
      best_->bin_of = bin_of_;
      best_->loads = loads_;
      Finish(best_);
      return;
    }
    // What is left must go below the best into the bins' free loads.
    std::uint64_t free = 0;
    for (const std::uint64_t load : loads_) {
      if (load < best_->max_load) free += best_->max_load - 1 - load;
    }
    if (free < left_[index]) return;
    const std::uint32_t atom = order_.atoms[index];
    const std::uint64_t cost = order_.costs[index];
    std::vector<std::uint32_t> bins(loads_.size());
    for (std::uint32_t b = 0; b < bins.size(); ++b) bins[b] = b;
    std::sort(bins.begin(), bins.end(), [&](std::uint32_t a, std::uint32_t b) {
      return loads_[a] != loads_[b] ? loads_[a] < loads_[b] : a < b;
    });
    for (std::size_t i = 0; i < bins.size(); ++i) {
      const std::uint32_t bin = bins[i];
      if (best_->max_load == lower_bound_ || nodes_ == 0) return;
      if (loads_[bin] + cost >= best_->max_load) return;  // so are all after it
      if (!room_.Fits(atom, bin)) continue;
      bool seen = false;
      for (std::size_t j = i; j > 0 && loads_[bins[j - 1]] == loads_[bin] && !seen; --j) {
        seen = Alike(bins[j - 1], bin);
      }
      if (seen) continue;
      --nodes_;
      room_.Add(atom, bin);
      loads_[bin] += cost;
      bin_of_[atom] = bin;
      Place(index + 1);
      loads_[bin] -= cost;
      room_.Remove(atom, bin);
    }
  }

  const CostOrder& order_;
  const std::uint64_t lower_bound_;
  std::uint64_t nodes_;
  Assignment* const best_;
  Room room_;
  std::vector<std::uint32_t> bin_of_;
  std::vector<std::uint64_t> loads_;
  std::vector<std::uint64_t> left_;  // cost of the atoms from here on
};

}  // namespace

bool SearchExact(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
                 std::uint64_t nodes, Assignment* best) {
  return Search(input, order, lower_bound, nodes, best).Run();
}

}  // namespace balance_internal

Result<ExactAssignment> ExactBalance(const BalanceInput& input, std::uint64_t nodes) {
  constexpr std::size_t kMaxAtoms = 4096;
  if (input.costs.size() > kMaxAtoms) {
    return Status::InvalidArgument(StrCat("exact balance: ", input.costs.size(),
                                          " atoms, expected at most ", kMaxAtoms,
                                          "; use a balancer"));
  }
  ExactAssignment exact;
  WS_ASSIGN_OR_RETURN(exact.assignment, LongestFirst(input));
  exact.proven = balance_internal::SearchExact(
      input, OrderByCost(input.costs), exact.assignment.lower_bound, nodes, &exact.assignment);
  return exact;
}

}  // namespace widestream
