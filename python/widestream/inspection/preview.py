"""What a rank will see at a step: its rows as decoded text with document borders."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from widestream.errors import InvalidArgumentError
from widestream.inspection.provenance import piece_tokens

if TYPE_CHECKING:
    from widestream.job import Job
    from widestream.loader import Batch, DataLoader


def preview(job: Job, step: int, rank: int = 0, world: int | None = None) -> dict[str, Any]:
    """Builds one step of a job for one rank, without a journal, and decodes it.

    Returns step, rank, world, layout, digest, real_tokens, supervised_tokens (of the whole step), tokens_by_source and
    microbatches. Each microbatch has max_seqlen, real_tokens and rows; each row tokens, padding (slots without a token)
    and pieces: source, shard, record, start, stop (tokens of the record), epoch, begins (the document begins here), ends
    (it ends here), supervised (targets in it) and text.

    Raises InvalidArgumentError if there is no such rank or the stream ends before the step, and what the loader raises.
    """
    from widestream.loader import DataLoader

    if step < 0:
        raise InvalidArgumentError(f"step {step} is below 0; the first step is 0")
    looked_at = job.model_copy(deep=True)
    looked_at.run_dir = None  # looking leaves no journal
    ranks = world or job.mesh.dp or 1
    if not 0 <= rank < ranks:
        raise InvalidArgumentError(f"there is no rank {rank} among {ranks}; choose 0 to {ranks - 1}, or give world")
    with DataLoader(looked_at, rank=rank, world=ranks, tensors="numpy") as loader:
        if step:
            loader.skip(step)
        batch = next(loader, None)
        while batch is not None and batch.step < step:
            batch = next(loader, None)
        if batch is None:
            raise InvalidArgumentError(f"the stream ends before step {step}; choose an earlier one")
        return _describe(batch, loader, str(job.batch.layout), ranks)


def _describe(batch: Batch, loader: DataLoader, layout: str, world: int) -> dict[str, Any]:
    found = iter(piece_tokens(batch))
    ends = batch.pieces["last"]
    microbatches = []
    for microbatch, indices_by_row in zip(batch.microbatches, batch.layout[batch.rank], strict=True):
        mask = np.asarray(microbatch.loss_mask)
        starts = microbatch.cu_seqlens_padded
        rows = []
        for row, indices in enumerate(indices_by_row):
            pieces = []
            at = 0
            for number, index in enumerate(indices):
                span, ids = next(found)
                begin = at if starts is None else int(starts[number])
                at += len(ids)
                where = asdict(span)
                del where["row"], where["microbatch"]
                pieces.append(
                    {
                        **where,
                        "begins": span.start == 0,
                        "ends": bool(ends[index]),
                        "supervised": int(mask[row, begin : begin + len(ids)].sum()),
                        "text": loader.decode(ids).decode("utf-8", "replace"),
                    }
                )
            rows.append({"tokens": at, "padding": int(mask.shape[1]) - at, "pieces": pieces})
        microbatches.append({"max_seqlen": microbatch.max_seqlen, "real_tokens": microbatch.real_tokens, "rows": rows})
    return {
        "step": batch.step,
        "rank": batch.rank,
        "world": world,
        "layout": layout,
        "digest": batch.digest,
        "real_tokens": batch.real_tokens,
        "supervised_tokens": batch.supervised_tokens,
        "tokens_by_source": batch.tokens_by_source,
        "microbatches": microbatches,
    }
