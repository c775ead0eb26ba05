"""P10: how long a training waits for its data, and whether data makes its steps longer.

The job is trained as a user does, in processes of their own, in turn on its data and on mock data (every step the first
batch, nothing runs beside the trainer).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from widestream.bench.harness import Figure, commit, ratio_of_medians
from widestream.errors import InternalError, InvalidArgumentError

_WARM_UP_STEPS = 5


def run(*, quick: bool, data: str | None = None, pairs: int = 3) -> Iterator[Figure]:
    """``data``: a job file with a model."""
    if data is None:
        raise InvalidArgumentError("bench wait needs --data JOB, a job file that can be trained")
    steps = 12 if quick else 100
    samples: list[list[float]] = []
    waits: list[float] = []
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        for pair in range(1 if quick else pairs):
            real = _train(Path(data), Path(folder) / f"data{pair}", steps, mock=False)
            mock = _train(Path(data), Path(folder) / f"mock{pair}", steps, mock=True)
            waits += [100 * record["wait_seconds"] / record["seconds"] for record in real]
            samples.append([statistics.median(record["seconds"] for record in run) for run in (real, mock)])
    p99 = sorted(waits)[min(len(waits) - 1, int(0.99 * len(waits)))]
    yield Figure(
        id="P10-wait",
        case=f"{Path(data).name}: wait for a batch, the 99th of 100 of {len(waits)} steps",
        value=p99,
        unit="% of the step's time",
        better="lower",
        goal=1.0,
        met=None if quick else p99 < 1.0,
        against=None,
        floor={"name": "median wait, % of the step's time", "value": statistics.median(waits)},
        checked="every step was logged, with its tokens",
        pairs=[[wait] for wait in waits],
        commit=commit(),
    )
    value = ratio_of_medians(samples)
    yield Figure(
        id="P10-step",
        case=f"{Path(data).name}: median time of a step on data over that on mock data, one process each",
        value=value,
        unit="times the step on mock data",
        better="lower",
        goal=1.01,
        met=None if quick else value <= 1.01,
        against=None,
        floor={"name": "step on mock data, milliseconds", "value": 1e3 * statistics.median(b for _, b in samples)},
        checked="both trained the same number of steps",
        pairs=samples,
        commit=commit(),
    )


def _train(job: Path, run_dir: Path, steps: int, *, mock: bool) -> list[dict[str, Any]]:
    """The records of the steps after the first ones, which fill the pipeline."""
    from widestream.train import read_metrics

    settings = {
        "run_dir": run_dir,
        "training.steps": steps,
        "training.validate_every": steps,
        "training.checkpoint_every": steps,
    }
    command = [sys.executable, "-m", "widestream.cli", "train", str(job)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run(
        [*command, *(["--mock-data"] if mock else [])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    if done.returncode != 0:
        raise InternalError(f"the training failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    records = read_metrics(run_dir / "metrics.jsonl")
    if len(records) != steps or not all(sum(record["tokens_by_source"].values()) for record in records):
        raise InternalError(f"{len(records)} of {steps} steps were logged; the figure is void")
    # The last step also validates and writes a checkpoint.
    return records[_WARM_UP_STEPS:-1]
