"""`torchrun -m widestream.cli train JOB`: a real job on one rank, two ranks, and two nodes."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
import yaml

from tests.support.jobs import small_job
from tests.support.ranks import finish, run, start
from widestream.train import read_metrics

STEPS = 12
CLI = ("-m", "widestream.cli", "train")


def write_job(folder: Path, run_dir: Path, **changes: object) -> Path:
    """thd pieces balanced by cost: the ranks of a step have different numbers of tokens."""
    batch = {"layout": "thd", "rows": None, "tokens": 400, "microbatch_tokens": 128}
    job = small_job(folder, batch=batch, validation={"fraction": "10%", "tokens": 400}, **changes)
    document = job.model_dump(mode="json", exclude_none=True)
    document["run_dir"] = str(run_dir)
    document["model"] = {"d_model": 16, "layers": 1, "heads": 2, "m": 2, "n": 3, "mtp_depth": 1}
    document["optimizer"] = {"learning_rate": 0.003, "warmup_steps": 2}
    document["training"] = {
        "steps": STEPS, "checkpoint_every": 4, "keep_checkpoints": 9, "validate_every": 6, "threads": 1, "log_every": 1,
    }  # fmt: skip
    path = run_dir.with_suffix(".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folder of the data, with a run of one rank in it."""
    folder = tmp_path_factory.mktemp("train")
    run(1, *CLI, str(write_job(folder, folder / "one")))
    return folder


def check(run_dir: Path, reference: Path) -> None:
    """The run has the curve of one rank."""
    found, expected = (read_metrics(path / "metrics.jsonl") for path in (run_dir, reference / "one"))
    assert [record["step"] for record in found] == list(range(1, STEPS + 1))
    for one, other in zip(found, expected, strict=True):
        for name in ("loss", "gradient_norm", "mtp_losses"):
            assert one[name] == pytest.approx(other[name], rel=1e-5), (one["step"], name)
        for name in ("supervised_tokens", "tokens_by_source", "wanted_by_source"):
            assert one[name] == other[name]
        if "validation" in other:
            assert one["validation"]["loss"] == pytest.approx(other["validation"]["loss"], rel=1e-5)


def keep_until(run_dir: Path, step: int) -> None:
    """Removes the checkpoints after `step`, as if the run had been killed before it wrote them."""
    for path in (run_dir / "checkpoints").iterdir():
        if path.name > f"step_{step:06d}":
            shutil.rmtree(path)


def test_two_ranks_train_like_one_and_print_once(reference):
    folder = reference / "two"
    printed = run(2, *CLI, str(write_job(reference, folder)))
    check(folder, reference)
    assert printed.count(f"step {STEPS}/{STEPS}") == 1
    assert (folder / "report.html").exists()
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["ranks"] == 2


def test_R18_E02_a_run_of_one_rank_goes_on_sharded_over_two(reference):
    folder = reference / "sharded"
    shutil.copytree(reference / "one", folder)
    keep_until(folder, 8)
    run(2, *CLI, str(write_job(reference, folder)), "--resume", "--set", "training.parallel=fsdp2")
    check(folder, reference)


def test_R15_two_nodes_resume_from_the_state_of_the_first(reference):
    """Separate processes, each with a cache, a run folder and a launcher of its own."""
    nodes = [reference / f"node{number}" / "run" for number in range(2)]
    shutil.copytree(reference / "one", nodes[0])
    keep_until(nodes[0], 4)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launchers = []
    for number, run_dir in enumerate(nodes):
        job = write_job(reference, run_dir, cache_dir=str(reference / f"cache{number}"))
        options = ["--nnodes=2", f"--node-rank={number}", "--master-addr=127.0.0.1", f"--master-port={port}"]
        launchers.append(start(1, *CLI, str(job), "--resume", options=options))
    for launcher in launchers:
        status, out, errors = finish(launcher)
        assert status == 0, f"{out}\n{errors}"
    check(nodes[0], reference)
    assert not (nodes[1] / "checkpoints").exists()


def test_R19_a_folder_of_damaged_checkpoints_is_an_error_on_every_rank(reference):
    folder = reference / "damaged"
    shutil.copytree(reference / "one", folder)
    for path in (folder / "checkpoints").iterdir():
        (path / "loader.json").unlink()
    process = start(2, *CLI, str(write_job(reference, folder)), "--resume", options=["--monitor-interval=2"])
    status, _, errors = finish(process)
    assert status != 0
    assert "rank 0: error: none of the 3 checkpoint(s)" in errors
    assert "rank 1: error: stopped, because rank 0 failed: CheckpointError: none of the 3 checkpoint(s)" in errors


def test_a_mesh_that_is_not_the_world_is_refused_by_every_rank(reference):
    process = start(
        2, *CLI, str(write_job(reference, reference / "mesh")), "--set", "mesh.dp=4", options=["--monitor-interval=2"]
    )
    status, _, errors = finish(process)
    assert status != 0
    for rank in range(2):
        assert f"rank {rank}: error: the job's mesh.dp is 4, but 2 rank(s) were started" in errors
