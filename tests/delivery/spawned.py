"""What a process that a rank spawned does: importable, so that spawn and forkserver can find it."""

from __future__ import annotations

import json

import widestream as ws
from tests.support.jobs import fingerprint, take


def first_fingerprints(job_json: str, count: int) -> list[str]:
    with ws.DataLoader(ws.Job(**json.loads(job_json)), tensors="numpy") as loader:
        return [fingerprint(batch) for batch in take(loader, count)]
