#include "engine/plan/layout.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <utility>

#include "engine/base/format_text.h"

namespace widestream {
namespace {

using Load = std::pair<std::uint64_t, std::uint32_t>;  // (cost, number): ties by number
using MinHeap = std::priority_queue<Load, std::vector<Load>, std::greater<>>;

std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
std::uint64_t RoundUp(std::uint64_t a, std::uint64_t multiple) {
  return CeilDiv(a, multiple) * multiple;
}

std::vector<std::uint32_t> MostExpensiveFirst(const std::vector<std::uint64_t>& costs) {
  std::vector<std::uint32_t> order(costs.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return costs[a] != costs[b] ? costs[a] > costs[b] : a < b;
  });
  return order;
}

// Bins of atoms, and what they cost.
struct Bins {
  std::vector<std::vector<std::uint32_t>> atoms;
  std::vector<std::uint64_t> costs;

  explicit Bins(std::size_t count) : atoms(count), costs(count, 0) {}
  void Put(std::uint32_t bin, std::uint32_t atom, std::uint64_t cost) {
    atoms[bin].push_back(atom);
    costs[bin] += cost;
  }
};

// Longest processing time first, at most `capacity` atoms a bin.
Bins BalanceCounts(const std::vector<std::uint64_t>& costs, std::size_t count,
                   std::size_t capacity) {
  Bins bins(count);
  MinHeap heap;
  for (std::uint32_t b = 0; b < count; ++b) heap.push({0, b});
  for (const std::uint32_t atom : MostExpensiveFirst(costs)) {
    const std::uint32_t bin = heap.top().second;
    heap.pop();
    bins.Put(bin, atom, costs[atom]);
    if (bins.atoms[bin].size() < capacity) heap.push({bins.costs[bin], bin});
  }
  return bins;
}

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// Longest processing time first under a cap of tokens a bin (0 = none): the cheapest bin, or of the
// next 15 the first that has room, or the one with most room. Empty if an atom fits nowhere.
std::optional<Bins> BalanceTokens(const std::vector<std::uint64_t>& costs,
                                  const std::vector<std::uint64_t>& tokens, std::size_t count,
                                  std::uint64_t cap, std::size_t most_atoms) {
  constexpr int kProbes = 16;
  Bins bins(count);
  std::vector<std::uint64_t> used(count, 0);
  std::set<Load> by_cost;
  std::set<Load> by_used;
  for (std::uint32_t b = 0; b < count; ++b) {
    by_cost.insert({0, b});
    by_used.insert({0, b});
  }
  for (const std::uint32_t atom : MostExpensiveFirst(costs)) {
    const auto fits = [&](std::uint32_t bin) {
      return (cap == 0 || used[bin] + tokens[atom] <= cap) && bins.atoms[bin].size() < most_atoms;
    };
    auto place = by_cost.begin();
    if (cap != 0 || most_atoms != kNoLimit) {
      int probes = 0;
      while (place != by_cost.end() && probes < kProbes && !fits(place->second)) {
        ++place;
        ++probes;
      }
      if (place == by_cost.end() || probes == kProbes) {
        const std::uint32_t roomiest = by_used.begin()->second;
        if (!fits(roomiest)) return std::nullopt;
        place = by_cost.find({bins.costs[roomiest], roomiest});
      }
    }
    const std::uint32_t bin = place->second;
    auto cost_node = by_cost.extract(place);
    auto used_node = by_used.extract(Load{used[bin], bin});
    bins.Put(bin, atom, costs[atom]);
    used[bin] += tokens[atom];
    cost_node.value().first = bins.costs[bin];
    used_node.value().first = used[bin];
    by_cost.insert(std::move(cost_node));
    by_used.insert(std::move(used_node));
  }
  return bins;
}

// In order, each atom where its first token falls when the tokens are cut evenly; one atom a bin
// when there are enough bins.
std::optional<Bins> CutTokens(const std::vector<std::uint64_t>& costs,
                              const std::vector<std::uint64_t>& tokens, std::size_t count,
                              std::uint64_t cap, std::size_t most_atoms) {
  __extension__ using Uint128 = unsigned __int128;
  Bins bins(count);
  std::vector<std::uint64_t> used(count, 0);
  const std::uint64_t total = std::accumulate(tokens.begin(), tokens.end(), std::uint64_t{0});
  std::uint64_t before = 0;
  for (std::uint32_t atom = 0; atom < costs.size(); ++atom) {
    const auto bin =
        count >= costs.size() ? atom : static_cast<std::uint32_t>(Uint128{before} * count / total);
    bins.Put(bin, atom, costs[atom]);
    used[bin] += tokens[atom];
    before += tokens[atom];
    if ((cap != 0 && used[bin] > cap) || bins.atoms[bin].size() > most_atoms) return std::nullopt;
  }
  return bins;
}

// Fewest bins that any layout under the cap needs: by their sum, and as no bin holds k of the atoms
// longer than cap / k.
std::uint64_t LeastBins(const std::vector<std::uint64_t>& tokens, std::uint64_t cap) {
  if (cap == 0) return 1;
  std::uint64_t total = 0;
  std::uint64_t half = 0;
  std::uint64_t third = 0;
  for (const std::uint64_t t : tokens) {
    total += t;
    if (2 * t > cap) ++half;
    if (3 * t > cap) ++third;
  }
  return std::max({std::uint64_t{1}, CeilDiv(total, cap), half, CeilDiv(third, 2)});
}

// Bins to ranks, `per_rank` each, the most expensive first; a rank's dearest microbatch comes
// first, so that microbatches with the same number are alike on all ranks.
std::vector<std::vector<std::uint32_t>> BinsToRanks(const Bins& bins, std::uint32_t ranks,
                                                    std::size_t per_rank, bool balance) {
  std::vector<std::vector<std::uint32_t>> result(ranks);
  if (!balance) {
    for (std::uint32_t b = 0; b < bins.atoms.size(); ++b) result[b / per_rank].push_back(b);
    return result;
  }
  return BalanceCounts(bins.costs, ranks, per_rank).atoms;
}

}  // namespace

