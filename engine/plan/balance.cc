#include "engine/plan/balance.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/balance_internal.h"
#include "engine/plan/exact_balance_internal.h"

namespace widestream {
namespace {

using balance_internal::Finish;
using balance_internal::NoRoom;
using balance_internal::Room;

__extension__ using Uint128 = unsigned __int128;

// A search as large as this takes two milliseconds at most.
constexpr std::size_t kTinyAtoms = 40;
constexpr std::uint64_t kTinyNodes = 50'000;

Status CheckColumn(std::span<const std::uint64_t> column, std::uint64_t cap, std::size_t atoms,
                   const char* name) {
  if (cap == 0) return {};
  if (column.size() != atoms) {
    return Status::InvalidArgument(StrCat("balance: ", column.size(), " values of ", name, " for ",
                                          atoms, " atoms; give one an atom"));
  }
  for (std::size_t atom = 0; atom < atoms; ++atom) {
    if (column[atom] > cap) {
      return Status::ResourceExhausted(StrCat("balance: atom ", atom, " has ", column[atom], " ",
                                              name, ", more than the cap of a bin, ", cap,
                                              "; raise the cap or cut the atom"));
    }
  }
  return {};
}

Status Check(const BalanceInput& input) {
  constexpr std::uint64_t kMaxSum = std::uint64_t{1} << 62;
  if (input.bins == 0) {
    return Status::InvalidArgument("balance: 0 bins, expected at least 1");
  }
  if (input.costs.size() > UINT32_MAX) {
    return Status::InvalidArgument(StrCat("balance: ", input.costs.size(),
                                          " atoms, expected at most ", UINT32_MAX,
                                          "; balance them in groups"));
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t cost : input.costs) {
    if (cost >= kMaxSum - sum) {
      return Status::InvalidArgument(
          "balance: the costs sum up to 2^62 or more; give them in a larger unit");
    }
    sum += cost;
  }
  WS_RETURN_IF_ERROR(CheckColumn(input.tokens, input.caps.tokens, input.costs.size(), "tokens"));
  WS_RETURN_IF_ERROR(CheckColumn(input.memory, input.caps.memory, input.costs.size(), "memory"));
  if (input.caps.atoms != 0 && Uint128{input.caps.atoms} * input.bins < input.costs.size()) {
    return Status::ResourceExhausted(StrCat("balance: ", input.costs.size(), " atoms for ",
                                            input.bins, " bins of at most ", input.caps.atoms,
                                            "; add bins or raise the cap"));
  }
  return {};
}

Result<Assignment> CutInOrder(const BalanceInput& input) {
  const std::size_t count = input.costs.size();
  const bool by_tokens = input.tokens.size() == count;
  std::uint64_t total = count;
  if (by_tokens) {
    total = 0;
    for (const std::uint64_t tokens : input.tokens) total += tokens;
    if (total == 0) total = 1;
  }
  Assignment assignment;
  assignment.bin_of.resize(count);
  assignment.loads.assign(input.bins, 0);
  Room room(input);
  std::uint64_t before = 0;
  for (std::uint32_t atom = 0; atom < count; ++atom) {
    // The end of the last tokens-less atoms would be a bin too far.
    const auto bin = static_cast<std::uint32_t>(
        std::min<Uint128>(Uint128{before} * input.bins / total, input.bins - 1));
    if (!room.Fits(atom, bin)) return NoRoom(input, atom);
    room.Add(atom, bin);
    assignment.bin_of[atom] = bin;
    assignment.loads[bin] += input.costs[atom];
    before += by_tokens ? input.tokens[atom] : 1;
  }
  return assignment;
}

}  // namespace

double Assignment::Ratio() const {
  if (max_load == lower_bound) return 1.0;
  return static_cast<double>(max_load) / static_cast<double>(lower_bound);
}

std::vector<std::vector<std::uint32_t>> Assignment::Bins() const {
  std::vector<std::uint32_t> counts(loads.size(), 0);
  for (const std::uint32_t bin : bin_of) ++counts[bin];
  std::vector<std::vector<std::uint32_t>> bins(loads.size());
  for (std::size_t bin = 0; bin < bins.size(); ++bin) bins[bin].reserve(counts[bin]);
  for (std::uint32_t atom = 0; atom < bin_of.size(); ++atom) bins[bin_of[atom]].push_back(atom);
  return bins;
}

std::uint64_t LoadLowerBound(std::span<const std::uint64_t> descending, std::uint32_t bins,
                             std::uint32_t atoms_cap) {
  const std::size_t count = descending.size();
  if (count == 0) return 0;
  const auto at = [&](std::size_t i) { return i < count ? descending[i] : 0; };
  std::uint64_t sum = 0;
  for (const std::uint64_t cost : descending) sum += cost;
  std::uint64_t bound = std::max(sum / bins + (sum % bins != 0 ? 1 : 0), descending[0]);
  for (std::size_t j = 1; j * bins < count; ++j) {
    if (j + 1 > kFewAtomsPerBin) break;  // beyond the mean by 1 / j at most
    std::uint64_t several = 0;
    for (std::size_t i = j * bins - j; i <= j * bins; ++i) several += descending[i];
    bound = std::max(bound, several);
  }
  if (atoms_cap == 0 || Uint128{atoms_cap} * bins > Uint128{4} * count + Uint128{4} * bins) {
    return bound;
  }
  // With less than the full number of atoms the rest are of no cost. Either two of the t dearest
  // share a bin, or t bins hold them, and at least the cheapest (cap - 1) * t beside them.
  const std::size_t full = static_cast<std::size_t>(atoms_cap) * bins;
  std::uint64_t dearest = 0;
  std::uint64_t cheapest = 0;
  for (std::size_t t = 1; t <= bins; ++t) {
    dearest += at(t - 1);
    for (std::size_t i = 0; i + 1 < atoms_cap; ++i) {
      cheapest += at(full - 1 - (t - 1) * (atoms_cap - 1) - i);
    }
    const std::uint64_t apart = (dearest + cheapest) / t + ((dearest + cheapest) % t != 0 ? 1 : 0);
    const std::uint64_t together = t == 1 ? apart : at(t - 2) + at(t - 1);
    bound = std::max(bound, std::min(together, apart));
  }
  return bound;
}

Result<Assignment> LongestFirst(const BalanceInput& input) {
  WS_RETURN_IF_ERROR(Check(input));
  const CostOrder order = OrderByCost(input.costs);
  WS_ASSIGN_OR_RETURN(Assignment assignment, balance_internal::PlaceLongestFirst(input, order));
  Finish(&assignment);
  assignment.lower_bound = LoadLowerBound(order.costs, input.bins, input.caps.atoms);
  return assignment;
}

Result<Assignment> BalanceAtoms(const BalanceInput& input, BalanceMethod method) {
  WS_RETURN_IF_ERROR(Check(input));
  const std::size_t count = input.costs.size();
  if (method == BalanceMethod::kKarmarkarKarp &&
      (count > kMaxKarmarkarKarpAtoms || input.bins > kMaxKarmarkarKarpBins)) {
    return Status::InvalidArgument(StrCat("balance: Karmarkar-Karp for ", count, " atoms and ",
                                          input.bins, " bins, expected at most ",
                                          kMaxKarmarkarKarpAtoms, " and ", kMaxKarmarkarKarpBins,
                                          "; use lpt, which is as good with many atoms"));
  }
  const CostOrder order = OrderByCost(input.costs);
  const std::uint64_t bound = LoadLowerBound(order.costs, input.bins, input.caps.atoms);
  if (method == BalanceMethod::kNone) {
    WS_ASSIGN_OR_RETURN(Assignment assignment, CutInOrder(input));
    Finish(&assignment);
    assignment.lower_bound = bound;
    return assignment;
  }

  WS_ASSIGN_OR_RETURN(Assignment best, balance_internal::PlaceLongestFirst(input, order));
  Finish(&best);
  const bool few = count < kFewAtomsPerBin * std::size_t{input.bins};
  if (best.max_load > bound && (method == BalanceMethod::kMultifit || few)) {
    std::optional<Assignment> found =
        balance_internal::Multifit(input, order, bound, best.max_load - 1);
    if (found) best = *std::move(found);
  }
  if (best.max_load > bound && method == BalanceMethod::kKarmarkarKarp) {
    Assignment found = balance_internal::KarmarkarKarp(input, order);
    if (found.max_load < best.max_load && balance_internal::WithinCaps(input, found)) {
      best = std::move(found);
    }
  }
  if (best.max_load > bound) balance_internal::Refine(input, order, bound, &best);
  if (best.max_load > bound && few) balance_internal::DividePairs(input, order, bound, &best);
  if (best.max_load > bound && count <= kTinyAtoms) {
    balance_internal::SearchExact(input, order, bound, kTinyNodes, &best);
  }
  best.lower_bound = bound;
  return best;
}

Result<Assignment> BalanceInGroups(const BalanceInput& input, BalanceMethod method,
                                   std::uint32_t group_size) {
  if (group_size == 0 || input.bins % group_size != 0) {
    return Status::InvalidArgument(StrCat("distribute: group_size ", group_size,
                                          " does not divide the ", input.bins,
                                          " buckets; choose a divisor"));
  }
  if (group_size == input.bins) return BalanceAtoms(input, method);
  const std::uint32_t groups = input.bins / group_size;
  const std::size_t count = input.costs.size();
  if ((!input.tokens.empty() && input.tokens.size() != count) ||
      (!input.memory.empty() && input.memory.size() != count)) {
    return Status::InvalidArgument(
        StrCat("distribute: columns of other lengths than the ", count, " costs"));
  }
  Assignment all;
  all.bin_of.reserve(count);
  all.loads.reserve(input.bins);
  std::size_t worst = 0;
  std::vector<Assignment> parts;
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t begin = count * group / groups;
    const std::size_t size = count * (group + 1) / groups - begin;
    BalanceInput part = input;
    part.costs = input.costs.subspan(begin, size);
    if (!input.tokens.empty()) part.tokens = input.tokens.subspan(begin, size);
    if (!input.memory.empty()) part.memory = input.memory.subspan(begin, size);
    part.bins = group_size;
    Result<Assignment> found = BalanceAtoms(part, method);
    if (!found.ok()) {
      return found.status().WithContext(
          StrCat("group ", group, " of ", groups, ", atoms from ", begin));
    }
    for (const std::uint32_t bin : found->bin_of) {
      all.bin_of.push_back(static_cast<std::uint32_t>(group) * group_size + bin);
    }
    all.loads.insert(all.loads.end(), found->loads.begin(), found->loads.end());
    all.lower_bound = std::max(all.lower_bound, found->lower_bound);
    worst = std::max<std::size_t>(worst, found->max_load);
  }
  all.max_load = worst;
  return all;
}

