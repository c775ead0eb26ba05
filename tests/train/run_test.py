"""``widestream train`` as a user runs it: whatever stops it, --resume ends with the same weights."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.jobs import small_job

STEPS = 14


def write_job(folder: Path, name: str) -> Path:
    job = small_job(
        folder, name=name, batch={"rows": 4, "microbatch_tokens": 128}, validation={"fraction": "10%", "tokens": 500}
    )
    document = job.model_dump(mode="json", exclude_none=True)
    document["run_dir"] = str(folder / name)
    document["model"] = {"d_model": 16, "layers": 1, "heads": 2, "m": 2, "n": 3, "mtp_depth": 1}
    document["optimizer"] = {"learning_rate": 0.003, "warmup_steps": 2}
    document["training"] = {"steps": STEPS, "checkpoint_every": 4, "validate_every": 7, "threads": 1, "log_every": 1}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def start(job: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "widestream.cli", "train", str(job), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return out


def outcome(folder: Path) -> tuple[str, list[tuple[int, float]], dict[str, int]]:
    """Weights of the last checkpoint, the losses of all steps, tokens by source."""
    weights = hashlib.sha256(
        (folder / "checkpoints" / f"step_{STEPS:06}" / "model.safetensors").read_bytes()
    ).hexdigest()
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    return weights, [(step["step"], step["loss"]) for step in steps], summary["tokens_by_source"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    printed = finish(start(write_job(folder, "reference")))
    return folder, printed, outcome(folder / "reference")


def test_a_run_leaves_summary_report_and_what_to_try_next(reference):
    folder, printed, (_, losses, _) = reference
    assert [step for step, _ in losses] == list(range(1, STEPS + 1))
    summary = json.loads((folder / "reference" / "summary.json").read_text())
    names = "final_loss validation_loss unigram_cross_entropy tokens_per_second data_wait_share steps tokens_by_source mixture_error report"
    assert set(names.split()) <= set(summary)
    assert summary["steps"] == STEPS
    assert Path(summary["report"]).read_text().startswith("<!")
    for text in ("unigram", "A sample of the model's text", "widestream generate", "report.html"):
        assert text in printed


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_and_resume_gives_the_same_weights(reference, seed):
    folder, _, expected = reference
    job = write_job(folder, f"killed{seed}")
    run_dir = folder / f"killed{seed}"
    rng = random.Random(seed)
    options: tuple[str, ...] = ()
    for _ in range(2):
        process = start(job, *options)
        metrics, target = run_dir / "metrics.jsonl", rng.randrange(2, STEPS - 1)
        # Killed once the log has reached a random line, wherever the process is then.
        while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < target):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        options = ("--resume",)
    finish(start(job, "--resume"))
    assert outcome(run_dir) == expected


def test_ctrl_c_ends_in_two_seconds_with_exit_code_130_and_resumes(reference):
    folder, _, expected = reference
    job = write_job(folder, "stopped")
    process = start(job)
    metrics = folder / "stopped" / "metrics.jsonl"
    while process.poll() is None and (not metrics.exists() or metrics.read_bytes().count(b"\n") < 5):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert "--resume" in out + errors
    assert "Traceback" not in errors
    finish(start(job, "--resume"))
    assert outcome(folder / "stopped") == expected


def test_a_second_run_on_the_same_folder_is_refused(reference):
    folder, _, _ = reference
    process = start(folder / "reference.yaml")
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 3, errors
    assert "--resume" in errors
    assert "Traceback" not in errors
