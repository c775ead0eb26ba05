"""The engine agrees with tests/reference/stream_reference.py, which was written from docs/stream.md alone.

Generated jobs over generated files: each step's members, rows, digest and targets, where the stream ends, and that it
fails where the page says so.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

import widestream as ws
from tests.reference.stream_reference import Record, Step, Stream, StreamError, Unit
from widestream.errors import WidestreamError

STEPS = 20
# Bytes in an order of their own, so that an id is never by accident its byte.
BYTE_OF_ID = [(37 * i + 11) % 256 for i in range(256)]
ID_OF_BYTE = {byte: token for token, byte in enumerate(BYTE_OF_ID)}
ALPHABET = "ab \u00e9\u6c34\U0001f40b\n"


def encode(text: str) -> list[int]:
    return [ID_OF_BYTE[byte] for byte in text.encode()]


def write_tokenizer(folder: Path) -> Path:
    """One token a byte: the reference needs no BPE."""
    path = folder / "bytes.tiktoken"
    lines = (f"{base64.b64encode(bytes([byte])).decode()} {token}\n" for token, byte in enumerate(BYTE_OF_ID))
    path.write_text("".join(lines))
    return path


# --- data --------------------------------------------------------------------------------


def write_lines_shard(path: Path, texts: list[str | None]) -> list[Unit]:
    lines = [json.dumps({"text": text} if text is not None else {"body": ""}).encode() for text in texts]
    data = b"".join(line + b"\n" for line in lines)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor().compress(data)
    path.write_bytes(data)
    return [Unit([Record(text, len(line)) for text, line in zip(texts, lines, strict=True)])]


def write_parquet_shard(path: Path, texts: list[str | None], row_group_records: int) -> list[Unit]:
    table = pa.table({"id": pa.array(range(len(texts))), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=row_group_records, compression="zstd")
    metadata = pq.ParquetFile(path).metadata
    column = metadata.schema.names.index("text")
    units, at = [], 0
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        records = [Record(text) for text in texts[at : at + group.num_rows]]
        units.append(Unit(records, group.column(column).total_uncompressed_size))
        at += group.num_rows
    return units


# --- jobs --------------------------------------------------------------------------------


def generate(rng: random.Random, longest: int, bad: float) -> list[str | None]:
    """A shard: mostly a few records, often one or none, most of them short."""
    count = rng.choice([0, 1, 1, 2, 5, 9, 20])
    sizes = [rng.randint(0, longest if rng.random() < 0.4 else 10) for _ in range(count)]
    return [None if rng.random() < bad else "".join(rng.choices(ALPHABET, k=size)) for size in sizes]


@st.composite
def source_of(draw: st.DrawFn, index: int, longest: int) -> tuple[dict[str, Any], list[tuple[str, list[str | None]]]]:
    """The source's keys and its shards in manifest order."""
    kind = draw(st.sampled_from(["parquet", "jsonl", "jsonl.gz", "jsonl.zst"]))
    # The contents come from one number: hypothesis is better at few choices than at hundreds.
    rng = random.Random(draw(st.integers(0, 2**32)))
    bad = draw(st.sampled_from([0.0, 0.0, 0.0, 0.05]))
    shards = [generate(rng, longest, bad) for _ in range(draw(st.integers(1, 5)))]
    if draw(st.integers(0, 19)) and not any(shards):
        shards[0] = ["not empty"]
    spec: dict[str, Any] = {"name": f"s{index}", "shuffle": False}
    if rng.random() < 0.8:
        spec["shuffle"] = {"records": rng.choice([1, 2, 3, 5, 8]), "bytes": rng.choice([1, 60, 300, 2**20])}
    if rng.random() < 0.6:
        spec["max_epochs"] = rng.randint(1, 3)
        spec["on_exhausted"] = rng.choice(["renormalise", "renormalise", "renormalise", "stop", "error"])
    return spec, [(f"{number}.{kind}", texts) for number, texts in enumerate(shards)]


