"""kill -9 at any moment: after the restart the consumed stream is that of a run that was never stopped."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.support.jobs import small_job

STEPS = 60


def consume(folder, name, kill_after=None):
    command = [
        sys.executable,
        "-m",
        "tests.support.consume",
        str(folder / f"{name}.json"),
        str(folder / name),
        str(STEPS),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    if kill_after is not None:
        time.sleep(kill_after)
        process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=100)
    return process.returncode, errors.decode()


def write_job(folder, name):
    small_job(folder)  # the data
    job = small_job(folder, run_dir=str(folder / f"{name}-run"))
    (folder / f"{name}.json").write_text(json.dumps(job.model_dump(mode="json", exclude_none=True)))


def three_kills(tmp_path, seeds):
    write_job(tmp_path, "reference")
    code, errors = consume(tmp_path, "reference")
    assert code == 0, errors
    reference = (tmp_path / "reference" / "log").read_text()
    assert reference.count("\n") == STEPS
    for seed in seeds:
        name = f"killed{seed}"
        write_job(tmp_path, name)
        rng = random.Random(seed)
        for _ in range(3):
            consume(tmp_path, name, kill_after=0.3 + 0.9 * rng.random())
        code, errors = consume(tmp_path, name)
        assert code == 0, f"seed {seed}: {errors}"
        assert (tmp_path / name / "log").read_text() == reference, f"seed {seed}"


def test_three_kills_in_a_row_lose_and_repeat_nothing(tmp_path):
    three_kills(tmp_path, range(2))


@pytest.mark.full
@pytest.mark.timeout(600)
def test_three_kills_in_a_row_with_twenty_seeds(tmp_path):
    three_kills(tmp_path, range(100, 120))
