"""kill -9 at any moment: after the restart the consumed stream is that of a run that was never stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.jobs import small_job
from widestream.inspection import read_journal

STEPS = 60


def write_job(folder: Path, name: str) -> None:
    """A job with a run folder of its own over the folder's common data."""
    job = small_job(folder)
    job.run_dir = str(folder / f"{name}-run")
    (folder / f"{name}.json").write_text(json.dumps(job.model_dump(mode="json", exclude_none=True)))


def start(folder: Path, name: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "tests.support.consume",
        str(folder / f"{name}.json"),
        str(folder / name),
        str(STEPS),
    ]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def finish(folder: Path, name: str) -> str:
    process = start(folder, name)
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors.decode()
    return (folder / name / "log").read_text()


def lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_at(folder: Path, name: str, line: int) -> None:
    """Starts it and kills it once its log has `line` lines, wherever the process is then."""
    process = start(folder, name)
    while process.poll() is None and lines(folder / name / "log") < line:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL, "the run ended before it could be killed"
    assert 0 < lines(folder / name / "log") < STEPS


def three_kills(folder: Path, seeds: range, cut_journal: bool = False) -> None:
    write_job(folder, "reference")
    reference = finish(folder, "reference")
    assert reference.count("\n") == STEPS
    for seed in seeds:
        name = f"killed{seed}"
        write_job(folder, name)
        assert not (folder / f"{name}-run").exists(), "a run folder of its own"
        rng = random.Random(seed)
        journal = folder / f"{name}-run" / "journal.bin"
        # Ascending, because a run goes on from its last checkpoint, at most three steps back.
        for line in sorted(rng.sample(range(4, STEPS - 8, 4), 3)):
            kill_at(folder, name, line)
            if cut_journal:
                assert journal.stat().st_size > 200, "there is a journal to tear"
                os.truncate(journal, journal.stat().st_size - rng.randrange(1, 100))
        assert finish(folder, name) == reference, f"seed {seed}"
        found = read_journal(folder / f"{name}-run")
        assert found["whole"], f"seed {seed}: {found['problems']}"
        assert (found["first_step"], found["missing_steps"]) == (0, 0), f"seed {seed}: {found}"
        assert found["last_step"] >= STEPS - 1, f"seed {seed}: {found}"


def test_three_kills_in_a_row_lose_and_repeat_nothing(tmp_path):
    three_kills(tmp_path, range(2))


def test_a_kill_that_tears_the_journal_too_loses_nothing(tmp_path):
    three_kills(tmp_path, range(50, 52), cut_journal=True)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("cut_journal", [False, True])
def test_three_kills_in_a_row_with_twenty_seeds(tmp_path, cut_journal):
    three_kills(tmp_path, range(100, 120), cut_journal)
