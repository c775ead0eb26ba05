"""The timed runs of ``bench tokenizer``: python -m widestream.bench.tokenizer_run JSON."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1_000_000
# The processor's time of the process, which other programs of the machine disturb least.
_PROCESSOR = time.process_time


def corpora(folder: str, corpus_bytes: int) -> dict[str, list[str]]:
    """Texts of each file, about ``corpus_bytes`` of UTF-8 from its beginning; texts that are not UTF-8 are left out."""
    from widestream.loader.engine import core

    found: dict[str, list[str]] = {}
    suffixes = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
    for path in sorted(Path(folder).rglob("*")):
        if not path.name.endswith(suffixes):
            continue
        shard = core().InspectedShard(str(path))
        texts: list[str] = []
        size = 0
        for unit in range(len(shard.units())):
            if size >= corpus_bytes:
                break
            for data, _, why in shard.read(unit, 1_000_000, corpus_bytes - size):
                if not why and data:
                    texts.append(data.decode())
                    size += len(data)
        if texts:
            found[path.name.split(".")[0]] = texts
    return found


def cut(texts: list[str]) -> list[list[str]]:
    """Texts in chunks of about 1 MB."""
    chunks: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size >= _CHUNK_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(text)
        size += len(text.encode())
    return chunks


def encode(arguments: dict[str, Any]) -> dict[str, Any]:
    """Every implementation over every chunk once, in turn; each chunk is new to each of them.

    The first chunk of every corpus warms up (a corpus of one chunk is halved). Ids are compared after the clock stopped.
    Returns bytes, and seconds by implementation, of each corpus, and which implementations gave other ids where.
    """
    import numpy as np

    import widestream as ws
    from widestream.bench.peers.text_encoders import peers

    tokenizer = ws.Tokenizer.from_file(arguments["tokenizer"])

    def ours(texts: list[str]) -> tuple[Any, list[int]]:
        batch = tokenizer.encode_batch(texts)
        return batch.ids, np.diff(batch.offsets).tolist()

    encoders = {"widestream": ours, **peers(arguments["family"], arguments["tokenizer"])}
    work = {}
    for name, texts in corpora(arguments["data"], arguments["corpus_bytes"]).items():
        chunks = cut(texts)
        if len(chunks) == 1:
            middle = max(len(texts) // 2, 1)
            chunks = [texts[:middle], texts[middle:] or texts]
        for encoder in encoders.values():
            encoder(chunks[0])
        work[name] = chunks[1:]
    result: dict[str, Any] = {"corpora": {}, "different": {}, "documents": 0}
    names = list(encoders)
    turn = 0
    for corpus, chunks in work.items():
        seconds: dict[str, list[float]] = {name: [] for name in names}
        sizes = []
        for chunk in chunks:
            turn += 1
            outputs = {}
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                begin = _PROCESSOR()
                outputs[name] = encoders[name](chunk)
                seconds[name].append(_PROCESSOR() - begin)
            sizes.append(sum(len(text.encode()) for text in chunk))
            result["documents"] += len(chunk)
            ids, lengths = outputs["widestream"]
            for name in names[1:]:
                if lengths != outputs[name][1] or not np.array_equal(ids, outputs[name][0]):
                    result["different"].setdefault(name, []).append(corpus)
        result["corpora"][corpus] = {"bytes": sizes, "seconds": seconds}
    return result


def faces(arguments: dict[str, Any]) -> dict[str, Any]:
    """MB/s of our encode, count and decode. Each chunk is for one of encode (then decode) and count, in turn."""
    import widestream as ws

    tokenizer = ws.Tokenizer.from_file(arguments["tokenizer"])
    seconds = {"encode": 0.0, "count": 0.0, "decode": 0.0}
    sizes = {"encode": 0, "count": 0}
    turn = 0
    for texts in corpora(arguments["data"], arguments["corpus_bytes"]).values():
        # Halves of one corpus are alike; the first of a pair and the second take turns.
        middle = len(texts) // 2
        for half in (texts[:middle], texts[middle:]):
            turn += 1
            kind = "count" if turn % 4 in (1, 2) else "encode"
            for chunk in cut(half):
                if not chunk:
                    continue
                data = "".join(chunk).encode()
                sizes[kind] += len(data)
                begin = _PROCESSOR()
                if kind == "count":
                    counted = int(tokenizer.count_batch(chunk).sum())
                    seconds["count"] += _PROCESSOR() - begin
                    if counted != len(tokenizer.encode_batch(chunk).ids):
                        raise AssertionError("count is not the number of ids")
                    continue
                batch = tokenizer.encode_batch(chunk)
                seconds["encode"] += _PROCESSOR() - begin
                begin = _PROCESSOR()
                decoded = tokenizer.decode_bytes(batch.ids)
                seconds["decode"] += _PROCESSOR() - begin
                if decoded != data and arguments["family"] != "qwen3":  # which normalizes
                    raise AssertionError("decoding does not give the text back")
    return {
        "encode": sizes["encode"] / 1e6 / seconds["encode"],
        "decode": sizes["encode"] / 1e6 / seconds["decode"],
        "count": sizes["count"] / 1e6 / seconds["count"],
    }


def threads(arguments: dict[str, Any]) -> dict[str, Any]:
    """MB/s by the wall's clock with one thread and with two, a chunk each in turn, on the same two cores."""
    import widestream as ws

    tokenizer = ws.Tokenizer.from_file(arguments["tokenizer"])
    chunks = [chunk for texts in corpora(arguments["data"], arguments["corpus_bytes"]).values() for chunk in cut(texts)]
    for chunk in chunks[:2]:
        tokenizer.encode_batch(chunk, threads=2)
    pairs: list[list[float]] = []
    for first, second in zip(chunks[::2], chunks[1::2], strict=False):
        speeds = {}
        order = (1, 2) if len(pairs) % 2 else (2, 1)
        for number, chunk in zip(order, (first, second), strict=True):
            size = sum(len(text.encode()) for text in chunk)
            begin = time.perf_counter()
            tokenizer.encode_batch(chunk, threads=number)
            speeds[number] = size / 1e6 / (time.perf_counter() - begin)
        pairs.append([speeds[2], speeds[1]])
    return {"pairs": pairs}


