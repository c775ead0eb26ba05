"""The pieces of one rank's step, decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from widestream.errors import InvalidArgumentError

if TYPE_CHECKING:
    from widestream.job import Job


def preview_step(job: Job, *, step: int, rank: int, world: int | None) -> list[dict[str, Any]]:
    """microbatch, row, source, shard, record, epoch, start, stop (tokens of the record), text; in batch order.

    Raises InvalidArgumentError if the stream ends before the step, or there is no such rank.
    """
    from widestream.loader import DataLoader

    looked_at = job.model_copy(deep=True)
    looked_at.run_dir = None  # looking leaves no journal
    ranks = world or job.mesh.dp or 1
    if rank >= ranks:
        raise InvalidArgumentError(f"there is no rank {rank} among {ranks}; choose 0 to {ranks - 1}, or give --world")
    with DataLoader(looked_at, rank=rank, world=ranks, tensors="numpy") as loader:
        if step:
            loader.skip(step)
        batch = next(loader, None)
        while batch is not None and batch.step < step:
            batch = next(loader, None)
        if batch is None:
            raise InvalidArgumentError(f"the stream ends before step {step}; choose an earlier one")
        pieces = []
        offset = 0
        place: tuple[int | None, int | None] | None = None
        for span in batch.sources():
            if place != (span.microbatch, span.row):
                place, offset = (span.microbatch, span.row), 0
            tokens = batch.microbatches[span.microbatch or 0].tokens[span.row or 0]
            length = span.stop - span.start
            text = loader.decode(tokens[offset : offset + length]).decode("utf-8", "replace")
            offset += length
            pieces.append(
                {
                    "microbatch": span.microbatch,
                    "row": span.row,
                    "source": span.source,
                    "shard": span.shard,
                    "record": span.record,
                    "epoch": span.epoch,
                    "start": span.start,
                    "stop": span.stop,
                    "text": text,
                }
            )
        return pieces
