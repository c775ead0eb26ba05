"""What it costs to hand batches from a node's host to its ranks: time, bandwidth, memory.

Nothing is faked: two or more client processes attach to a server process as trainers do. The peer is the worker queue of
a torch DataLoader, which moves each batch into shared memory.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from widestream.bench.delivery_roles import LENGTH, ROWS, words_job
from widestream.bench.harness import Figure, commit, in_process, ratio_of_medians
from widestream.errors import InternalError, InvalidArgumentError

_ROLES = "widestream.bench.delivery_roles"
_MIB = 2**20
# mesh by number of ranks; the global batch stays
_GROUPINGS: list[tuple[str, dict[str, int]]] = [
    ("dp 2", {"dp": 2}),
    ("tp 2", {"dp": 1, "tp": 2}),
    ("dp 4", {"dp": 4}),
    ("dp 2 x cp 2", {"dp": 2, "cp": 2}),
    ("dp 2 x tp 2", {"dp": 2, "tp": 2}),
    ("dp 8", {"dp": 8}),
    ("dp 2 x cp 2 x tp 2", {"dp": 2, "cp": 2, "tp": 2}),
    ("dp 2 x tp 2 x pp 2", {"dp": 2, "tp": 2, "pp": 2}),
]


def run(*, quick: bool, tokenizer: str | None = None, pairs: int = 5) -> Iterator[Figure]:
    """``tokenizer``: a tokenizer file with the special token ``<|endoftext|>``."""
    if tokenizer is None:
        raise InvalidArgumentError("bench delivery needs --tokenizer FILE")
    with tempfile.TemporaryDirectory(prefix="ws-") as folder:
        file = str(Path(tokenizer).resolve())
        yield _hand_over(Path(folder), file, steps=20 if quick else 400, quick=quick)
        for size in [1, 4] if quick else [1, 4, 16, 64, 256]:
            yield _bandwidth(Path(folder), size * _MIB, pairs=1 if quick else pairs, quick=quick)
        yield _waiting(Path(folder), file, steps=20 if quick else 60, quick=quick)
        yield from _memory(Path(folder), file, _GROUPINGS[:2] if quick else _GROUPINGS, quick=quick)


def _hand_over(folder: Path, tokenizer: str, *, steps: int, quick: bool) -> Figure:
    said = _ranks(folder / "hand_over", {"dp": 2}, {"role": "hand_over", "tokenizer": tokenizer, "steps": steps})
    seconds = [sample for rank in said for sample in rank["hand_over_seconds"]]
    if any(rank["bytes_copied"] for rank in said):
        raise InternalError("the client copied tensor bytes; the figure is void")
    value = statistics.median(seconds) * 1e6
    return Figure(
        id="delivery-hand-over",
        case=f"next, tensors of all fields and release, {ROWS} x {LENGTH} tokens a rank, two ranks that compute between steps, median of {len(seconds)}",
        value=value,
        unit="microseconds a batch",
        better="lower",
        goal=50.0,
        met=None if quick else value <= 50.0,
        against=None,
        floor={
            "name": "reading a word of each 4 KiB of the batch after it, median",
            "value": statistics.median(s for rank in said for s in rank["touch_seconds"]) * 1e6,
        },
        checked=f"0 tensor bytes copied, {said[0]['mappings']} mappings for {said[0]['batches']} batches",
        pairs=[[sample] for sample in sorted(seconds)],
        commit=commit(),
    )


def _waiting(folder: Path, tokenizer: str, *, steps: int, quick: bool) -> Figure:
    """Trains on two ranks with one host, as a user does; the longest wait of any rank, step by step."""
    from widestream.train import read_metrics

    folder = folder / "train"
    folder.mkdir()
    job = words_job(folder, tokenizer, rows=8, length=256, mesh={"dp": 2})
    job |= {
        "run_dir": str(folder / "run"),
        "model": {"d_model": 128, "layers": 4, "m": 2, "n": 4, "mtp_depth": 1},
        "training": {"steps": steps, "checkpoint_every": steps},
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "widestream.cli", "train", str(folder / "job.json")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WIDESTREAM_RUNTIME_DIR": str(folder / "r")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    if done.returncode != 0:
        raise InternalError(f"training on two ranks failed with exit code {done.returncode}: {done.stderr[-2000:]}")
    # The first steps wait for the pipeline to fill.
    records = read_metrics(folder / "run" / "metrics.jsonl")[5:]
    if len(records) != steps - 5:
        raise InternalError(f"{len(records) + 5} of {steps} steps were logged; the figure is void")
    value = 100 * sum(r["wait_seconds"] for r in records) / sum(r["seconds"] for r in records)
    return Figure(
        id="delivery-waiting",
        case="training on two ranks with one host, 8 x 256 tokens a step, the longest wait of any rank",
        value=value,
        unit="% of step time",
        better="lower",
        goal=1.0,
        met=None if quick else value < 1.0,
        against=None,
        floor={"name": "median step, milliseconds", "value": 1e3 * statistics.median(r["seconds"] for r in records)},
        checked=f"{steps} steps logged, loss {records[0]['loss']:.2f} to {records[-1]['loss']:.2f}",
        pairs=[[r["wait_seconds"], r["seconds"]] for r in records],
        commit=commit(),
    )


def _bandwidth(folder: Path, size_bytes: int, *, pairs: int, quick: bool) -> Figure:
    batches = max(16, min(400, 2048 * _MIB // size_bytes)) if not quick else 8
    samples: list[list[float]] = []
    for _ in range(pairs):
        # Until each of the host's slabs has been used once, pages are made.
        arguments = {"size_bytes": size_bytes, "batches": batches, "warm_up": 6, "folder": str(folder)}
        ours = in_process(_ROLES, {"role": "bandwidth", **arguments})
        theirs = in_process("widestream.bench.peers.torch_queue", arguments)
        if ours["sum"] != theirs["sum"]:
            raise InternalError("the consumers read different bytes; the figure is void")
        samples.append([ours["bytes_per_second"], theirs["bytes_per_second"]])
    value = ratio_of_medians(samples)
    goal = 10.0 if size_bytes >= 16 * _MIB else None
    return Figure(
        id="delivery-bandwidth",
        case=f"batches of {size_bytes // _MIB} MiB, one producer and one consumer process, a word of each page read",
        value=value,
        unit="times the peer's bytes/s",
        better="higher",
        goal=goal,
        met=None if quick or goal is None else value >= goal,
        against={
            "name": "torch DataLoader worker queue",
            "version": f"torch {metadata.version('torch')}",
            "settings": "num_workers=1, batch_size=1, default collate: one copy into shared memory",
            "value": samples[-1][1],
        },
        floor=None,
        checked="both consumers read the same words",
        pairs=samples,
        commit=commit(),
    )


def _memory(
    folder: Path, tokenizer: str, groupings: list[tuple[str, dict[str, int]]], *, quick: bool
) -> Iterator[Figure]:
    beyond: dict[str, tuple[int, float]] = {}
    for name, mesh in groupings:
        world = 1
        for size in mesh.values():
            world *= size
        said = _ranks(folder / name.replace(" ", ""), mesh, {"role": "memory", "tokenizer": tokenizer, "steps": 6})
        total = sum(rank["pss_bytes"] - rank["bare_bytes"] for rank in said) + said[0]["host_bytes"]
        beyond[name] = (world, total)
    first_world, first = next(iter(beyond.values()))
    for name, (world, total) in beyond.items():
        growth = (total - first) / max(1, world - first_world) / 1e6
        yield Figure(
            id="delivery-memory",
            case=f"{name}: host and {world} ranks, {2 * ROWS} x {LENGTH} tokens a step in all, beyond each rank's own imports",
            value=total / 1e6,
            unit="MB of PSS",
            better="lower",
            goal=first / 1e6 + 5.0 * (world - first_world) if world > first_world else None,
            met=None if quick or world == first_world else growth <= 5.0,
            against=None,
            floor={"name": "growth a rank beyond the first row, MB", "value": growth if world > first_world else 0.0},
            checked="every rank held a batch with all its pages read",
            pairs=[[total]],
            commit=commit(),
        )


def _ranks(folder: Path, mesh: dict[str, int], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a role on every rank of a node that torchrun's environment describes; what each printed."""
    folder.mkdir()
    world = 1
    for size in mesh.values():
        world *= size
    text = json.dumps({**arguments, "folder": str(folder), "mesh": mesh, "world": world})
    processes = []
    for rank in range(world):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world),
            "MASTER_PORT": str(os.getpid()),
            "WIDESTREAM_RUNTIME_DIR": str(folder / "r"),
        }
        command = [sys.executable, "-m", _ROLES, text]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    said = []
    try:
        for rank, process in enumerate(processes):
            out, err = process.communicate(timeout=600)
            if process.returncode != 0:
                raise InternalError(f"rank {rank} failed with exit code {process.returncode}: {err[-2000:]}")
            said.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return said
