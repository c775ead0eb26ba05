"""A stall is reported on stderr: what the pipeline waits for, and the stacks of all threads, once."""

from __future__ import annotations

import json
import time

import pytest

import widestream as ws
from tests.support.jobs import small_job
from widestream.errors import DeadlineExceededError


class StuckHost:
    """In the place of the engine: its source `code` gives nothing for `polls` calls, then the stream is at its end."""

    def __init__(self, polls: int) -> None:
        self.polls = polls

    def next(self, seconds: float) -> None:
        if self.polls == 0:
            return None
        self.polls -= 1
        time.sleep(0.05)
        raise DeadlineExceededError("no batch yet")

    def status_json(self) -> str:
        return json.dumps({"doing": "planning step 3: waiting for source 'code'", "doing_seconds": 7.0})

    def stop(self) -> None:
        pass


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    def make(polls: int, stall_seconds: float) -> ws.DataLoader:
        loader = ws.DataLoader(small_job(tmp_path), tensors="numpy", stall_seconds=stall_seconds)
        loader._engine.stop()
        monkeypatch.setattr(loader, "_engine", StuckHost(polls))
        return loader

    return make


def test_a_stall_names_the_source_and_prints_the_stacks_once(stuck, capfd):
    loader = stuck(polls=20, stall_seconds=0.3)
    assert next(loader, None) is None, "the wait goes on after the report"
    errors = capfd.readouterr().err
    assert errors.count("widestream: no batch for") == 1
    assert "the pipeline is planning step 3: waiting for source 'code' (since 7 s)" in errors
    assert errors.count("Current thread") == 1
    assert "in _next" in errors, "the stack of the waiting thread"
    assert loader.wait_seconds >= 0.3


def test_each_stall_is_reported(stuck, capfd):
    loader = stuck(polls=20, stall_seconds=0.3)
    assert next(loader, None) is None
    loader._engine.polls = 20
    assert next(loader, None) is None
    assert capfd.readouterr().err.count("widestream: no batch for") == 2


def test_a_wait_below_the_limit_is_no_stall(stuck, capfd):
    loader = stuck(polls=3, stall_seconds=3600)
    assert next(loader, None) is None
    assert capfd.readouterr().err == ""
