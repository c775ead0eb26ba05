"""Figures, paired runs in processes of their own, and the table of workloads."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from widestream.errors import InternalError, InvalidArgumentError

WORKLOADS: dict[str, str] = {
    "text": "P1a: Parquet -> r50k -> packed batches, one core, against a torch DataLoader with tiktoken",
    "delivery": "hand-over, bandwidth and memory of one host that feeds the ranks of a node",
    "tokenizer": "P7: MB/s of the tokenizer alone, against fastokens, tiktoken and tokenizers; threads, decode, load, memory",
    "wait": "P10: how long a training waits for data, and its step beside that on mock data",
    "ghc": "P5: the fused VWN operators, forward and backward, against eager and compiled PyTorch and the memory floor",
    "planner": "P3: a million atoms to 10,000 ranks: time, and the dearest rank over the lower bound; peers",
    "balance": "2 to 16 atoms a rank: against branch and bound and plain longest-first",
    "pack": "a million documents into rows of 8k and 128k tokens: time and utilisation",
    "overhead": "engine time a record with the tokenizer excluded, and import time",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One line of ``widestream bench``: see docs/benchmarks.md for the fields."""

    id: str
    case: str
    value: float
    unit: str
    better: str
    goal: float | None
    met: bool | None
    against: dict[str, Any] | None
    floor: dict[str, Any] | None
    checked: str
    pairs: list[list[float]]
    commit: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def run_workload(name: str, *, quick: bool, options: dict[str, Any] | None = None) -> Iterator[Figure]:
    """Yields the figures of a workload. ``quick``: the tiny size that only shows that it works; ``met`` is None."""
    if name not in WORKLOADS:
        raise InvalidArgumentError(f"there is no workload {name!r}; there are {', '.join(sorted(WORKLOADS))}")
    workload = importlib.import_module(f"widestream.bench.{name}")
    run: Callable[..., Iterator[Figure]] = workload.run
    yield from run(quick=quick, **(options or {}))


def in_process(
    module: str,
    arguments: dict[str, Any],
    cpus: set[int] | None = None,
    variables: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Runs ``python -m module JSON`` and returns the JSON object that it prints last.

    ``cpus``: pinned to these. ``variables``: further ones of its environment.
    """
    environment = dict(os.environ, TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1", **(variables or {}))
    process = subprocess.run(
        [sys.executable, "-m", module, json.dumps(arguments)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        preexec_fn=(lambda: os.sched_setaffinity(0, cpus)) if cpus else None,
    )
    if process.returncode != 0:
        raise InternalError(f"{module} failed with exit code {process.returncode}: {process.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def ratio_of_medians(pairs: list[list[float]]) -> float:
    """Median of the first of each pair over the median of the second."""
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def commit() -> str:
    """The commit of the checkout that this runs from, "" outside one."""
    from widestream import __path__ as folders

    result = subprocess.run(
        ["git", "-C", folders[0], "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip()