def load(arguments: dict[str, Any]) -> dict[str, Any]:
    """Milliseconds to load the vocabulary again and again, and the memory that one costs."""
    from widestream.loader.engine import core

    engine = core()
    before = _pss()
    kept = engine.Tokenizer.from_file(arguments["tokenizer"])
    kept.encode("Hello")
    memory = _pss() - before
    times = []
    for _ in range(5):
        begin = _PROCESSOR()
        engine.Tokenizer.from_file(arguments["tokenizer"])
        times.append((_PROCESSOR() - begin) * 1e3)
    return {"milliseconds": statistics.median(times), "megabytes": memory / 1e6}


def _pss() -> int:
    """Proportional set size of this process, bytes."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError("the system does not tell the memory of a process: /proc/self/smaps_rollup has no Pss")


# Inputs on which tokenizers are known to become quadratic.
HARD = {
    "one letter": "a",
    "spaces": " ",
    "digits": "7",
    "line ends": "\n",
    "CJK": "\u4e2d",
    "combining marks": "\u0301",
    "punctuation": "!",
    "two letters": "ab",
    "emoji": "\U0001f468\u200d",
}


def hard(arguments: dict[str, Any]) -> dict[str, Any]:
    """MB/s on each of the hard inputs of ``size_bytes``, which decode to themselves."""
    import widestream as ws

    tokenizer = ws.Tokenizer.from_file(arguments["tokenizer"])
    speeds = {}
    for name, unit in HARD.items():
        data = (unit.encode() * (arguments["size_bytes"] // len(unit.encode()))).decode().encode()
        begin = _PROCESSOR()
        ids = tokenizer.encode(data)
        speeds[name] = len(data) / 1e6 / (_PROCESSOR() - begin)
        if tokenizer.decode_bytes(ids) != data:
            raise AssertionError(f"{name}: decoding does not give the text back")
    return speeds


RUNS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "encode": encode,
    "faces": faces,
    "threads": threads,
    "load": load,
    "hard": hard,
}


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    # The peers' own pools read this when they are made.
    os.environ["RAYON_NUM_THREADS"] = "1"
    return RUNS[arguments["run"]](arguments)


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
