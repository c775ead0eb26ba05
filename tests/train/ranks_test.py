"""Training on several ranks: the loss curve, checkpoints and validation of one rank; failures that end all ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

from tests.support.ranks import finish, run, start
from widestream.errors import InvalidArgumentError
from widestream.train import load_checkpoint, read_metrics
from widestream.train.ranks import Ranks, device_of, environment_ranks

WORKER = str(Path(__file__).with_name("rank_worker.py"))
ROOT = str(Path(__file__).resolve().parents[2])
STEPS = 20


def worker(folder: Path, **settings: object) -> tuple[str, str, str]:
    return (WORKER, str(folder), json.dumps({"steps": STEPS, **settings}))


def train(ranks: int, folder: Path, **settings: object) -> str:
    return run(ranks, *worker(folder, **settings), PYTHONPATH=ROOT)


def begin(folder: Path, **settings: object):
    return start(2, *worker(folder, **settings), PYTHONPATH=ROOT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same training on one rank, on two with DDP and on two with FSDP2."""
    folder = tmp_path_factory.mktemp("runs")
    train(1, folder / "one")
    train(2, folder / "ddp")
    train(2, folder / "fsdp2", parallel="fsdp2")
    return folder


def check_curve(found: Path, expected: Path) -> None:
    """Losses, norms and validations of every step agree to rounding, counts exactly."""
    pairs = list(zip(read_metrics(found / "metrics.jsonl"), read_metrics(expected / "metrics.jsonl"), strict=True))
    assert [one["step"] for one, _ in pairs] == list(range(1, STEPS + 1))
    for one, other in pairs:
        for name in ("loss", "gradient_norm", "mtp_losses", "learning_rate"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), (one["step"], name)
        for name in ("supervised_tokens", "slots", "tokens_by_source"):
            assert one[name] == other[name]
        if "validation" in other:
            for name, value in other["validation"].items():
                assert one["validation"][name] == pytest.approx(value, rel=1e-5), name
            assert one["validation"]["tokens"] == other["validation"]["tokens"]


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_two_ranks_give_the_loss_curve_of_one(runs, how):
    check_curve(runs / how, runs / "one")


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_checkpoints_hold_whole_tensors_with_the_names_and_values_of_one_rank(runs, how):
    one, other = (load_checkpoint(runs / name / "checkpoints" / f"step_{STEPS:06d}") for name in ("one", how))
    assert other.loader == one.loader
    assert torch.equal(other.train["unigram_counts"], one.train["unigram_counts"])
    for part in ("model", "optimizer"):
        expected, found = getattr(one, part), getattr(other, part)
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.full
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
@pytest.mark.parametrize(
    "model",
    [
        {"plain": True, "m": 0, "n": 0, "tie_embeddings": True, "mtp_depth": 0},
        {"dynamic": False, "embedding": "linear", "mtp_depth": 1},
        {"n": 4, "embedding": "repeat", "carry": "identity", "mtp_loss_weight": 0.0},
    ],
    ids=["tied", "static", "repeat"],
)
def test_every_kind_of_model_trains_like_on_one_rank(tmp_path, model, how):
    train(1, tmp_path / "one", model=model)
    train(2, tmp_path / "two", model=model, parallel=how)
    check_curve(tmp_path / "two", tmp_path / "one")


def test_only_rank_0_writes(runs):
    assert [path.name for path in runs.rglob("nothing-*")] == []
    summary = json.loads((runs / "ddp" / "summary.json").read_text())
    assert summary["ranks"] == 2 and 0 <= summary["data_wait_share"] < 1


def resumed(runs: Path, folder: Path, ranks: int, source: str, how: str) -> None:
    """Goes on from step 10 of a run on another number of ranks; the whole curve must be that of one rank."""
    shutil.copytree(runs / source, folder)
    for path in (folder / "checkpoints").iterdir():
        if path.name > "step_000010":
            shutil.rmtree(path)
    printed = train(ranks, folder, parallel=how, resume=True)
    for rank in range(ranks):
        assert f"rank {rank} delivered {list(range(10, STEPS))}" in printed
    check_curve(folder, runs / "one")


