// Atoms of known cost to bins (ranks, or microbatches of a rank) so that the dearest bin costs
// little. Pure functions in integers: the same input gives the same assignment on every machine,
// whatever the threads. docs/planner.md explains the methods and what they reach.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"

namespace widestream {

enum class BalanceMethod : std::uint8_t {
  kNone,           // in order, cut evenly by tokens (by atoms if there are none)
  kLpt,            // longest processing time first, refined; MULTIFIT too below 16 atoms a bin
  kMultifit,       // the same with MULTIFIT at any number of atoms
  kKarmarkarKarp,  // largest differencing, refined; small cases only
};

// What a bin may hold at most; 0 for no cap.
struct BalanceCaps {
  std::uint32_t atoms = 0;
  std::uint64_t tokens = 0;
  std::uint64_t memory = 0;
};

// Spans are not owned. `tokens` and `memory` may be empty where no cap asks for them.
struct BalanceInput {
  std::span<const std::uint64_t> costs;
  std::span<const std::uint64_t> tokens;
  std::span<const std::uint64_t> memory;
  std::uint32_t bins = 1;
  BalanceCaps caps;
};

struct Assignment {
  std::vector<std::uint32_t> bin_of;  // one an atom
  std::vector<std::uint64_t> loads;   // cost of each bin
  std::uint64_t max_load = 0;
  std::uint64_t lower_bound = 0;  // no assignment within `caps.atoms` is below it

  // Reached over bound, 1 if both are 0. At 1 the assignment is optimal.
  double Ratio() const;
  // Atoms of each bin, ascending.
  std::vector<std::vector<std::uint32_t>> Bins() const;
};

// Atoms, and the bins of Karmarkar-Karp, beyond which it takes more memory than it is worth.
inline constexpr std::size_t kMaxKarmarkarKarpAtoms = 10'000;
inline constexpr std::uint32_t kMaxKarmarkarKarpBins = 64;
// Below so many atoms a bin, a few atoms decide a bin's load and LPT alone leaves up to a few
// percent.
inline constexpr std::size_t kFewAtomsPerBin = 16;

// Every atom in exactly one bin, no cap exceeded, and never dearer than LPT under the same caps
// (but for kNone). The search ends at the lower bound or after work that depends on the input's
// size, never on time.
// InvalidArgument: no bins, spans of different lengths, costs of 2^62 or more in all, too large a
// case for Karmarkar-Karp. ResourceExhausted: an atom above a cap, or no room found for an atom.
Result<Assignment> BalanceAtoms(const BalanceInput& input, BalanceMethod method);

// The same where only `group_size` consecutive bins are balanced with each other: the atoms are
// dealt to the groups in order, evenly by count. `lower_bound` is that of the worst group, so the
// ratio says what balancing reached inside the groups. InvalidArgument if group_size does not
// divide the bins.
Result<Assignment> BalanceInGroups(const BalanceInput& input, BalanceMethod method,
                                   std::uint32_t group_size);

// Longest processing time first under the caps and nothing more, O(n log bins): what "never dearer
// than LPT" refers to. Errors as above.
Result<Assignment> LongestFirst(const BalanceInput& input);

// No assignment of these costs to `bins` bins of at most `atoms_cap` atoms (0 = no cap) has a
// dearest bin below this. `descending` is sorted. The largest of: the mean; the dearest atom; the
// j + 1 cheapest of the j * bins + 1 dearest atoms, of which some bin has j + 1; with a cap, also
// what t bins hold that have one of the t dearest atoms each, filled up with the cheapest.
std::uint64_t LoadLowerBound(std::span<const std::uint64_t> descending, std::uint32_t bins,
                             std::uint32_t atoms_cap);

}  // namespace widestream
