// Longest processing time first, with caps.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "engine/plan/balance_internal.h"

namespace widestream::balance_internal {
namespace {

__extension__ using Uint128 = unsigned __int128;

// Bins by (load, number), the least first. A heap of four children a node, since a node's children
// then share a cache line, of loads with the number in the low bits, since one comparison then
// decides ties, too.
template <typename Key>
class LeastBin {
 public:
  LeastBin(std::uint32_t bins, int bin_bits) : bin_bits_(bin_bits), keys_(bins) {
    for (std::uint32_t bin = 0; bin < bins; ++bin) keys_[bin] = bin;
  }
  bool empty() const { return keys_.empty(); }
  std::uint32_t bin() const {
    return static_cast<std::uint32_t>(keys_[0] & ((Key{1} << bin_bits_) - 1));
  }
  Key key() const { return keys_[0]; }
  Key KeyOf(std::uint64_t load, std::uint32_t bin) const { return Key{load} << bin_bits_ | bin; }
  // `key` is not less than the least.
  void ReplaceLeast(Key key) { Sink(key); }
  void Clear() { keys_.clear(); }
  void Pop() {
    const Key last = keys_.back();
    keys_.pop_back();
    if (!keys_.empty()) Sink(last);
  }
  void Push(Key key) {
    keys_.push_back(key);
    std::size_t at = keys_.size() - 1;
    while (at > 0 && keys_[(at - 1) / 4] > key) {
      keys_[at] = keys_[(at - 1) / 4];
      at = (at - 1) / 4;
    }
    keys_[at] = key;
  }

 private:
  // Puts `key` at the top in place of what is there.
  void Sink(Key key) {
    const std::size_t size = keys_.size();
    std::size_t at = 0;
    while (true) {
      const std::size_t first = 4 * at + 1;
      if (first >= size) break;
      std::size_t least = first;
      if (first + 4 <= size) {
        const std::size_t a = first + (keys_[first + 1] < keys_[first] ? 1 : 0);
        const std::size_t b = first + 2 + (keys_[first + 3] < keys_[first + 2] ? 1 : 0);
        least = keys_[b] < keys_[a] ? b : a;
      } else {
        for (std::size_t child = first + 1; child < size; ++child) {
          if (keys_[child] < keys_[least]) least = child;
        }
      }
      if (keys_[least] >= key) break;
      keys_[at] = keys_[least];
      at = least;
    }
    keys_[at] = key;
  }

  const int bin_bits_;
  std::vector<Key> keys_;
};

// The bin with most room, for atoms that fit in none of the cheapest bins. Costs nothing before its
// first use.
class MostRoom {
 public:
  explicit MostRoom(const Room& room, std::uint32_t bins) : room_(room), bins_(bins) {}

  void Update(std::uint32_t bin) {
    if (best_.empty()) return;
    best_[leaves_ + bin] = room_.FreeShare(bin);
    for (std::size_t at = (leaves_ + bin) / 2; at > 0; at /= 2) {
      best_[at] = std::max(best_[2 * at], best_[2 * at + 1]);
    }
  }

  // `bins` if the atom fits in none.
  std::uint32_t Find(std::uint32_t atom) {
    if (best_.empty()) Build();
    std::size_t at = 1;
    while (at < leaves_) at = 2 * at + (best_[2 * at] >= best_[2 * at + 1] ? 0 : 1);
    const auto roomiest = static_cast<std::uint32_t>(at - leaves_);
    if (roomiest < bins_ && room_.Fits(atom, roomiest)) return roomiest;
    // Only with several caps: the roomiest by one of them is full by another.
    std::uint32_t found = bins_;
    for (std::uint32_t bin = 0; bin < bins_; ++bin) {
      if (!room_.Fits(atom, bin)) continue;
      if (found == bins_ || room_.FreeShare(bin) > room_.FreeShare(found)) found = bin;
    }
    return found;
  }

 private:
  void Build() {
    leaves_ = std::bit_ceil(std::size_t{bins_});
    best_.assign(2 * leaves_, 0);
    for (std::uint32_t bin = 0; bin < bins_; ++bin) best_[leaves_ + bin] = room_.FreeShare(bin);
    for (std::size_t at = leaves_ - 1; at > 0; --at) {
      best_[at] = std::max(best_[2 * at], best_[2 * at + 1]);
    }
  }

