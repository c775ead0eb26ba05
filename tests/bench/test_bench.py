"""The workloads run at their quick size and give figures with every documented field, and no verdict."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.jobs import small_job
from widestream.bench.harness import Figure

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "examples" / "quickstart" / "data"
TOKENIZER = ROOT / "tests" / "data" / "tokenizers" / "r50k_base.tiktoken"


def quick(workload: str, *options: str) -> list[dict]:
    command = [sys.executable, "-m", "widestream.cli", "bench", workload, "--quick", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(figure: dict) -> None:
    assert list(figure) == [field.name for field in dataclasses.fields(Figure)]
    assert figure["met"] is None, "a quick run decides nothing"
    assert figure["better"] in ("higher", "lower")
    assert isinstance(figure["value"], float) and math.isfinite(figure["value"])
    assert figure["against"] or figure["floor"], "a figure stands beside a peer or a floor"
    assert figure["unit"] and figure["case"] and figure["checked"]
    assert len(figure["pairs"]) == 1
    assert all(value > 0 for pair in figure["pairs"] for value in pair)


def test_overhead():
    figures = quick("overhead", "--tokenizer", str(TOKENIZER))
    assert [figure["id"] for figure in figures] == ["S-01", "import"]
    for figure in figures:
        check(figure)
        assert figure["floor"]["value"] > 0


@pytest.mark.parametrize(("workload", "count"), [("planner", 6), ("balance", 4), ("pack", 4)])
def test_planning(workload, count):
    figures = quick(workload)
    assert len(figures) == count
    for figure in figures:
        check(figure)


def test_text():
    for module in ("torch", "tiktoken", "pyarrow"):
        pytest.importorskip(module)
    (figure,) = quick("text", "--data", str(DATA), "--tokenizer", str(TOKENIZER))
    check(figure)
    assert figure["id"] == "P1a"
    assert figure["value"] > 0
    assert figure["against"]["value"] > 0
    assert "tiktoken" in figure["against"]["version"]


def test_wait(tmp_path):
    pytest.importorskip("torch")
    job = small_job(tmp_path).model_dump(mode="json", exclude_none=True)
    job["model"] = {"d_model": 16, "layers": 1, "heads": 2, "m": 2, "n": 3}
    job["training"] = {"steps": 1, "threads": 1}
    (tmp_path / "job.json").write_text(json.dumps(job))
    figures = quick("wait", "--data", str(tmp_path / "job.json"))
    assert [figure["id"] for figure in figures] == ["P10-wait", "P10-step"]
    for figure in figures:
        assert figure["met"] is None and figure["value"] > 0 and figure["floor"]["value"] >= 0
        assert all(math.isfinite(value) for pair in figure["pairs"] for value in pair)


def test_tokenizer():
    pytest.importorskip("tiktoken")
    figures = quick("tokenizer", "--data", str(DATA), "--tokenizer", str(TOKENIZER))
    ids = [figure["id"] for figure in figures]
    assert set(ids) == {"P7", "P7-corpus", "P7-threads", "P7-decode", "P7-count", "P7-load", "P7-memory", "P7-worst"}
    for figure in figures:
        check({**figure, "pairs": figure["pairs"][:1]})
        assert "other ids" not in figure["checked"]


def test_ghc():
    pytest.importorskip("torch")
    figures = quick("ghc")
    assert [figure["id"] for figure in figures] == ["P5-cell", "P5-cell", "P5-eager", "P5-worst", "P5-floor"]
    for figure in figures:
        check(figure)
