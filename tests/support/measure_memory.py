"""Memory of a data-only job: python -m tests.support.measure_memory JOB_JSON STEPS EVERY.

Prints JSON: PSS in bytes with the imports done (`imported`), and after every EVERY steps (`samples`).
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

import numpy  # noqa: F401  (the imports that both sides have)

import widestream as ws
from widestream.loader.engine import core


def pss_bytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Pss in /proc/self/smaps_rollup")


def main() -> None:
    job = ws.Job(**json.loads(Path(sys.argv[1]).read_text()))
    steps, every = int(sys.argv[2]), int(sys.argv[3])
    core()
    gc.collect()
    imported = pss_bytes()
    samples = []
    with ws.DataLoader(job, tensors="numpy") as loader:
        for step in range(1, steps + 1):
            batch = next(loader)
            assert batch.microbatches[0].tokens.shape[0] > 0
            del batch
            if step % every == 0:
                gc.collect()
                samples.append((step, pss_bytes()))
    print(json.dumps({"imported": imported, "samples": samples}))


if __name__ == "__main__":
    main()