@pytest.mark.parametrize(
    ("ranks", "source", "how"),
    [
        (1, "fsdp2", "ddp"),
        (2, "one", "ddp"),
        pytest.param(2, "ddp", "fsdp2", marks=pytest.mark.full),
        pytest.param(4, "fsdp2", "ddp", marks=pytest.mark.full),
        pytest.param(4, "ddp", "fsdp2", marks=pytest.mark.full),
    ],
)
def test_R18_E01_E02_a_checkpoint_goes_on_with_any_number_of_ranks(runs, tmp_path, ranks, source, how):
    resumed(runs, tmp_path / "run", ranks, source, how)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two', not a whole number"),
        ({"WORLD_SIZE": "2", "RANK": "-1"}, "RANK is '-1'"),
        (
            {"WORLD_SIZE": "2", "RANK": "0"},
            "LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set; start the ranks with torchrun",
        ),
    ],
)
def test_an_environment_that_is_not_whole_is_refused(monkeypatch, environment, message):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    assert not environment_ranks().parallel
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidArgumentError, match=re.escape(message)):
        environment_ranks()


def test_devices_that_are_not_there_are_refused():
    assert device_of("cpu", Ranks(1, 2, 1)) == torch.device("cpu")
    if not torch.cuda.is_available():
        assert device_of("auto", Ranks()) == torch.device("cpu")
        with pytest.raises(InvalidArgumentError, match="no CUDA device here"):
            device_of("cuda:0", Ranks())


def test_a_world_of_one_needs_no_group():
    ranks = Ranks()
    values = torch.arange(3)
    assert ranks.main and not ranks.parallel
    assert ranks.gather([1.5, 2]) == [[1.5, 2]] and ranks.any(True) and not ranks.any(False)
    assert ranks.share_json({"a": [1]}) == {"a": [1]}
    assert torch.equal(ranks.sum(values), torch.arange(3)) and torch.equal(ranks.share(values), torch.arange(3))


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize(("failing", "how"), [(0, "raise"), (1, "raise"), (1, "forward")])
def test_a_failing_rank_is_named_with_its_reason_and_the_others_end(tmp_path, failing, how):
    # The launcher looks away for a while: the ranks must end by themselves.
    options = ["--monitor-interval=2"]
    program = worker(tmp_path / "run", fail={"rank": failing, "step": 4, "how": how})
    status, _, errors = finish(start(2, *program, options=options, PYTHONPATH=ROOT), 60)
    assert status != 0
    assert "ValueError: the disk of this rank is on fire" in errors
    assert f"stopped, because rank {failing} failed: ValueError: the disk of this rank is on fire" in errors


def test_a_killed_rank_ends_the_others_and_leaves_whole_checkpoints(tmp_path):
    process = begin(tmp_path / "run", checkpoint_every=1, fail={"rank": 1, "step": 4, "how": "kill"})
    status, _, _ = finish(process, 60)
    assert status != 0
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == [f"step_{step:06d}" for step in range(1, 5)]
    load_checkpoint(tmp_path / "run" / "checkpoints" / kept[-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_all_ranks_at_the_same_step_with_a_checkpoint(tmp_path, number):
    folder = tmp_path / "run"
    process = begin(folder, steps=5000, checkpoint_every=0)
    while process.poll() is None and lines(folder / "metrics.jsonl") < 5:
        time.sleep(0.01)
    os.kill(process.pid, number)
    _, out, errors = finish(process, 60)
    assert "Traceback" not in errors.split("SignalException")[0].replace("Traceback (most recent call last):", "", 1)
    done = lines(folder / "metrics.jsonl")
    assert f"stopped by {number.name} after step {done} of 5000" in out
    assert out.count("interrupted True") == 2
    delivered = list(range(done))
    assert f"rank 0 delivered {delivered}" in out and f"rank 1 delivered {delivered}" in out
    assert [path.name for path in (folder / "checkpoints").iterdir()] == [f"step_{done:06d}"]


def test_ranks_that_hang_end_at_a_signal(tmp_path):
    """One rank waits for data that never comes, the other one for it."""
    folder = tmp_path / "run"
    process = begin(folder, checkpoint_every=2, fail={"rank": 1, "step": 3, "how": "hang"})
    while process.poll() is None and lines(folder / "metrics.jsonl") < 3:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    _, out, _ = finish(process, 20)  # torchrun would kill them after 30
    assert "stopped by SIGTERM after step 3 of 20" in out and "go on from step 2" in out
    assert out.count("interrupted True") == 2
