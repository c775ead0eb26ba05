"""A million documents into rows of 8k and 128k tokens: milliseconds and utilisation, against next-fit."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from widestream.bench.harness import Figure, commit, in_process
from widestream.bench.planner import lengths_of

_CASES = {"wlb_8k": 8_192, "lognormal_32k": 131_072}
# Best-fit decreasing leaves so much of the rows empty at most on these lengths.
_LEAST_UTILISATION = 0.999


def run(*, quick: bool, pairs: int = 5) -> Iterator[Figure]:
    """Two figures a window: milliseconds of processor time, and the share of the opened rows' tokens in use."""
    documents = 5_000 if quick else 1_000_000
    for name, window in _CASES.items():
        arguments = {"name": name, "documents": documents, "window": window}
        runs = [in_process("widestream.bench.pack", arguments, {0}) for _ in range(1 if quick else pairs)]
        milliseconds = float(np.median([run["milliseconds"] for run in runs]))
        last = runs[-1]
        case = f"{documents} documents ({name}) into rows of {window} tokens, one core"
        yield Figure(
            id=f"pack-{window}-milliseconds",
            case=case,
            value=milliseconds,
            unit="milliseconds of processor time",
            better="lower",
            goal=60.0,
            met=None if quick else milliseconds <= 60,
            against={"name": "next-fit in Python", "value": last["next_fit_milliseconds"]},
            floor=None,
            checked="every document in one row, no row too long",
            pairs=[[run["milliseconds"], run["next_fit_milliseconds"]] for run in runs],
            commit=commit(),
        )
        yield Figure(
            id=f"pack-{window}-utilisation",
            case=case,
            value=last["utilisation"],
            unit="share of tokens of the opened rows",
            better="higher",
            goal=_LEAST_UTILISATION,
            met=None if quick else last["utilisation"] >= _LEAST_UTILISATION,
            against={"name": "next-fit", "value": last["next_fit"]},
            floor=None,
            checked="every document in one row, no row too long",
            pairs=[[last["utilisation"], last["next_fit"]]],
            commit=commit(),
        )


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """One packing, timed and checked, and next-fit of the same documents."""
    from widestream import _core

    window = arguments["window"]
    lengths = lengths_of(arguments["name"], arguments["documents"])
    total = int(lengths.sum(dtype=np.int64))
    rows = total // window + 1 + len(lengths) // 100
    begin = time.process_time()
    packed: Any = _core.pack_rows(lengths, rows, window)
    milliseconds = (time.process_time() - begin) * 1e3
    row_of: npt.NDArray[np.uint32] = packed
    if len(row_of) != len(lengths) or int(row_of.max()) >= rows:
        raise RuntimeError("a document has no row; void")
    used = np.bincount(row_of, weights=lengths, minlength=rows)
    if used.max() > window or int(used.sum()) != total:
        raise RuntimeError("a row is too long; void")
    begin = time.process_time()
    next_fit, free = 0, 0
    for length in lengths.tolist():
        if length > free:
            next_fit, free = next_fit + 1, window
        free -= length
    next_fit_milliseconds = (time.process_time() - begin) * 1e3
    return {
        "milliseconds": milliseconds,
        "utilisation": total / (int((used > 0).sum()) * window),
        "next_fit": total / (next_fit * window),
        "next_fit_milliseconds": next_fit_milliseconds,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