namespace balance_internal {

Room::Room(const BalanceInput& input)
    : input_(input),
      capped_(input.caps.atoms != 0 || input.caps.tokens != 0 || input.caps.memory != 0),
      atoms_(input.bins, 0),
      tokens_(input.caps.tokens == 0 ? 0 : input.bins, 0),
      memory_(input.caps.memory == 0 ? 0 : input.bins, 0) {}

Status NoRoom(const BalanceInput& input, std::uint32_t atom) {
  std::string caps;
  if (input.caps.atoms != 0) StrAppend(caps, " ", input.caps.atoms, " atoms");
  if (input.caps.tokens != 0) StrAppend(caps, " ", input.caps.tokens, " tokens");
  if (input.caps.memory != 0) StrAppend(caps, " ", input.caps.memory, " of memory");
  return Status::ResourceExhausted(StrCat("balance: no room was found for atom ", atom, " in ",
                                          input.bins, " bins of at most", caps,
                                          "; add bins or raise the caps"));
}

void Finish(Assignment* assignment) {
  assignment->max_load = 0;
  for (const std::uint64_t load : assignment->loads) {
    assignment->max_load = std::max(assignment->max_load, load);
  }
}

bool WithinCaps(const BalanceInput& input, const Assignment& assignment) {
  Room room(input);
  if (!room.capped()) return true;
  for (std::uint32_t atom = 0; atom < assignment.bin_of.size(); ++atom) {
    if (!room.Fits(atom, assignment.bin_of[atom])) return false;
    room.Add(atom, assignment.bin_of[atom]);
  }
  return true;
}

}  // namespace balance_internal
}  // namespace widestream
