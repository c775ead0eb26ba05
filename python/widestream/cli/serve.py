"""``serve``: the host process of a node, for trainers that something else starts."""

from __future__ import annotations

from typing import Annotated

import typer

from widestream.cli.options import JobFile, Overrides


def serve(
    job: JobFile,
    world: Annotated[int | None, typer.Option(min=1, help="Ranks of the trainer; default: the job's mesh.")] = None,
    first_rank: Annotated[int, typer.Option(min=0, help="The first rank of this node.")] = 0,
    ranks: Annotated[int | None, typer.Option(min=1, help="Ranks of this node; default: all.")] = None,
    node: Annotated[int, typer.Option(min=0, help="The number of this node; node 0 keeps the journal.")] = 0,
    once: Annotated[bool, typer.Option("--once", help="End when every rank has left.")] = False,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
) -> None:
    """Serve a job's stream to the ranks of this node, until Ctrl-C."""
    from widestream.cli.output import print_text
    from widestream.hosting.foreground import serve_in_foreground
    from widestream.job import Job

    reason = serve_in_foreground(
        Job.load(job, overrides),
        world=world,
        first_rank=first_rank,
        ranks=ranks,
        node=node,
        once=once,
        say=print_text,
    )
    print_text(f"ended: {reason}")
