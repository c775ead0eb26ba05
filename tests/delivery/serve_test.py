"""``widestream serve``: a host in the foreground, for ranks that something else starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

import widestream as ws
from tests.support.jobs import fingerprint, small_job, take
from tests.support.node import wait_until
from widestream.errors import InvalidArgumentError


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDESTREAM_RUNTIME_DIR", str(tmp_path / "r"))
    job = small_job(tmp_path, run_dir=True)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job.model_dump(mode="json", exclude_none=True)))
    processes = []

    def start(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "widestream.cli", "serve", str(path), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert "can attach at" in process.stdout.readline()
        return process

    yield job, start
    for process in processes:
        process.kill()
        process.wait()


def test_ranks_attach_to_a_served_job_and_it_ends_with_the_last_one(served):
    job, start = served
    process = start("--world", "2", "--once")
    loaders = [ws.DataLoader(job, rank=rank, world=2, host="attach", tensors="numpy") for rank in range(2)]
    got = [[fingerprint(batch) for batch in take(loader, 4)] for loader in loaders]
    assert loaders[0].host_pid == process.pid
    for loader in loaders:
        loader.close()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "every rank has left" in out
    alone = job.model_copy(update={"run_dir": None})
    for rank in range(2):
        with ws.DataLoader(alone, rank=rank, world=2, tensors="numpy") as loader:
            assert got[rank] == [fingerprint(batch) for batch in take(loader, 4)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_H_05_a_signal_ends_it_cleanly_and_ranks_are_told(served, number, tmp_path):
    job, start = served
    process = start("--world", "1")
    loader = ws.DataLoader(job, rank=0, world=1, host="attach", tensors="numpy")
    take(loader, 1)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"received {signal.Signals(number).name}" in out
    with pytest.raises(ws.errors.WidestreamError, match="host"):
        take(loader, 1000)
    loader.close()
    assert list((tmp_path / "r").iterdir()) == []


def test_a_second_server_of_the_run_is_refused(served, tmp_path):
    _, start = served
    start("--world", "1")
    second = subprocess.run(
        [sys.executable, "-m", "widestream.cli", "serve", str(tmp_path / "job.json"), "--world", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
    )
    assert second.returncode == 4
    assert "another host process" in second.stderr


def test_a_job_without_a_run_folder_cannot_be_served(tmp_path):
    from widestream.hosting.foreground import serve_in_foreground

    with pytest.raises(InvalidArgumentError, match="run_dir"):
        serve_in_foreground(
            small_job(tmp_path), world=1, first_rank=0, ranks=None, node=0, once=True, say=lambda text: None
        )


def test_nobody_to_attach_to_is_an_error_in_time(served):
    job, _ = served
    with pytest.raises(ws.errors.DeadlineExceededError, match="no host"):
        ws.DataLoader(job, rank=0, world=1, host="attach", attach_seconds=0.5)


def test_a_dead_host_is_noticed_by_a_rank_that_waits(served):
    job, start = served
    process = start("--world", "1")
    loader = ws.DataLoader(job, rank=0, world=1, host="attach", tensors="numpy")
    kept = take(loader, 1)
    before = fingerprint(kept[0])
    process.kill()
    process.wait()
    wait_until(lambda: process.poll() is not None, "the host is dead")
    with pytest.raises(ws.errors.UnavailableError, match=str(process.pid)):
        take(loader, 1000)
    assert fingerprint(kept[0]) == before
