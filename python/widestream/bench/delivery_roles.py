"""The processes of ``bench delivery``: ``python -m widestream.bench.delivery_roles JSON``."""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

ROWS, LENGTH = 8, 8192
_PAGE_WORDS = 4096 // 8
# A rank's step. It computes: a core that slept is slow for a while, which a trainer's is not.
_STEP_SECONDS = 0.03


def hand_over(arguments: dict[str, Any]) -> dict[str, Any]:
    """Times next, the views and the release of each batch; between them the rank's step, in which the host builds."""
    import torch

    import widestream as ws

    torch.set_num_threads(1)
    matrix = torch.rand(128, 128)
    hand_over_seconds, touch_seconds = [], []
    with ws.DataLoader(_job(arguments)) as loader:
        for _ in range(arguments["steps"]):
            end = time.perf_counter() + _STEP_SECONDS
            while time.perf_counter() < end:
                matrix @ matrix
            begin = time.perf_counter()
            batch = next(loader)
            microbatches = batch.microbatches
            given = time.perf_counter()
            _touch(microbatches)
            touched = time.perf_counter()
            del batch, microbatches
            released = time.perf_counter()
            hand_over_seconds.append(given - begin + released - touched)
            touch_seconds.append(touched - given)
        counters = loader.counters()
    # The first steps wait for the pipeline to fill.
    skip = min(10, arguments["steps"] // 2)
    return {"hand_over_seconds": hand_over_seconds[skip:], "touch_seconds": touch_seconds[skip:], **counters}


def memory(arguments: dict[str, Any]) -> dict[str, Any]:
    """PSS of this rank before it attaches and while it holds a batch; the first rank adds the host's."""
    import numpy as np

    import widestream as ws
    from widestream.loader.engine import core

    core()
    job = _job(arguments)
    folder, rank = Path(arguments["folder"]), _rank()
    np.zeros(1).sum()
    # PSS splits shared pages by who has them: all ranks must be there at both looks.
    _meet(folder / "bare", rank, arguments["world"])
    bare = _pss_bytes("self")
    _meet(folder / "measured", rank, arguments["world"])
    with ws.DataLoader(job, tensors="numpy") as loader:
        for _ in range(arguments["steps"]):
            batch = next(loader)
            _touch(batch.microbatches)
        _meet(folder / "held", rank, arguments["world"])
        pss = _pss_bytes("self")
        host = _pss_bytes(str(loader.host_pid)) if rank == 0 else 0
        _meet(folder / "done", rank, arguments["world"])
        del batch
    return {"pss_bytes": pss, "bare_bytes": bare, "host_bytes": host}


def bandwidth(arguments: dict[str, Any]) -> dict[str, Any]:
    """A producer in a process of its own, this one consumes; seconds of all batches but the first."""
    import subprocess

    from widestream.loader.engine import core

    folder = Path(arguments["folder"]) / "bandwidth"
    folder.mkdir(mode=0o700, exist_ok=True)
    producer = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, json.dumps({**arguments, "role": "produce", "folder": str(folder)})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert producer.stdout is not None
    try:
        socket = producer.stdout.readline().strip()
        client = core().Client(socket, "", rank=0, world=1, launch_id="bench")
        total = 0
        begin = 0.0
        for number in range(arguments["warm_up"] + arguments["batches"]):
            if number == arguments["warm_up"]:
                begin, total = time.perf_counter(), 0
            batch = client.next(60.0)
            total += int(batch.microbatches()[0]["tokens"][0, ::_PAGE_WORDS].sum())
            del batch
        seconds = time.perf_counter() - begin
        client.stop()
    finally:
        producer.communicate("")
    return {"bytes_per_second": arguments["batches"] * arguments["size_bytes"] / seconds, "sum": total}


def produce(arguments: dict[str, Any]) -> None:
    """Serves constant steps until its standard input ends."""
    from widestream.loader.engine import core

    server = core().HostServer.constant(
        arguments["folder"],
        steps=arguments["warm_up"] + arguments["batches"],
        ranks=1,
        bucket_bytes=arguments["size_bytes"],
    )
    sys.stdout.write(server.socket_path + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    server.stop()


def _touch(microbatches: list[Any]) -> int:
    return sum(
        int(tensor.reshape(-1)[:: max(1, 4096 // tensor.itemsize)].sum())
        for mb in microbatches
        for tensor in mb.tensors().values()
    )


def _rank() -> int:
    import os

    return int(os.environ["RANK"])


def _meet(folder: Path, rank: int, world: int) -> None:
    """A barrier over files."""
    folder.mkdir(exist_ok=True)
    (folder / str(rank)).touch()
    while len(list(folder.iterdir())) < world:
        time.sleep(0.02)


def _pss_bytes(process: str) -> int:
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the kernel tells no PSS")


def _job(arguments: dict[str, Any]) -> Any:
    """The same on every rank; the first one writes the words."""
    import widestream as ws

    folder = Path(arguments["folder"])
    return ws.Job(
        **words_job(
            folder,
            arguments["tokenizer"],
            rows=2 * ROWS,
            length=LENGTH,
            mesh=arguments["mesh"],
            write=_rank() == 0,
        )
    )


def words_job(
    folder: Path, tokenizer: str, *, rows: int, length: int, mesh: dict[str, int], write: bool = True
) -> dict[str, Any]:
    """A job of random words in ``folder``; if it does not ``write`` them, it waits until another process has."""
    data = folder / "words.jsonl"
    if write:
        random_words = random.Random(1)
        words = [
            "".join(random_words.choices("abcdefghijklmnopqrstuvwxyz", k=random_words.randint(1, 9)))
            for _ in range(5000)
        ]
        with (folder / "new").open("w") as file:
            for _ in range(3000):
                file.write(
                    json.dumps({"text": " ".join(random_words.choices(words, k=random_words.randint(10, 900)))}) + "\n"
                )
        (folder / "new").rename(data)
    while not data.exists():
        time.sleep(0.02)
    return {
        "name": "bench-delivery",
        "data_roots": [str(folder)],
        "tokenizer": {"file": tokenizer, "append": ["<|endoftext|>"]},
        "sources": [{"name": "words", "path": str(data)}],
        "mixture": {"unit": "tokens", "stages": [{"weights": {"words": 1.0}}]},
        "batch": {"sequence_length": length, "rows": rows, "layout": "rows"},
        "mesh": mesh,
        "limits": {"host_memory": "256MiB", "threads": 1},
    }


_ROLES = {"hand_over": hand_over, "memory": memory, "bandwidth": bandwidth, "produce": produce}

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    result = _ROLES[given["role"]](given)
    if result is not None:
        print(json.dumps(result))