@st.composite
def mixture_of(draw: st.DrawFn, names: list[str], edit: bool = False) -> dict[str, Any]:
    unit = draw(st.sampled_from(["tokens", "samples"]))
    longest_stage = 400 if unit == "tokens" else 25
    stages: list[dict[str, Any]] = []
    begin, count = 0, draw(st.integers(1, 3))
    for index in range(count):
        weights = {name: draw(st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 1.0, 7.0])) for name in names}
        if not any(weights.values()):
            weights[draw(st.sampled_from(names))] = 1.0
        stage: dict[str, Any] = {"weights": weights}
        length = draw(st.integers(1, longest_stage))
        # The last stage mostly goes on for ever.
        if index + 1 < count or draw(st.integers(0, 9)) == 9:
            stage["until"] = begin = begin + length
        if (index or edit) and draw(st.booleans()):
            stage["ramp"] = draw(st.integers(1, length))
        stages.append(stage)
    return {"unit": unit, "stages": stages}


@st.composite
def batch_of(draw: st.DrawFn) -> dict[str, Any]:
    length = draw(st.integers(1, 24).map(lambda n: 25 - n))
    batch: dict[str, Any] = {
        "layout": draw(st.sampled_from(["rows", "padded", "thd"])),
        "sequence_length": length,
        "overflow": draw(st.sampled_from(["split", "split", "split", "truncate", "truncate", "drop", "error"])),
        "last_step": draw(st.sampled_from(["fill", "drop"])),
    }
    if batch["layout"] == "thd":
        if draw(st.booleans()):
            length = batch["max_piece_tokens"] = draw(st.integers(1, 24))
        batch["tokens"] = draw(st.integers(length, 6 * length))
    else:
        batch["rows"] = draw(st.integers(1, 6))
    return batch


@st.composite
def job_of(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, list[tuple[str, list[str | None]]]]]:
    batch = draw(batch_of())
    longest = draw(st.sampled_from([12, 6 * batch["sequence_length"], 300]))
    sources = [draw(source_of(index, longest)) for index in range(draw(st.integers(1, 4)))]
    names = [spec["name"] for spec, _ in sources]
    job: dict[str, Any] = {
        "seed": draw(st.integers(0, 2**64 - 1)),
        "sources": [spec for spec, _ in sources],
        "mixture": draw(mixture_of(names)),
        "batch": batch,
        "validation": {"fraction": draw(st.sampled_from([0.0, 0.0, 0.0, 0.3]))},
        "errors": {
            "bad_record": draw(st.sampled_from(["skip", "skip", "skip", "skip", "error"])),
            "budget": draw(st.sampled_from([0.0, 0.001, 1.0])),
            "record_bytes": "1MiB",
        },
    }
    return job, {spec["name"]: shards for spec, shards in sources}


Edits = list[tuple[int, int, dict[str, Any] | int]]


@st.composite
def decisions_of(draw: st.DrawFn, names: list[str]) -> Edits:
    """(when it is said, the step it is for, a mixture or a number of steps to skip), in the order of the steps."""
    decisions: Edits = []
    at = 0
    for _ in range(draw(st.integers(0, 2))):
        at += draw(st.integers(1, 4))
        if draw(st.booleans()):
            step = at + draw(st.integers(0, 3))
            decisions.append((at, step, draw(mixture_of(names, edit=True))))
            at = step + 1
        else:
            steps = draw(st.integers(1, 3))
            decisions.append((at, at, steps))
            at += steps
    return decisions


@st.composite
def decided_job_of(draw: st.DrawFn) -> tuple[Any, Any, Edits]:
    job, data = draw(job_of())
    return job, data, draw(decisions_of([source["name"] for source in job["sources"]]))


# --- comparison --------------------------------------------------------------------------


def digest_of(step: Step, ids_hash: dict[tuple[str, int, int], int]) -> str:
    """docs/stream.md section 4."""
    numbers = [len(step.pieces)]
    for piece in step.pieces:
        numbers += [xxh3_64_intdigest(piece.source.encode()), piece.epoch, piece.position, piece.start, piece.length]
        numbers.append(ids_hash[piece.source, piece.shard, piece.record])
    numbers.append(len(step.rows))
    for row in step.rows:
        numbers += [len(row), *row]
    return xxh3_128_hexdigest(np.array(numbers, np.uint64).tobytes())


def engine_pieces(batch: ws.Batch, names: list[str]) -> list[tuple[Any, ...]]:
    columns = ("source", "epoch", "position", "shard", "record", "start", "length", "draw", "last")
    rows = zip(*(batch.pieces[name].tolist() for name in columns), strict=True)
    return [(names[row[0]], *row[1:-1], bool(row[-1])) for row in rows]


