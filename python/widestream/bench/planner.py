"""P3: a million atoms to 10,000 ranks, three length distributions, against verl-style and unsorted assignments.

The clock is the processor's time of one thread. Every assignment is checked before it is timed as a figure: each atom
in one bin, and loads that add up.
"""

from __future__ import annotations

import heapq
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from widestream.bench.harness import Figure, commit, in_process

_DISTRIBUTIONS = {"wlb_8k": (49_152, 8_192), "prolong_64k": (24_576, 65_536), "lognormal_32k": (49_152, 32_768)}


def lengths_of(name: str, count: int, seed: int = 1) -> npt.NDArray[np.uint32]:
    """Document lengths in tokens, int in [1, window]: a uniform body with a heavy tail, a lognormal with a heavy tail, or a
    lognormal."""
    generator = np.random.default_rng(seed)
    longest = _DISTRIBUTIONS[name][1]
    if name == "wlb_8k":
        body = generator.uniform(1, 6251, count)
        tail = 6251 * (1 - generator.random(count)) ** (-1 / 0.9)
        lengths = np.where(generator.random(count) < 0.028, tail, body)
    elif name == "prolong_64k":
        lengths = generator.lognormal(7.68, 0.74, count)
        lengths = np.where(generator.random(count) < 0.0006, longest, lengths)
    else:
        lengths = generator.lognormal(6.5, 1.3, count)
    return np.clip(lengths, 1, longest).astype(np.uint32)


def costs_of(lengths: npt.NDArray[np.uint32], linear_tokens: int) -> npt.NDArray[np.uint64]:
    """``L * (L + linear_tokens)``."""
    wide = lengths.astype(np.uint64)
    return wide * (wide + np.uint64(linear_tokens))


def check(costs: npt.NDArray[np.uint64], bins: int, bin_of: npt.NDArray[Any], loads: npt.NDArray[Any]) -> None:
    """Raises RuntimeError unless each atom is in one bin and the loads are their sums."""
    from widestream.errors import InternalError

    if len(bin_of) != len(costs) or len(loads) != bins:
        raise InternalError("bench: atoms or bins are missing from an assignment; void")
    exact = np.zeros(bins, dtype=np.uint64)
    np.add.at(exact, bin_of, costs)
    if not np.array_equal(exact, loads):
        raise InternalError("bench: the loads of an assignment do not add up; void")


def unsorted_greedy(costs: npt.NDArray[np.uint64], bins: int) -> npt.NDArray[np.uint64]:
    """Loads when each atom goes to the least loaded bin, in the order given (with a heap; verl's scans)."""
    heap = [(0, index) for index in range(bins)]
    for cost in costs.tolist():
        load, index = heap[0]
        heapq.heapreplace(heap, (load + cost, index))
    loads = np.zeros(bins, dtype=np.uint64)
    for load, index in heap:
        loads[index] = load
    return loads


def equal_size_differencing(costs: npt.NDArray[np.uint64], bins: int) -> npt.NDArray[np.uint64]:
    """Loads of verl's ``karmarkar_karp(equal_size=True)``: states of one atom a bin, merged the widest spread first, the
    heaviest bins of one to the lightest of the other. The atoms must be a multiple of ``bins``."""
    ordered = np.sort(costs)
    states = [ordered[at : at + bins] for at in range(0, len(ordered), bins)]
    heap = [(-int(state[-1] - state[0]), index) for index, state in enumerate(states)]
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[1], heapq.heappop(heap)[1]
        merged = np.sort(states[first] + states[second][::-1])
        states.append(merged)
        heapq.heappush(heap, (-int(merged[-1] - merged[0]), len(states) - 1))
    return states[heap[0][1]]


def run(*, quick: bool, pairs: int = 3) -> Iterator[Figure]:
    """Two figures a distribution: seconds, and the dearest rank over the lower bound."""
    atoms, ranks = (2_000, 20) if quick else (1_000_000, 10_000)
    for name in _DISTRIBUTIONS:
        arguments = {"name": name, "atoms": atoms, "ranks": ranks}
        runs = [in_process("widestream.bench.planner", arguments, {0}) for _ in range(1 if quick else pairs)]
        seconds = float(np.median([run["seconds"] for run in runs]))
        last = runs[-1]
        case = f"{name}: {atoms} atoms to {ranks} ranks, one core, processor time"
        peers = (
            f"unsorted greedy {last['greedy']:.4f}, equal-size differencing (verl) {last['equal_size']:.4f} x the bound"
        )
        yield Figure(
            id="P3-seconds",
            case=case,
            value=seconds,
            unit="seconds",
            better="lower",
            goal=0.3,
            met=None if quick else seconds <= 0.3,
            against={"name": "unsorted greedy in Python", "value": last["greedy_seconds"]},
            floor=None,
            checked="each atom in one rank, loads add up",
            pairs=[[run["seconds"], run["greedy_seconds"]] for run in runs],
            commit=commit(),
        )
        yield Figure(
            id="P3-ratio",
            case=case,
            value=last["ratio"],
            unit="dearest rank / lower bound",
            better="lower",
            goal=1.001,
            met=None if quick else last["ratio"] <= 1.001,
            against={"name": peers, "value": last["equal_size"]},
            floor={"name": "lower bound", "value": 1.0},
            checked="each atom in one rank, loads add up",
            pairs=[[run["ratio"], run["equal_size"]] for run in runs],
            commit=commit(),
        )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """One assignment by the engine, timed, and its peers on the same atoms."""
    from widestream import _core

    name, atoms, ranks = arguments["name"], arguments["atoms"], arguments["ranks"]
    costs = costs_of(lengths_of(name, atoms), _DISTRIBUTIONS[name][0])
    begin = time.process_time()
    bin_of, loads, most, bound = _core.balance(costs, ranks)
    seconds = time.process_time() - begin
    check(costs, ranks, bin_of, loads)
    begin = time.process_time()
    greedy = unsorted_greedy(costs, ranks)
    greedy_seconds = time.process_time() - begin
    equal_size = equal_size_differencing(costs, ranks)
    for other in (greedy, equal_size):
        if int(other.sum()) != int(costs.sum()):
            raise RuntimeError("a peer lost an atom; void")
    return {
        "seconds": seconds,
        "ratio": most / bound,
        "greedy": float(greedy.max()) / bound,
        "greedy_seconds": greedy_seconds,
        "equal_size": float(equal_size.max()) / bound,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
