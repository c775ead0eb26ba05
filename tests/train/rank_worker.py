"""One rank of a training on an in-memory stream; ranks_test starts it with torchrun.

rank_worker.py RUN_DIR SETTINGS: SETTINGS is JSON with steps, parallel, resume, fail ({rank, step, how}), model, precision.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from tests.train.fake_loader import VOCABULARY, FakeBatch, FakeLoader, FakeMicrobatch, document, pack
from widestream.train import OptimizerConfig, Trainer, TrainingConfig, TrainModelConfig
from widestream.train.ranks import Ranks, device_of, environment_ranks, join_ranks

BINS = 4  # microbatches of a step, over all ranks
MODEL = TrainModelConfig(d_model=16, layers=2, heads=2, m=2, n=3, mtp_depth=2)


class ShardedLoader(FakeLoader):
    """Every step has the same documents on any number of ranks, dealt out by cost; token counts differ wildly."""

    def __init__(self, ranks: Ranks, fail: dict | None = None) -> None:
        super().__init__(validation=3)
        self.ranks, self.fail = ranks, fail or {}

    def batch(self, step: int) -> FakeBatch:
        if self.fail.get("step") == step and self.fail.get("rank") in (self.ranks.rank, "all"):
            fail(self.fail["how"])
        generator = torch.Generator().manual_seed(step)
        # Every fifth step is one document: all ranks but one have padding alone.
        count = 1 if step % 5 == 3 else 14
        lengths = torch.randint(1, 24, (count,), generator=generator).square().div(24).long().add(1).tolist()
        documents = sorted((document(generator, length) for length in lengths), key=len, reverse=True)
        bins: list[list[torch.Tensor]] = [[] for _ in range(BINS)]
        for ids in documents:
            min(bins, key=lambda held: sum(len(d) ** 2 for d in held)).append(ids)
        every = [pack(held, 1, sum(map(len, held))) if held else filler() for held in bins]
        supervised = sum(int(mb.loss_mask.sum()) for mb in every)
        each = BINS // self.ranks.world
        mine = every[self.ranks.rank * each : (self.ranks.rank + 1) * each]
        if self.fail.get("step") == step and self.fail["rank"] == self.ranks.rank and self.fail["how"] == "forward":
            mine[-1] = Broken(**vars(mine[-1]))
        return FakeBatch(step, supervised, mine, {"a": sum(lengths)}, {"a": 1.0})

    def validation_batches(self):
        assert self.ranks.main, "held-out documents are built once"
        return super().validation_batches()


class Broken(FakeMicrobatch):
    """Fails in the forward pass, when the other ranks wait for the gradients of this one."""

    @property
    def tokens(self):
        if "seen" in vars(self):
            raise ValueError("the disk of this rank is on fire")
        vars(self)["seen"] = True
        return self.kept

    @tokens.setter
    def tokens(self, value):
        self.kept = value


def filler():
    padding = pack([torch.zeros(1, dtype=torch.int64)], 1, 1)
    assert not padding.loss_mask.any()
    return padding


def fail(how: str) -> None:
    if how == "raise":
        raise ValueError("the disk of this rank is on fire")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)


def main() -> None:
    run_dir, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    training = TrainingConfig(
        steps=settings["steps"],
        parallel=settings.get("parallel", "ddp"),
        checkpoint_every=settings.get("checkpoint_every", 5),
        keep_checkpoints=20,
        validate_every=10,
        threads=1,
        device="cpu",
        log_every=1,
        precision=settings.get("precision", "fp32"),
    )
    with join_ranks(device_of("cpu", environment_ranks())) as ranks:
        loader = ShardedLoader(ranks, settings.get("fail"))
        # A folder of its own on each rank but 0: it sees no checkpoint, and may write none.
        trainer = Trainer(
            run_dir if ranks.main else run_dir / f"nothing-{ranks.rank}",
            loader,
            vocabulary_size=VOCABULARY,
            model=MODEL.model_copy(update=settings.get("model", {})),
            optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=2, gradient_clip=0.5),
            training=training,
            seed=3,
            resume=settings.get("resume", False),
            ranks=ranks,
        )
        result = trainer.fit()
        print(f"rank {ranks.rank} delivered {loader.delivered} interrupted {result.interrupted}", flush=True)


if __name__ == "__main__":
    main()
