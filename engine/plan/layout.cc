#include "engine/plan/layout.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/format_text.h"
#include "engine/plan/cost_model.h"
#include "engine/plan/cost_order.h"

namespace widestream {
namespace {

std::uint64_t CeilDiv(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }
std::uint64_t RoundUp(std::uint64_t a, std::uint64_t multiple) {
  return CeilDiv(a, multiple) * multiple;
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

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// Ranks balanced with each other.
std::uint32_t GroupSize(const LayoutOptions& options) {
  return options.group_size == 0 ? options.mesh.dp : options.group_size;
}

// None if the caps leave some atom without room.
Result<std::optional<Bins>> Balanced(const LayoutOptions& options,
                                     const std::vector<std::uint64_t>& costs,
                                     const std::vector<std::uint64_t>& tokens,
                                     const BalanceCaps& caps, std::uint64_t microbatches) {
  const auto bins_in = [&](std::uint32_t ranks) {
    return static_cast<std::uint32_t>(ranks * microbatches);
  };
  const BalanceInput input{.costs = costs,
                           .tokens = tokens,
                           .memory = {},
                           .bins = bins_in(options.mesh.dp),
                           .caps = caps};
  Result<Assignment> found = BalanceInGroups(input, options.balance, bins_in(GroupSize(options)));
  if (!found.ok()) {
    if (found.status().code() == StatusCode::kResourceExhausted) return std::optional<Bins>();
    return found.status();
  }
  Bins bins(0);
  bins.atoms = found->Bins();
  bins.costs = std::move(found->loads);
  return std::optional<Bins>(std::move(bins));
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

// Bins to ranks, `per_rank` each; a rank's dearest microbatch comes first, so that microbatches
// with the same number are alike on all ranks.
Result<std::vector<std::vector<std::uint32_t>>> BinsToRanks(const LayoutOptions& options,
                                                            const Bins& bins,
                                                            std::uint32_t per_rank) {
  std::vector<std::vector<std::uint32_t>> result(options.mesh.dp);
  if (options.balance == BalanceMethod::kNone || per_rank == 1) {
    for (std::uint32_t b = 0; b < bins.atoms.size(); ++b) result[b / per_rank].push_back(b);
    return result;
  }
  const BalanceInput input{.costs = bins.costs,
                           .tokens = {},
                           .memory = {},
                           .bins = options.mesh.dp,
                           .caps = {.atoms = per_rank}};
  WS_ASSIGN_OR_RETURN(const Assignment found,
                      BalanceInGroups(input, BalanceMethod::kLpt, GroupSize(options)));
  result = found.Bins();
  for (std::vector<std::uint32_t>& rank : result) {
    std::sort(rank.begin(), rank.end(), [&](std::uint32_t a, std::uint32_t b) {
      return bins.costs[a] != bins.costs[b] ? bins.costs[a] > bins.costs[b] : a < b;
    });
  }
  return result;
}

// Of each atom: a piece in thd, else a row.
std::vector<std::uint64_t> AtomCosts(const LayoutOptions& options, const StepPlan& plan) {
  std::vector<std::uint64_t> costs;
  if (options.layout == BatchLayout::kThd) {
    costs.reserve(plan.pieces.size());
    for (const Piece& piece : plan.pieces) costs.push_back(PieceCost(options.cost, piece.length));
    return costs;
  }
  costs.reserve(plan.rows.size());
  for (const std::vector<std::uint32_t>& row : plan.rows) {
    std::uint64_t cost = 0;
    std::uint64_t length = 0;
    for (const std::uint32_t piece : row) {
      cost += PieceCost(options.cost, plan.pieces[piece].length);
      length += plan.pieces[piece].length;
    }
    costs.push_back(options.cross_document_attention ? PieceCost(options.cost, length) : cost);
  }
  return costs;
}

BalanceMethod MethodOf(std::string_view name) {
  if (name == "none") return BalanceMethod::kNone;
  if (name == "multifit") return BalanceMethod::kMultifit;
  return name == "karmarkar_karp" ? BalanceMethod::kKarmarkarKarp : BalanceMethod::kLpt;
}

}  // namespace

LayoutOptions LayoutOptionsOf(const JobSpec& job) {
  const BatchSpec& batch = job.batch;
  LayoutOptions options;
  options.layout = batch.layout;
  options.sequence_length = batch.sequence_length;
  options.microbatch_tokens = batch.microbatch_tokens;
  options.balance = MethodOf(job.balance);
  options.group_size = job.balance_group_size;
  options.cost = job.cost;
  options.cross_document_attention = batch.cross_document_attention;
  options.mesh = job.mesh;
  options.padding = PaddingOf(batch, job.mesh);
  options.microbatch_pieces = batch.microbatch_pieces;
  if (batch.fixed_shapes) options.rows = batch.rows;
  return options;
}

std::uint64_t RankCostBound(const LayoutOptions& options, const StepPlan& plan) {
  const std::vector<std::uint64_t> costs = AtomCosts(options, plan);
  const std::uint32_t size = GroupSize(options);
  const std::size_t groups = options.mesh.dp / size;
  std::uint64_t bound = 0;
  for (std::size_t group = 0; group < groups; ++group) {
    const std::size_t begin = costs.size() * group / groups;
    const std::size_t end = costs.size() * (group + 1) / groups;
    const CostOrder order = OrderByCost(std::span(costs).subspan(begin, end - begin));
    bound = std::max(bound, LoadLowerBound(order.costs, size, 0));
  }
  return bound;
}

Result<std::vector<RankPlan>> BuildLayout(const LayoutOptions& options, const StepPlan& plan) {
  const bool thd = options.layout == BatchLayout::kThd;
  const std::uint32_t dp = options.mesh.dp;
  const std::uint64_t group = MicrobatchMultiple(options.mesh);
  // The padding of a microbatch counts, too: it fits below the cap whatever the pieces leave.
  const std::uint64_t cap = options.padding.CapForPieces(options.microbatch_tokens);
  const std::size_t most_atoms =
      options.microbatch_pieces == 0 ? kNoLimit : options.microbatch_pieces;
  const bool in_order = options.balance == BalanceMethod::kNone;
  const std::vector<std::uint64_t> costs = AtomCosts(options, plan);
  std::vector<std::uint64_t> tokens;
  if (thd) {
    for (const Piece& piece : plan.pieces) {
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
      if (in_order) {
        bins = CutTokens(costs, tokens, count, cap, most_atoms);
      } else {
        const BalanceCaps caps{.atoms = options.microbatch_pieces, .tokens = cap};
        WS_ASSIGN_OR_RETURN(bins, Balanced(options, costs, tokens, caps, microbatches));
      }
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
    if (!in_order) {
      const BalanceCaps caps{.atoms = static_cast<std::uint32_t>(rows_each)};
      WS_ASSIGN_OR_RETURN(bins, Balanced(options, costs, tokens, caps, microbatches));
      if (!bins) return Status::Internal("layout: rows without room in microbatches made for them");
    } else {
      bins.emplace(count);
      for (std::uint32_t row = 0; row < costs.size(); ++row) {
        bins->Put(static_cast<std::uint32_t>(row / rows_each), row, costs[row]);
      }
    }
  }

  std::vector<RankPlan> ranks(dp);
  WS_ASSIGN_OR_RETURN(const auto assigned,
                      BinsToRanks(options, *bins, static_cast<std::uint32_t>(microbatches)));
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
