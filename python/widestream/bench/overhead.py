"""What the engine costs beside the tokenizer: microseconds a record, and the time of ``import widestream``.

Many tiny texts, so that the cost of a record stands out. The tokenizer's share is measured alone on the same texts in
the same run, and subtracted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from widestream.bench.harness import Figure, commit, in_process
from widestream.errors import InvalidArgumentError

_RECORDS = 200_000
_QUICK_RECORDS = 2_000


def run(*, quick: bool, tokenizer: str | None = None, pairs: int = 5) -> Iterator[Figure]:
    """``tokenizer``: a tokenizer file with the special token ``<|endoftext|>``."""
    if tokenizer is None:
        raise InvalidArgumentError("bench overhead needs --tokenizer FILE")
    records = _QUICK_RECORDS if quick else _RECORDS
    samples: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.jsonl"
        path.write_text("".join(f'{{"text": "a{index % 977}"}}\n' for index in range(records)))
        arguments: dict[str, Any] = {"file": str(path), "tokenizer": str(Path(tokenizer).resolve()), "records": records}
        for _ in range(1 if quick else pairs):
            result = in_process("widestream.bench.overhead", arguments, {0})
            if result["delivered"] != records:
                raise InvalidArgumentError(f"{result['delivered']} of {records} records were delivered; void")
            samples.append([result["loader_seconds"], result["tokenizer_seconds"]])
    value = statistics.median((loader - alone) / records * 1e6 for loader, alone in samples)
    yield Figure(
        id="S-01",
        case=f"{records} JSON Lines of 4 bytes of text, packed into 8 x 4096, one core, tokenizer excluded",
        value=value,
        unit="microseconds a record",
        better="lower",
        goal=None,
        met=None,
        against=None,
        floor={"name": "tokenizer alone", "value": samples[-1][1] / records * 1e6},
        checked="every record was delivered",
        pairs=samples,
        commit=commit(),
    )
    imports = [[_import_seconds("import widestream"), _import_seconds("pass")] for _ in range(1 if quick else 9)]
    value = statistics.median(a - b for a, b in imports)
    yield Figure(
        id="import",
        case="import widestream in a fresh process, beyond the interpreter's own start",
        value=value,
        unit="seconds",
        better="lower",
        goal=0.3,
        met=None if quick else value < 0.3,
        against=None,
        floor={"name": "python -c pass", "value": imports[-1][1]},
        checked="the import succeeded",
        pairs=imports,
        commit=commit(),
    )


def _import_seconds(statement: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - begin


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """One timed run in this process: the loader, then the tokenizer alone on the same texts."""
    import widestream as ws
    from widestream.loader.engine import core

    job = ws.Job(
        name="bench-overhead",
        data_roots=[str(Path(arguments["file"]).parent)],
        tokenizer={"file": arguments["tokenizer"], "append": ["<|endoftext|>"]},
        sources=[{"name": "tiny", "path": arguments["file"], "max_epochs": 1}],
        mixture={"unit": "tokens", "stages": [{"weights": {"tiny": 1.0}}]},
        batch={"sequence_length": 4096, "rows": 8, "layout": "rows"},
        limits={"host_memory": "512MiB", "threads": 1},
    )
    begin = time.perf_counter()
    delivered = 0
    with ws.DataLoader(job, tensors="numpy") as loader:
        for batch in loader:
            delivered += int(batch.pieces["last"].sum())
    loader_seconds = time.perf_counter() - begin
    texts = [json.loads(line)["text"] for line in Path(arguments["file"]).read_text().splitlines()]
    encoder = core().Tokenizer.from_file(arguments["tokenizer"])
    begin = time.perf_counter()
    encoder.encode_batch(texts)
    return {
        "delivered": delivered,
        "loader_seconds": loader_seconds,
        "tokenizer_seconds": time.perf_counter() - begin,
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
