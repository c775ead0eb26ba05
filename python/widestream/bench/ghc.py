"""P5: the fused operators of Virtual Width Networks against PyTorch's own, eager and compiled, and the memory floor."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import Any

from widestream.bench.harness import Figure, commit, in_process

_WIDTHS = (256, 1024, 2048, 4096)
_SLOTS = ((1, 4), (2, 3), (4, 8), (8, 16), (8, 64))
_DTYPES = ("float32", "bfloat16")
_TOKENS = 4096
# Where the arithmetic of plain vector code stays under what memory brings.
_BANDWIDTH_BOUND = ((1, 4), (2, 3))
# Freed memory stays with the process, for all that are measured: page faults are no part of any of them.
_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 28),
}


def _ratios(cell: dict[str, Any]) -> tuple[float, float | None]:
    """(eager over fused, best compiled mode over fused), by medians."""
    medians = [statistics.median(times) for times in zip(*cell["rounds"], strict=True)]
    return medians[1] / medians[0], min(medians[2:]) / medians[0] if len(medians) > 2 else None


def _label(cell: dict[str, Any], threads: int) -> str:
    return f"D {cell['d_model']}, (m,n) = ({cell['m']},{cell['n']}), {cell['dtype']}, {threads} threads"


def run(*, quick: bool, pairs: int = 3) -> Iterator[Figure]:
    """``pairs``: rounds in which the fused path, eager and compiled take turns."""
    widths, slots, threads = (_WIDTHS, _SLOTS, (1, 2)) if not quick else ((64,), ((2, 3),), (1,))
    # The composite path may be compiled in either; its best counts.
    modes = ["default", "max-autotune-no-cudagraphs"] if not quick else []
    tokens = 64 if quick else _TOKENS
    cpus = sorted(os.sched_getaffinity(0))
    for count in threads:
        if count > len(cpus):
            continue
        done: list[dict[str, Any]] = []
        head: dict[str, Any] = {}
        for d_model in widths:
            for m, n in slots:
                cells = [
                    {
                        "d_model": d_model,
                        "m": m,
                        "n": n,
                        "dtype": dtype,
                        "tokens": tokens,
                        "pairs": 1 if quick else pairs,
                        "modes": modes,
                    }
                    for dtype in _DTYPES
                ]
                arguments = {"threads": count, "cells": cells}
                head = in_process("widestream.bench.ghc_run", arguments, set(cpus[:count]), _MALLOC)
                for cell in head["cells"]:
                    done.append(cell)
                    yield _cell_figure(cell, head, count)
        yield from _summary(done, head, count, quick)


def _cell_figure(cell: dict[str, Any], head: dict[str, Any], threads: int) -> Figure:
    eager, compiled = _ratios(cell)
    return Figure(
        id="P5-cell",
        case=f"{_label(cell, threads)}, {cell['tokens']} tokens, forward and backward",
        value=eager,
        unit="times eager",
        better="higher",
        goal=None,
        met=None,
        against={"name": "eager composite", "version": head["torch"], "times_compiled": compiled},
        floor={"name": "share of the copy bandwidth, write and next read", "value": cell["floor_share"]},
        checked=f"outputs and gradients within {cell['error']:.1e} of float64; {head['instructions']}",
        pairs=cell["rounds"],
        commit=commit(),
    )


def _summary(cells: list[dict[str, Any]], head: dict[str, Any], threads: int, quick: bool) -> Iterator[Figure]:
    ratios = [_ratios(cell) for cell in cells]
    eager = [ratio[0] for ratio in ratios]
    compiled = [ratio[1] for ratio in ratios if ratio[1] is not None]
    means = [statistics.geometric_mean([min(times[k] for times in cell["rounds"]) for cell in cells]) for k in (0, 1)]
    worst = min(range(len(cells)), key=lambda index: eager[index])
    bound = [cell["floor_share"] for cell in cells if (cell["m"], cell["n"]) in _BANDWIDTH_BOUND]
    rows: list[tuple[str, str, float, str, float]] = [
        ("P5-eager", f"geometric mean of {len(cells)} cells", statistics.geometric_mean(eager), "times eager", 4.0),
        ("P5-worst", _label(cells[worst], threads), eager[worst], "times eager", 1.5),
        (
            "P5-floor",
            "geometric mean of (1,4) and (2,3)",
            statistics.geometric_mean(bound),
            "of the copy bandwidth",
            0.6,
        ),
    ]
    if compiled:
        value = statistics.geometric_mean(compiled)
        rows.append(("P5-compiled", f"geometric mean of {len(compiled)} cells", value, "times torch.compile", 2.0))
    for name, case, value, unit, goal in rows:
        yield Figure(
            id=name,
            case=f"{case}; {threads} threads, {head['instructions']}, {head['bandwidth'] / 1e9:.1f} GB/s copied",
            value=value,
            unit=unit,
            better="higher",
            goal=goal,
            met=None if quick else value >= goal,
            against={"name": "PyTorch", "version": head["torch"]},
            floor=None,
            checked="every cell against float64 before it was timed",
            pairs=[means],
            commit=commit(),
        )
