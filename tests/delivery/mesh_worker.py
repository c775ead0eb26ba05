"""Compares what a rank fetches with what its leader broadcasts: python -m tests.delivery.mesh_worker JOB AXES."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import widestream as ws
from tests.support.jobs import take
from widestream.loader.broadcast import Broadcaster


def main() -> None:
    values = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    with ws.DataLoader(ws.Job(**values)) as loader:
        fetched = [[mb.copy().tensors() for mb in batch.microbatches] for batch in take(loader, 4)]
    dist.barrier()
    step = {"broadcast_at": sys.argv[2].split(",")}
    default = ["mix", {"pack": "best_fit"}, {"cost": "transformer"}, {"distribute": "dp"}, {"balance": "lpt"}]
    job = ws.Job(**{**values, "strategy": [*default, step, "plan"]})
    broadcaster = Broadcaster.of_job(job, dist.get_world_size(), check=True)
    loader = ws.DataLoader(job) if broadcaster.leads else None
    batches = broadcaster.batches(loader)
    for expected in fetched:
        got = [mb.tensors() for mb in next(batches).microbatches]
        for ours, theirs in zip(got, expected, strict=True):
            assert set(ours) == set(theirs), (set(ours), set(theirs))
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    sys.stdout.write(f"rank {dist.get_rank()} equal\n")
    sys.stdout.flush()
    dist.barrier()
    if loader is not None:
        loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
