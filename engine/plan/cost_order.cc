#include "engine/plan/cost_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

namespace widestream {
namespace {

constexpr int kDigitBits = 11;
constexpr std::size_t kFewAtoms = 1024;  // the counters of a pass cost more than such a sort

// Sorts by the bits of `keys` from `low` to `high`, stably.
void RadixSort(std::vector<std::uint64_t>* keys, int low, int high) {
  std::vector<std::uint64_t> other(keys->size());
  for (int shift = low; shift < high; shift += kDigitBits) {
    std::array<std::uint32_t, std::size_t{1} << kDigitBits> places{};
    constexpr std::uint64_t kMask = places.size() - 1;
    for (const std::uint64_t key : *keys) ++places[(key >> shift) & kMask];
    std::uint32_t before = 0;
    for (std::uint32_t& place : places) {
      const std::uint32_t count = place;
      place = before;
      before += count;
    }
    for (const std::uint64_t key : *keys) other[places[(key >> shift) & kMask]++] = key;
    keys->swap(other);
  }
}

}  // namespace

CostOrder OrderByCost(std::span<const std::uint64_t> costs) {
  CostOrder order;
  const std::size_t count = costs.size();
  order.atoms.resize(count);
  order.costs.resize(count);
  if (count == 0) return order;
  const auto [least, most] = std::minmax_element(costs.begin(), costs.end());
  const int atom_bits = std::bit_width(count - 1);
  const int cost_bits = std::bit_width(*most - *least);
  if (count <= kFewAtoms || atom_bits + cost_bits > 64) {
    std::iota(order.atoms.begin(), order.atoms.end(), 0U);
    std::sort(order.atoms.begin(), order.atoms.end(), [&](std::uint32_t a, std::uint32_t b) {
      return costs[a] != costs[b] ? costs[a] > costs[b] : a < b;
    });
    for (std::size_t i = 0; i < count; ++i) order.costs[i] = costs[order.atoms[i]];
    return order;
  }
  // The distance to the dearest above, the atom below: ascending keys are the order.
  std::vector<std::uint64_t> keys(count);
  for (std::size_t atom = 0; atom < count; ++atom) {
    keys[atom] = (*most - costs[atom]) << atom_bits | atom;
  }
  RadixSort(&keys, atom_bits, atom_bits + cost_bits);
  const std::uint64_t mask = (std::uint64_t{1} << atom_bits) - 1;
  for (std::size_t i = 0; i < count; ++i) {
    order.atoms[i] = static_cast<std::uint32_t>(keys[i] & mask);
    order.costs[i] = *most - (keys[i] >> atom_bits);
  }
  return order;
}

}  // namespace widestream