  const Room& room_;
  const std::uint32_t bins_;
  std::size_t leaves_ = 0;
  std::vector<std::uint64_t> best_;
};

template <typename Key>
class Placer {
 public:
  Placer(const BalanceInput& input, const CostOrder& order, int bin_bits)
      : input_(input),
        order_(order),
        room_(input),
        most_room_(room_, input.bins),
        least_(input.bins, bin_bits),
        places_(input.bins, 0) {
    result_.bin_of.resize(input.costs.size());
    result_.loads.assign(input.bins, 0);
  }

  Result<Assignment> Run() {
    const std::size_t count = order_.atoms.size();
    std::size_t index = 0;
    for (; index < count && order_.costs[index] != 0; ++index) {
      WS_RETURN_IF_ERROR(Place(order_.atoms[index], order_.costs[index], order_.costs[index]));
    }
    if (index == count) return std::move(result_);
    // What costs nothing would all go to one bin: it is dealt by number instead.
    std::fill(places_.begin(), places_.end(), 0);
    for (std::size_t i = 0; i < index; ++i) ++places_[result_.bin_of[order_.atoms[i]]];
    least_.Clear();
    for (std::uint32_t bin = 0; bin < input_.bins; ++bin)
      least_.Push(least_.KeyOf(places_[bin], bin));
    for (; index < count; ++index) WS_RETURN_IF_ERROR(Place(order_.atoms[index], 0, 1));
    return std::move(result_);
  }

 private:
  static constexpr std::size_t kProbes = 16;

  // `weight` is what the atom adds to the bin's place in the order of the bins.
  Status Place(std::uint32_t atom, std::uint64_t cost, std::uint64_t weight) {
    if (!room_.capped()) {
      const std::uint32_t bin = least_.bin();
      least_.ReplaceLeast(least_.key() + least_.KeyOf(weight, 0));
      result_.bin_of[atom] = bin;
      result_.loads[bin] += cost;
      return {};
    }
    std::array<Key, kProbes> full;
    std::size_t probes = 0;
    DropOutdated();
    while (!least_.empty() && probes < kProbes && !room_.Fits(atom, least_.bin())) {
      full[probes++] = least_.key();
      least_.Pop();
      DropOutdated();
    }
    std::uint32_t bin = input_.bins;
    if (!least_.empty() && probes < kProbes) bin = least_.bin();
    for (std::size_t i = 0; i < probes; ++i) least_.Push(full[i]);
    if (bin == input_.bins) bin = most_room_.Find(atom);
    if (bin == input_.bins) return NoRoom(input_, atom);
    room_.Add(atom, bin);
    most_room_.Update(bin);
    places_[bin] += weight;
    result_.bin_of[atom] = bin;
    result_.loads[bin] += cost;
    return {};
  }

  // Bins only grow, so one that grew since it was put into the heap shows up at the top too early,
  // never too late: it is put right then.
  void DropOutdated() {
    while (!least_.empty()) {
      const std::uint32_t bin = least_.bin();
      if (input_.caps.atoms != 0 && room_.atoms(bin) >= input_.caps.atoms) {
        least_.Pop();
        continue;
      }
      const Key key = least_.KeyOf(places_[bin], bin);
      if (key == least_.key()) return;
      least_.ReplaceLeast(key);
    }
  }

  const BalanceInput& input_;
  const CostOrder& order_;
  Room room_;
  MostRoom most_room_;
  LeastBin<Key> least_;
  std::vector<std::uint64_t> places_;  // with caps: a bin's place in the order of the bins
  Assignment result_;
};

}  // namespace

Result<Assignment> PlaceLongestFirst(const BalanceInput& input, const CostOrder& order) {
  std::uint64_t sum = 0;
  for (const std::uint64_t cost : order.costs) sum += cost;
  const int bin_bits = std::bit_width(input.bins - 1U);
  // No load is above the sum, nor above the number of atoms that cost nothing.
  const int load_bits = std::bit_width(std::max<std::uint64_t>(sum, order.costs.size()));
  if (load_bits + bin_bits <= 64) {
    return Placer<std::uint64_t>(input, order, bin_bits).Run();
  }
  return Placer<Uint128>(input, order, bin_bits).Run();
}

}  // namespace widestream::balance_internal
