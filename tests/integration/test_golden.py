"""The stream of three jobs never changes within a version: tests/data/golden_streams.json holds hashes of 1,000 steps.

A difference is a bug, or a better rule, which needs a new order_version or membership_version. With a new version

    python -m tests.integration.test_golden --write

writes the file anew. It refuses while the versions are those of the file and a hash differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import widestream as ws
from tests.support.jobs import TOKENIZERS, sentences, write_jsonl, write_parquet

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "data" / "golden_streams.json"
QUICKSTART = ROOT / "examples" / "quickstart"
STEPS = 1000
EVERY = 100  # a hash that far, so that a difference can be placed


def quickstart(folder: Path) -> ws.Job:
    """Eight real sources in four file formats, split and packed into rows, a ramp, held-out records."""
    patterns = {
        "novels": "*.parquet",
        "bible": "*.jsonl.gz",
        "definitions": "*.parquet",
        "go": "*.jsonl.zst",
        "python": "*.parquet",
        "questions": "*.jsonl",
        "proofs": "*.parquet",
        "spanish": "*.jsonl.zst",
    }
    data = QUICKSTART / "data"
    first = dict(zip(patterns, (0.35, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05, 0.1), strict=True))
    second = dict(zip(patterns, (0.1, 0.1, 0.1, 0.2, 0.2, 0.1, 0.1, 0.1), strict=True))
    return ws.Job(
        name="golden-quickstart",
        seed=17,
        data_roots=[str(data)],
        tokenizer={
            "file": str(QUICKSTART / "tokenizers" / "fixture_bpe_4096.json"),
            "append": ["<|endoftext|>"],
        },
        sources=[{"name": name, "path": str(data / name / glob)} for name, glob in patterns.items()],
        mixture={
            "unit": "tokens",
            "stages": [{"until": "100k tokens", "weights": first}, {"ramp": "200k tokens", "weights": second}],
        },
        batch={"sequence_length": 128, "rows": 4, "layout": "rows"},
        validation={"fraction": 0.05},
        limits={"host_memory": "256MiB", "threads": 2},
    )


def generated(folder: Path, **changes: Any) -> ws.Job:
    write_parquet(folder / "prose" / "a.parquet", sentences(11, 900), row_group_size=70)
    write_parquet(folder / "prose" / "b.parquet", sentences(12, 300), row_group_size=300)
    write_jsonl(folder / "code" / "a.jsonl", sentences(13, 700, longest_words=250))
    write_jsonl(folder / "code" / "b.jsonl", [])
    write_jsonl(folder / "qa.jsonl.gz", sentences(14, 400, longest_words=15))
    settings: dict[str, Any] = {
        "data_roots": [str(folder)],
        "tokenizer": {"file": str(TOKENIZERS / "r50k_base.tiktoken"), "append": ["<|endoftext|>"]},
        # Blocks that close by records: by bytes they would depend on the writer of Parquet.
        "sources": [
            {"name": "prose", "path": str(folder / "prose"), "shuffle": {"records": 40}},
            {"name": "code", "path": str(folder / "code"), "shuffle": {"records": 16, "bytes": "8KiB"}},
            {"name": "qa", "path": str(folder / "qa.jsonl.gz"), "shuffle": False, "max_epochs": 2},
        ],
        "limits": {"host_memory": "64MiB", "threads": 2},
        **changes,
    }
    return ws.Job(**settings)


def samples_thd(folder: Path) -> ws.Job:
    """Whole samples by Tijdeman's rule over three stages, thd, a source that is exhausted."""
    return generated(
        folder,
        name="golden-samples",
        seed=2**63 + 5,
        mixture={
            "unit": "samples",
            "stages": [
                {"until": 500, "weights": {"prose": 1, "code": 1, "qa": 1}},
                {"until": 3000, "weights": {"prose": 5, "code": 2, "qa": 3}},
                {"weights": {"prose": 1, "code": 4, "qa": 1}, "ramp": 700},
            ],
        },
        batch={"layout": "thd", "sequence_length": 64, "max_piece_tokens": 48, "tokens": 400},
    )


def truncated_padded(folder: Path) -> ws.Job:
    """Equal weights (ties), one truncated document a row."""
    return generated(
        folder,
        name="golden-padded",
        seed=0,
        mixture={"weights": {"prose": 1, "code": 1, "qa": 1}},
        batch={"layout": "padded", "sequence_length": 32, "rows": 5, "overflow": "truncate"},
        validation={"fraction": 0.1},
    )


JOBS = {"quickstart": quickstart, "samples_thd": samples_thd, "truncated_padded": truncated_padded}


def stream_of(name: str, folder: Path) -> tuple[dict[str, int], list[str]]:
    """The versions, and the hash of all step digests after every hundredth step."""
    digest, hashes = hashlib.sha256(), []
    with ws.DataLoader(JOBS[name](folder), rank=0, world=1, tensors="numpy") as loader:
        state = loader.state_dict()
        for step in range(STEPS):
            batch = next(loader)
            assert batch.step == step
            digest.update(bytes.fromhex(batch.digest))
            if batch.step % EVERY == EVERY - 1:
                hashes.append(digest.hexdigest()[:32])
    return {key: state[key] for key in ("order_version", "membership_version")}, hashes


@pytest.mark.parametrize("name", JOBS)
def test_the_stream_is_that_of_its_version(tmp_path, name):
    golden = json.loads(GOLDEN.read_text())
    versions, hashes = stream_of(name, tmp_path)
    assert versions == golden["versions"], "a new version: write the golden file anew (see the top of this file)"
    agree = [a == b for a, b in zip(hashes, golden["jobs"][name], strict=True)]
    first = agree.index(False) * EVERY if False in agree else STEPS
    assert first == STEPS, f"the stream differs in steps {first} to {first + EVERY - 1}; a change needs a new version"


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    old = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"versions": None, "jobs": {}}
    jobs = {}
    versions: dict[str, int] = {}
    for name in JOBS:
        with tempfile.TemporaryDirectory() as folder:
            versions, jobs[name] = stream_of(name, Path(folder))
        if versions == old["versions"] and old["jobs"].get(name, jobs[name]) != jobs[name]:
            sys.exit(f"{name}: the stream changed but the versions did not ({versions}); raise one, or mend the change")
    GOLDEN.write_text(json.dumps({"versions": versions, "jobs": jobs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