def deliver(loader: ws.DataLoader, decisions: Edits) -> Iterator[ws.Batch | Exception]:
    """Batches; last, if it failed, the error."""
    try:
        waiting = list(decisions)
        at = 0  # the next step that has not been delivered or skipped
        while at < STEPS:
            while waiting and waiting[0][0] == at:
                _, step, what = waiting.pop(0)
                if isinstance(what, int):
                    assert loader.skip(what) == step
                    at += what
                else:
                    assert loader.edit_mixture(what, step) == step
            batch = next(loader, None)
            if batch is None:
                return
            at = batch.step + 1
            yield batch
    except WidestreamError as error:
        yield error


def check(job: dict[str, Any], data: dict[str, list[tuple[str, list[str | None]]]], decisions: Edits = []) -> None:  # noqa: B006
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        units: dict[str, list[list[Unit]]] = {}
        for name, shards in data.items():
            (folder / name).mkdir()
            units[name] = []
            for file, texts in shards:
                path = folder / name / file
                units[name].append(
                    write_parquet_shard(path, texts, 1 + len(texts) // 2)
                    if file.endswith("parquet")
                    else write_lines_shard(path, texts)
                )
        loaded = ws.Job(
            **{
                **job,
                "data_roots": [temporary],
                "tokenizer": {"file": str(write_tokenizer(folder)), "pattern": "gpt2"},
                "sources": [{**spec, "path": str(folder / spec["name"])} for spec in job["sources"]],
                "limits": {"host_memory": "64MiB", "threads": 2},
            }
        )
        expected, failure = reference_steps(loaded.resolve(), units, decisions)
        with ws.DataLoader(loaded, rank=0, world=1, tensors="numpy") as loader:
            compare(loader, expected, failure, decisions, units)


def reference_steps(
    resolved: dict[str, Any], units: dict[str, list[list[Unit]]], decisions: Edits
) -> tuple[list[Step], StreamError | None]:
    said = [
        {"kind": "skip", "step": step, "steps": what}
        if isinstance(what, int)
        else {"kind": "edit", "step": step, "mixture": what}
        for _, step, what in decisions
    ]
    stream = Stream(resolved, units, encode, said)
    expected: list[Step] = []
    try:
        for step in stream.steps():
            expected.append(step)
            if len(expected) == STEPS + 8:  # enough for what is skipped
                break
    except StreamError as error:
        return expected, error
    return expected, None


def compare(
    loader: ws.DataLoader,
    expected: list[Step],
    failure: StreamError | None,
    decisions: Edits,
    units: dict[str, list[list[Unit]]],
) -> None:
    hashes = {}
    for name, shards in units.items():
        for shard, parts in enumerate(shards):
            texts = [record.text for unit in parts for record in unit.records]
            for number, text in enumerate(texts):
                hashes[name, shard, number] = xxh3_64_intdigest(np.array(encode(text or ""), np.uint32).tobytes())
    steps = iter(step for step in expected if not step.skipped)
    for batch in deliver(loader, decisions):
        step = next(steps, None)
        if isinstance(batch, Exception):
            assert step is None and failure is not None, f"only the engine failed, at {step}: {batch}"
            return
        assert step is not None, f"step {batch.step}: the reference ended before ({failure})"
        assert (batch.step, engine_pieces(batch, loader.source_names)) == (step.step, [tuple(p) for p in step.pieces])
        assert batch.digest == digest_of(step, hashes)
        assert batch.supervised_tokens == sum(p.length for p in step.pieces) - sum(p.last for p in step.pieces)
        assert batch.real_tokens == sum(p.length for p in step.pieces)
        if step.rows:
            placed = [row for microbatch in batch.layout[0] for row in microbatch if row]
            assert sorted(placed) == sorted(row for row in step.rows if row)
    left = next(steps, None)
    assert left is None or left.step >= STEPS, f"the engine ended before step {left.step}"
    assert failure is None or left is not None or len(expected) >= STEPS, f"only the reference failed: {failure}"


COMMON = dict(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True)


@settings(max_examples=150, **COMMON)
@given(job_of())
def test_the_engine_agrees_with_the_reference(case):
    check(*case)


@settings(max_examples=60, **COMMON)
@given(decided_job_of())
def test_the_engine_agrees_after_edits_and_skips(case):
    check(*case)


@pytest.mark.full
@pytest.mark.timeout(1800)
@settings(max_examples=3000, **COMMON)
@given(decided_job_of())
def test_the_engine_agrees_on_thousands_of_jobs(case):
    check(*case)
