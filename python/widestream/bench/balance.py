"""Few atoms a rank: our balancer against plain longest-first, and against branch and bound."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from widestream.bench.harness import Figure, commit, in_process
from widestream.bench.planner import check, costs_of, lengths_of


def run(*, quick: bool) -> Iterator[Figure]:
    """A figure for each number of atoms a rank: ours over the best, the worst of all cases."""
    for each in (2, 4, 8, 16):
        arguments = {"each": each, "cases": 3 if quick else 50, "large": 20 if quick else 1024}
        result = in_process("widestream.bench.balance", arguments, {0})
        yield Figure(
            id=f"balance-{each}",
            case=f"{each} atoms a rank: {result['proven']} of {arguments['cases']} small cases proven, the lower bound for the others; and "
            f"{arguments['large']} ranks, where ours is {result['large']:.5f} and longest-first "
            f"{result['large_longest_first']:.5f} x the lower bound",
            value=result["worst"],
            unit="dearest rank / best",
            better="lower",
            goal=1.01,
            met=None if quick else result["worst"] <= 1.01,
            against={"name": "longest-first on the same cases", "value": result["worst_longest_first"]},
            floor={"name": "proven best or lower bound", "value": 1.0},
            checked="each atom in one rank, loads add up, never dearer than longest-first",
            pairs=[[result["worst"], result["worst_longest_first"]]],
            commit=commit(),
        )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """Small cases with proofs, and one large one."""
    from widestream import _core

    each = arguments["each"]
    ranks = max(2, 12 // each)
    worst = worst_longest_first = 1.0
    proven = 0

    def both(atoms: int, bins: int, seed: int) -> tuple[Any, int, int, int]:
        costs = costs_of(lengths_of("wlb_8k", atoms, seed), 49_152)
        bin_of, loads, most, bound = _core.balance(costs, bins)
        check(costs, bins, bin_of, loads)
        plain = _core.balance(costs, bins, "longest_first")[2]
        if most > plain:
            raise RuntimeError("dearer than longest-first; void")
        return costs, most, plain, bound

    for seed in range(arguments["cases"]):
        costs, most, plain, _ = both(each * ranks, ranks, seed)
        # Where the proof takes too long, the lower bound stands in for the best: never in our favour.
        _, _, best, bound = _core.balance(costs, ranks, "exact")
        proven += best == bound
        worst = max(worst, most / bound)
        worst_longest_first = max(worst_longest_first, plain / bound)
    _, most, plain, bound = both(each * arguments["large"], arguments["large"], 1)
    return {
        "worst": worst,
        "worst_longest_first": worst_longest_first,
        "proven": proven,
        "large": most / bound,
        "large_longest_first": plain / bound,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
