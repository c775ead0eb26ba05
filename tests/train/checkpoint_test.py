"""Checkpoints: complete or absent, checked when read, and never in the way of an older one."""

import json
import os
import subprocess
import sys

import pytest
import torch

from widestream.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    check_tensors,
    list_checkpoints,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)


def example(step, value=1.0):
    model = {"layer.weight": torch.full((3, 4), value), "layer.half": torch.full((2,), value).bfloat16()}
    return Checkpoint(
        step=step,
        model=model,
        optimizer={"layer.weight/exp_avg": torch.zeros(3, 4), "rng/torch": torch.get_rng_state()},
        train={"unigram_counts": torch.arange(5)},
        loader={"step": step, "sources": {"a": {"cursor": 12}}},
        meta={"model": {"layers": 2}},
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_loaded(tmp_path):
    saved = example(7)
    path = save_checkpoint(tmp_path, saved, keep=2)
    assert path.name == "step_000007"
    loaded = load_checkpoint(path)
    assert loaded.step == 7 and loaded.loader == saved.loader and loaded.meta["model"] == {"layers": 2}
    for part in ("model", "optimizer", "train"):
        expected, found = getattr(saved, part), getattr(loaded, part)
        assert set(expected) == set(found)
        assert all(torch.equal(found[k], v) and found[k].dtype == v.dtype for k, v in expected.items())


def test_the_newest_are_kept_in_order_of_step(tmp_path):
    for step in (1, 20, 300, 1_000_000):
        save_checkpoint(tmp_path, example(step), keep=2)
    assert [step for step, _ in list_checkpoints(tmp_path)] == [300, 1_000_000]


def test_nothing_there_is_none(tmp_path):
    messages = []
    assert load_latest(tmp_path / "absent", messages.append) is None and messages == []


def damage_cut(path):
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def damage_flip(path):
    file = path / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def damage_missing(path):
    (path / "loader.json").unlink()


def damage_meta(path):
    (path / "meta.json").write_text("{")


def damage_version(path):
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps({**meta, "version": 99}))


def damage_files(path):
    meta = json.loads((path / "meta.json").read_text())
    meta["files"]["../../elsewhere"] = {"bytes": 1, "crc32": 1}
    (path / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_cut, "model.safetensors is damaged"),
        (damage_flip, "optimizer.safetensors is damaged"),
        (damage_missing, "loader.json cannot be read: No such file"),
        (damage_meta, "meta.json is not JSON"),
        (damage_version, "version 99; this Widestream reads version 1"),
        (damage_files, "elsewhere"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_older_one_used(tmp_path, damage, message):
    save_checkpoint(tmp_path, example(1, value=1.0), keep=5)
    newest = save_checkpoint(tmp_path, example(2, value=2.0), keep=5)
    damage(newest)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(newest)
    messages = []
    loaded = load_latest(tmp_path, messages.append)
    assert loaded.step == 1 and loaded.model["layer.weight"][0, 0] == 1.0
    assert len(messages) == 1 and "step_000002" in messages[0]


def test_a_failing_write_leaves_the_old_ones_and_no_temporary(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, example(1), keep=1)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, example(2), keep=1)
    assert names(tmp_path) == ["step_000001"]


def test_leftovers_of_a_killed_writer_are_ignored_and_removed(tmp_path):
    leftover = tmp_path / ".tmp-step_000009-4711"
    leftover.mkdir()
    (leftover / "model.safetensors").write_bytes(b"half")
    messages = []
    assert load_latest(tmp_path, messages.append) is None and list_checkpoints(tmp_path) == []
    save_checkpoint(tmp_path, example(1), keep=1)
    assert names(tmp_path) == ["step_000001"]


STAGES = ["model.safetensors", "loader.json", "meta.json", "rename", "prune"]
DELAYS_SECONDS = [0.0, 0.003, 0.006, 0.012, 0.024]

# Forks a writer for each case, so that torch is imported once. A writer of a stage kills itself after it;
# the writers of a delay write without end until they are killed.
KILLED_WRITERS = """
import itertools, os, pathlib, signal, sys, time, torch
from widestream.train import checkpoint as c

def example(step):
    w = {"w": torch.full((1 << 16,), float(step))}
    return c.Checkpoint(step, w, w, w, {"step": step}, {})

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def die_at(folder, stage):
    write, sync = c._write, c._sync_folder
    def killing_write(path, data, files):
        write(path, data, files)
        if path.name == stage: die()
    def killing_sync(path):
        if stage == "rename" and path == folder: die()
        sync(path)
    c._write, c._sync_folder = killing_write, killing_sync
    c.shutil.rmtree = lambda path, **options: die()
    c.save_checkpoint(folder, example(2), keep=1)

def write_on(folder):
    for step in itertools.count(2):
        c.save_checkpoint(folder, example(step), keep=2)

torch.set_num_threads(1)  # a fork has no worker threads
root = pathlib.Path(sys.argv[1])
for case in sys.argv[2:]:
    folder = root / case
    c.save_checkpoint(folder, example(1), keep=1)
    child = os.fork()
    if child == 0:
        try:
            write_on(folder) if case[0].isdigit() else die_at(folder, case)
        finally:
            os._exit(1)
    if case[0].isdigit():
        while c.list_checkpoints(folder)[-1][0] < 3: time.sleep(0.001)
        time.sleep(float(case))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (case, status)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    root = tmp_path_factory.mktemp("killed")
    cases = [*STAGES, *map(str, DELAYS_SECONDS)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITERS, str(root), *cases], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("case", [*STAGES, *map(str, DELAYS_SECONDS)])
def test_kill_9_of_a_writer_leaves_whole_checkpoints(killed, case):
    messages = []
    loaded = load_latest(killed / case, messages.append)
    assert messages == [], "every folder with a checkpoint's name is whole"
    if case in STAGES:
        assert loaded.step == (2 if case in ("rename", "prune") else 1)
    else:
        assert loaded.step >= 2
    expected = torch.full((1 << 16,), float(loaded.step))
    for part in (loaded.model, loaded.optimizer, loaded.train):
        assert torch.equal(part["w"], expected)
    assert loaded.loader == {"step": loaded.step}


def test_tensors_of_another_model_are_refused_by_name_and_shape():
    expected = {"a": torch.zeros(2, 3), "b": torch.zeros(4)}
    with pytest.raises(CheckpointError, match=r"1 missing \(b\); 1 not expected \(c\)"):
        check_tensors({"a": torch.zeros(2, 3), "c": torch.zeros(1)}, expected, "model")
    with pytest.raises(CheckpointError, match=r"tensor a is \[3, 2\] torch.float32; this model needs \[2, 3\]"):
        check_tensors({"a": torch.zeros(3, 2), "b": torch.zeros(4)}, expected, "model")
    with pytest.raises(CheckpointError, match=r"torch\.bfloat16"):
        check_tensors({"a": torch.zeros(2, 3).bfloat16(), "b": torch.zeros(4)}, expected, "model")
