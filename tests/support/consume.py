"""A trainer for kill tests: takes batches, logs each, checkpoints every few steps, goes on from the last checkpoint.

python -m tests.support.consume JOB_JSON OUT STEPS
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import widestream as ws
from tests.support.jobs import fingerprint

CHECKPOINT_EVERY = 3


def main() -> None:
    job = ws.Job(**json.loads(Path(sys.argv[1]).read_text()))
    out = Path(sys.argv[2])
    steps = int(sys.argv[3])
    out.mkdir(exist_ok=True)
    checkpoint, log = out / "checkpoint.json", out / "log"
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else None
    done = state["step"] if state else 0
    # A trainer that goes back to its checkpoint forgets what it consumed after it.
    lines = log.read_text().splitlines(keepends=True)[:done] if log.exists() else []
    log.write_text("".join(lines))
    with ws.DataLoader(job, state=state, tensors="numpy") as loader, log.open("a") as file:
        while done < steps:
            batch = next(loader)
            file.write(f"{batch.step} {batch.digest} {fingerprint(batch)}\n")
            file.flush()
            done = batch.step + 1
            time.sleep(0.01)  # a step of training: leaves room to be killed in
            if done % CHECKPOINT_EVERY == 0:
                loader.commit()
                temporary = checkpoint.with_suffix(".new")
                temporary.write_text(json.dumps(loader.state_dict()))
                temporary.replace(checkpoint)
    (out / "done").touch()


if __name__ == "__main__":
    main()
