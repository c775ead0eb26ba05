"""A dry run: what the planner would do at some steps of a job, without a trainer and without a journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from widestream.errors import InvalidArgumentError

if TYPE_CHECKING:
    from widestream.job import Job
    from widestream.loader import Batch


def dry_run(
    job: Job,
    first: int,
    stop: int,
    world: int | None = None,
    on_step: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Plans the steps ``first`` to ``stop - 1`` of a job. Texts are read and tokenized for it, as their lengths decide.

    Args:
        world: data-parallel ranks; default: the job's.
        on_step: called with the number of steps that are done.

    Returns:
        job, ranks, layout, first, stop, ended (the stream ends before ``stop``), lengths (pieces by length in tokens),
        and steps. Each step has step, real_tokens, supervised_tokens, tokens_by_source, wanted_by_source (shares),
        costs (one a rank), spread (largest cost over the mean), pieces, cut_pieces (that are not a whole document),
        microbatches, padding_share (of the slots; with the layouts other than rows, whose ranks may differ, of rank 0's:
        ``padding_of`` says which) and size_bytes (of rank 0's tensors).

    Raises:
        InvalidArgumentError: no step is asked for, or the stream ends before ``first``; and what the loader raises.
    """
    from widestream.loader import DataLoader

    if not 0 <= first < stop:
        raise InvalidArgumentError(f"steps {first}:{stop} are none; write FIRST:STOP with 0 <= FIRST < STOP")
    looked_at = job.model_copy(deep=True)
    looked_at.run_dir = None  # looking leaves no journal
    ranks = world or job.mesh.dp or 1
    steps: list[dict[str, Any]] = []
    lengths: Counter[int] = Counter()
    ended = False
    alike = str(job.batch.layout) == "rows"
    with DataLoader(looked_at, rank=0, world=ranks, tensors="numpy") as loader:
        if first:
            loader.skip(first)
        while not steps or steps[-1]["step"] < stop - 1:
            batch = next(loader, None)
            if batch is None:
                ended = True
                break
            if batch.step < first:
                continue
            lengths.update(batch.pieces["length"].tolist())
            steps.append(_describe(batch, ranks if alike else 1))
            if on_step is not None:
                on_step(len(steps))
    if not steps:
        raise InvalidArgumentError(f"the stream ends before step {first}; choose an earlier one")
    return {
        "job": job.name,
        "ranks": ranks,
        "layout": str(job.batch.layout),
        "first": first,
        "stop": steps[-1]["step"] + 1,
        "ended": ended,
        "padding_of": "all ranks" if alike else "rank 0",
        "lengths": dict(sorted(lengths.items())),
        "steps": steps,
    }


def _describe(batch: Batch, alike_ranks: int) -> dict[str, Any]:
    pieces = batch.pieces
    costs = list(batch.costs)
    mean = sum(costs) / len(costs)
    slots = alike_ranks * sum(mb.shape[0] * mb.shape[1] for mb in batch.microbatches)
    used = batch.real_tokens if alike_ranks > 1 else sum(mb.real_tokens for mb in batch.microbatches)
    whole = (pieces["start"] == 0) & (pieces["last"] != 0)
    return {
        "step": batch.step,
        "real_tokens": batch.real_tokens,
        "supervised_tokens": batch.supervised_tokens,
        "tokens_by_source": batch.tokens_by_source,
        "wanted_by_source": batch.wanted_by_source,
        "costs": costs,
        "spread": max(costs) / mean if mean > 0 else 1.0,
        "pieces": len(pieces["length"]),
        "cut_pieces": int(len(whole) - whole.sum()),
        "microbatches": len(batch.microbatches),
        "padding_share": 1 - used / slots if slots else 0.0,
        "size_bytes": batch.size_bytes,
    }
