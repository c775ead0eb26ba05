"""Small jobs over generated text, for tests."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import widestream as ws

TOKENIZERS = Path(__file__).resolve().parents[1] / "data" / "tokenizers"
WORDS = "the a stream of records is read once per job and every token but the first is a target exactly once".split()


def sentences(seed: int, count: int, longest_words: int = 60) -> list[str]:
    """Texts of very different lengths, the same for the same seed."""
    rng = random.Random(seed)
    texts = []
    for index in range(count):
        words = 1 + int(longest_words * rng.random() ** 3)
        texts.append(f"{seed}-{index} " + " ".join(rng.choice(WORDS) for _ in range(words)))
    return texts


def write_jsonl(path: Path, texts: Iterable[str]) -> Path:
    """One JSON line a text; compressed if the name says so (.gz)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_parquet(path: Path, texts: Iterable[str], row_group_size: int = 50) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        pa.table({"id": range(len(texts := list(texts))), "text": texts}), path, row_group_size=row_group_size
    )
    return path


def small_job(folder: Path, *, run_dir: bool = False, **changes: Any) -> ws.Job:
    """Three sources (Parquet in two shards, JSON Lines plain and gz), a staged mixture, rows of 64 tokens."""
    data = folder / "data"
    if not data.exists():
        write_parquet(data / "prose" / "a.parquet", sentences(1, 120))
        write_parquet(data / "prose" / "b.parquet", sentences(2, 70), row_group_size=7)
        write_jsonl(data / "code.jsonl", sentences(3, 150))
        write_jsonl(data / "qa.jsonl.gz", sentences(4, 80, longest_words=12))
    settings: dict[str, Any] = {
        "name": "small",
        "seed": 5,
        "data_roots": [str(folder)],
        "tokenizer": {"file": str(TOKENIZERS / "r50k_base.tiktoken"), "append": ["<|endoftext|>"]},
        "sources": [
            {"name": "prose", "path": str(data / "prose" / "*.parquet"), "shuffle": {"records": 20, "bytes": "8KiB"}},
            {"name": "code", "path": str(data / "code.jsonl"), "shuffle": {"records": 16, "bytes": "2KiB"}},
            {"name": "qa", "path": str(data / "qa.jsonl.gz"), "shuffle": {"records": 10, "bytes": "2KiB"}},
        ],
        "mixture": {
            "unit": "tokens",
            "stages": [
                {"until": 4000, "weights": {"prose": 0.5, "code": 0.5}},
                {"weights": {"prose": 0.2, "code": 0.5, "qa": 0.3}, "ramp": 2000},
            ],
        },
        "batch": {"sequence_length": 64, "rows": 8, "microbatch_tokens": 256, "layout": "rows"},
        "limits": {"host_memory": "64MiB", "threads": 2},
        "errors": {"record_bytes": "1MiB"},
    }
    if run_dir:
        settings["run_dir"] = str(folder / "run")
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            settings[key] = {**settings[key], **value}
        else:
            settings[key] = value
    return ws.Job(**settings)


def members(batch: ws.Batch) -> list[tuple[int, ...]]:
    """The step's membership: (source, epoch, shard, record, start, length, hash of the record's ids), sorted."""
    pieces = batch.pieces
    columns = ("source", "epoch", "shard", "record", "start", "length", "ids_hash")
    return sorted(zip(*(pieces[name].tolist() for name in columns), strict=True))


def fingerprint(batch: ws.Batch) -> str:
    """A hash of every byte of every tensor of this rank's batch."""
    digest = hashlib.sha256(str((batch.step, batch.supervised_tokens)).encode())
    for microbatch in batch.microbatches:
        for name, tensor in sorted(microbatch.tensors().items()):
            digest.update(f"{name}{tuple(tensor.shape)}{microbatch.max_seqlen}".encode())
            digest.update(
                bytes(memoryview(tensor).cast("B")) if not hasattr(tensor, "numpy") else tensor.numpy().tobytes()
            )
    return digest.hexdigest()


def take(loader: ws.DataLoader, count: int | None = None) -> list[ws.Batch]:
    batches = []
    while count is None or len(batches) < count:
        batch = next(loader, None)
        if batch is None:
            break
        batches.append(batch)
    return batches
