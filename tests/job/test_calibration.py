"""Calibration finds the constants that made the times, and refuses what does not show them."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from widestream.calibration import calibrate, read_steps
from widestream.errors import InvalidArgumentError


def steps(noise: float, count: int = 40, seed: int = 3):
    generator = np.random.default_rng(seed)
    lengths = [generator.integers(16, 2 ** generator.integers(6, 15), 30).tolist() for _ in range(count)]
    seconds = []
    for step in lengths:
        exact = 0.02 + sum(1e-5 * length + 4e-10 * length**2 for length in step)
        seconds.append(exact * (1 + noise * generator.standard_normal()))
    return lengths, seconds


def test_exact_times_give_back_their_constants():
    found = calibrate(*steps(0.0))
    assert found.linear_seconds[0] == pytest.approx(1e-5, rel=1e-6)
    assert found.quadratic_seconds[0] == pytest.approx(4e-10, rel=1e-6)
    assert found.constant_seconds[0] == pytest.approx(0.02, rel=1e-4)
    assert found.linear_tokens[0] == 25_000
    assert found.explained == pytest.approx(1)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    inside = 0
    for seed in range(100):
        found = calibrate(*steps(0.01, seed=seed))
        inside += abs(found.linear_tokens[0] - 25_000) <= found.linear_tokens[1]
    assert inside >= 88


def test_bad_measurements_are_refused():
    lengths, seconds = steps(0.0)
    with pytest.raises(InvalidArgumentError, match="too alike"):
        calibrate([[512] * 4] * 10, list(np.linspace(1, 2, 10)))
    with pytest.raises(InvalidArgumentError, match="explains"):
        calibrate(lengths, np.random.default_rng(1).uniform(1, 2, len(seconds)).tolist())
    with pytest.raises(InvalidArgumentError, match="expected at least 8"):
        calibrate(lengths[:5], seconds[:5])
    with pytest.raises(InvalidArgumentError, match="positive"):
        calibrate(lengths, [*seconds[1:], float("nan")])
    with pytest.raises(InvalidArgumentError, match="above 0"):
        calibrate(lengths, [0.02 + sum(1e-5 * n for n in step) - 1e-11 * sum(n * n for n in step) for step in lengths])


def test_a_file_of_steps(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"lengths": a, "seconds": b}) + "\n" for a, b in zip(*steps(0.0), strict=True)))
    assert calibrate(*read_steps(path)).linear_tokens[0] == 25_000
    path.write_text('{"lengths": [3, "4"], "seconds": 1}\n')
    with pytest.raises(InvalidArgumentError, match=r"steps.jsonl:1: expected"):
        read_steps(path)


def test_the_command_prints_what_the_job_takes(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps({"lengths": a, "seconds": b}) + "\n" for a, b in zip(*steps(0.0), strict=True)))
    command = [sys.executable, "-m", "widestream.cli", "calibrate", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "{cost: {linear_tokens: 25000}}" in done.stdout
