// What the balancers share. Not a public header.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/plan/balance.h"
#include "engine/plan/cost_order.h"

namespace widestream::balance_internal {

// Room of the bins under the caps.
class Room {
 public:
  explicit Room(const BalanceInput& input);
  bool capped() const { return capped_; }
  bool Fits(std::uint32_t atom, std::uint32_t bin) const {
    return (input_.caps.atoms == 0 || atoms_[bin] < input_.caps.atoms) &&
           (input_.caps.tokens == 0 || input_.tokens[atom] <= FreeTokens(bin)) &&
           (input_.caps.memory == 0 || input_.memory[atom] <= input_.caps.memory - memory_[bin]);
  }
  // Whether `in` fits in the place of `out`.
  bool FitsInstead(std::uint32_t in, std::uint32_t out, std::uint32_t bin) const {
    return (input_.caps.tokens == 0 || input_.tokens[in] <= FreeTokens(bin) + input_.tokens[out]) &&
           (input_.caps.memory == 0 ||
            input_.memory[in] <= input_.caps.memory - memory_[bin] + input_.memory[out]);
  }
  void Add(std::uint32_t atom, std::uint32_t bin) {
    ++atoms_[bin];
    if (input_.caps.tokens != 0) tokens_[bin] += input_.tokens[atom];
    if (input_.caps.memory != 0) memory_[bin] += input_.memory[atom];
  }
  void Remove(std::uint32_t atom, std::uint32_t bin) {
    --atoms_[bin];
    if (input_.caps.tokens != 0) tokens_[bin] -= input_.tokens[atom];
    if (input_.caps.memory != 0) memory_[bin] -= input_.memory[atom];
  }
  std::uint32_t atoms(std::uint32_t bin) const { return atoms_[bin]; }
  // Whether both bins hold the same numbers of whatever is capped.
  bool SameAs(std::uint32_t a, std::uint32_t b) const {
    return (input_.caps.atoms == 0 || atoms_[a] == atoms_[b]) &&
           (input_.caps.tokens == 0 || tokens_[a] == tokens_[b]) &&
           (input_.caps.memory == 0 || memory_[a] == memory_[b]);
  }
  // Tokens that a bin has left; memory where only that is capped. For the choice among bins.
  std::uint64_t FreeShare(std::uint32_t bin) const {
    if (input_.caps.atoms != 0 && atoms_[bin] >= input_.caps.atoms) return 0;
    if (input_.caps.tokens != 0) return FreeTokens(bin);
    return input_.caps.memory == 0 ? 1 : input_.caps.memory - memory_[bin];
  }

 private:
  std::uint64_t FreeTokens(std::uint32_t bin) const { return input_.caps.tokens - tokens_[bin]; }

  const BalanceInput& input_;
  const bool capped_;
  std::vector<std::uint32_t> atoms_;
  std::vector<std::uint64_t> tokens_;
  std::vector<std::uint64_t> memory_;
};

Status NoRoom(const BalanceInput& input, std::uint32_t atom);

// Fills max_load from the loads.
void Finish(Assignment* assignment);

// Longest first of atoms in `order`.
Result<Assignment> PlaceLongestFirst(const BalanceInput& input, const CostOrder& order);

// First-fit decreasing into bins of a capacity that is narrowed down between the lower bound and
// `at_most`. None if nothing fits so.
std::optional<Assignment> Multifit(const BalanceInput& input, const CostOrder& order,
                                   std::uint64_t lower_bound, std::uint64_t at_most);

// Largest differencing; ignores the caps.
Assignment KarmarkarKarp(const BalanceInput& input, const CostOrder& order);

// Lowers the dearest bin by moves and swaps with the cheapest ones, within the caps, until it is at
// `lower_bound` or nothing helps.
void Refine(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
            Assignment* assignment);

// Divides the atoms of the dearest bin and one other anew, as well as a bounded search can, until
// no other bin helps. For bins of few atoms.
void DividePairs(const BalanceInput& input, const CostOrder& order, std::uint64_t lower_bound,
                 Assignment* assignment);

bool WithinCaps(const BalanceInput& input, const Assignment& assignment);

}  // namespace widestream::balance_internal