LayoutOptions LayoutOptionsOf(const JobSpec& job) {
  const BatchSpec& batch = job.batch;
  LayoutOptions options;
  options.layout = batch.layout;
  options.sequence_length = batch.sequence_length;
  options.microbatch_tokens = batch.microbatch_tokens;
  options.balance = job.balance == "lpt";
  options.cross_document_attention = batch.cross_document_attention;
  options.mesh = job.mesh;
  options.padding = PaddingOf(batch, job.mesh);
  options.microbatch_pieces = batch.microbatch_pieces;
  if (batch.fixed_shapes) options.rows = batch.rows;
  return options;
}

std::uint64_t PieceCost(std::uint64_t length) { return length * (length + kLinearTokens); }

Result<std::vector<RankPlan>> BuildLayout(const LayoutOptions& options, const StepPlan& plan) {
  const bool thd = options.layout == BatchLayout::kThd;
  const std::uint32_t dp = options.mesh.dp;
  const std::uint64_t group = MicrobatchMultiple(options.mesh);
  // The padding of a microbatch counts, too: it fits below the cap whatever the pieces leave.
  const std::uint64_t cap = options.padding.CapForPieces(options.microbatch_tokens);
  const std::size_t most_atoms =
      options.microbatch_pieces == 0 ? kNoLimit : options.microbatch_pieces;
  std::vector<std::uint64_t> costs;
  std::vector<std::uint64_t> tokens;
  if (thd) {
    for (const Piece& piece : plan.pieces) {
      costs.push_back(PieceCost(piece.length));
      tokens.push_back(options.padding.Piece(piece.length));
      if (options.microbatch_tokens != 0 && tokens.back() > cap) {
        const std::uint64_t padded = options.padding.Microbatch(tokens.back());
        return Status::ResourceExhausted(
            StrCat("a piece of ", piece.length, " tokens",
                   padded == piece.length ? "" : StrCat(" (", padded, " with padding)"),
                   " exceeds microbatch_tokens ", options.microbatch_tokens,
                   "; raise microbatch_tokens or lower max_piece_tokens"));
      }
    }
  } else {
    if (cap != 0 && cap < options.sequence_length) {
      return Status::ResourceExhausted(StrCat("a row of ", options.sequence_length,
                                              " tokens exceeds microbatch_tokens ", cap,
                                              "; raise microbatch_tokens"));
    }
    for (const std::vector<std::uint32_t>& row : plan.rows) {
      std::uint64_t cost = 0;
      std::uint64_t length = 0;
      for (const std::uint32_t piece : row) {
        cost += PieceCost(plan.pieces[piece].length);
        length += plan.pieces[piece].length;
      }
      costs.push_back(options.cross_document_attention ? PieceCost(length) : cost);
    }
  }

  std::uint64_t microbatches = group;
  std::size_t rows_each = 0;
  std::optional<Bins> bins;
  if (thd) {
    const std::uint64_t least =
        std::max(LeastBins(tokens, cap), CeilDiv(tokens.size(), most_atoms));
    microbatches = RoundUp(CeilDiv(least, dp), group);
    while (true) {
      const std::size_t count = static_cast<std::size_t>(dp) * microbatches;
      bins = options.balance ? BalanceTokens(costs, tokens, count, cap, most_atoms)
                             : CutTokens(costs, tokens, count, cap, most_atoms);
      if (bins) break;
      // Each failure costs a full attempt, so beyond 32 groups the search goes on in larger steps.
      microbatches += group * std::max<std::uint64_t>(1, microbatches / group / 32);
    }
  } else {
    const std::uint64_t rows = std::max<std::uint64_t>(plan.rows.size(), options.rows);
    const std::uint64_t fit =
        cap == 0 ? std::max<std::uint64_t>(rows, 1) : cap / options.sequence_length;
    microbatches = RoundUp(std::max<std::uint64_t>(1, CeilDiv(rows, dp * fit)), group);
    const std::size_t count = static_cast<std::size_t>(dp) * microbatches;
    rows_each = CeilDiv(rows, count);
    if (options.balance) {
      bins = BalanceCounts(costs, count, rows_each);
    } else {
      bins.emplace(count);
      for (std::uint32_t row = 0; row < costs.size(); ++row) {
        bins->Put(static_cast<std::uint32_t>(row / rows_each), row, costs[row]);
      }
    }
  }

  std::vector<RankPlan> ranks(dp);
  const auto assigned = BinsToRanks(*bins, dp, microbatches, options.balance);
  for (std::uint32_t r = 0; r < dp; ++r) {
    std::uint64_t cost = 0;
    for (const std::uint32_t b : assigned[r]) {
      std::vector<std::uint32_t>& atoms = bins->atoms[b];
      std::sort(atoms.begin(), atoms.end());
      MicrobatchPlan microbatch;
      if (thd) {
        microbatch.rows.push_back(std::move(atoms));
      } else {
        for (const std::uint32_t row : atoms) microbatch.rows.push_back(plan.rows[row]);
        microbatch.rows.resize(rows_each);
      }
      cost += bins->costs[b];
      ranks[r].microbatches.push_back(std::move(microbatch));
    }
    ranks[r].cost = static_cast<double>(cost);
  }
  return ranks;
}

}  // namespace widestream
