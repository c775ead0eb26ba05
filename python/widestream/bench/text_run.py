"""One timed run of our loader for ``bench text``: python -m widestream.bench.text_run JSON."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import widestream as ws


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    files: list[str] = arguments["files"]
    tokenizer = arguments["tokenizer"]
    source = {
        "name": "text",
        "path": files,
        "text": "text",
        "max_epochs": 1,
        "shuffle": arguments.get("shuffle", False),
    }
    job = ws.Job(
        name="bench-text",
        seed=1,
        data_roots=sorted({str(Path(file).parent) for file in files}),
        tokenizer={"file": tokenizer, "append": ["<|endoftext|>"]},
        sources=[source],
        mixture={"unit": "tokens", "stages": [{"weights": {"text": 1.0}}]},
        batch={"sequence_length": 4096, "rows": 8, "layout": "rows"},
        limits={"host_memory": "512MiB", "threads": arguments["threads"]},
    )
    kept: list[Any] = []
    begin = time.perf_counter()
    tokens = 0
    with ws.DataLoader(job, tensors="numpy") as loader:
        for batch in loader:
            tokens += batch.real_tokens
            microbatch = batch.microbatches[0]
            # The check's copy of the ids; the peer makes the same.
            kept.append(microbatch.tokens[microbatch.segment_ids > 0].astype(np.uint16))
    seconds = time.perf_counter() - begin
    return {
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "counts_hash": counts_hash(kept),
        "seconds": seconds,
    }


def counts_hash(parts: list[Any]) -> str:
    """A hash of how often each id occurs."""
    import hashlib

    counts = np.zeros(65536, dtype=np.int64)
    for part in parts:
        counts += np.bincount(part, minlength=65536)
    return hashlib.sha256(counts.tobytes()).hexdigest()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
