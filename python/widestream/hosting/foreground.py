"""``widestream serve``: the host process in the foreground of a terminal."""

from __future__ import annotations

from collections.abc import Callable

from widestream.errors import InvalidArgumentError
from widestream.hosting.folder import host_folder
from widestream.hosting.lifetime import Patience
from widestream.hosting.process import HostDescription, run_host
from widestream.job import Job
from widestream.loader.mesh import resolve_for_world


def serve_in_foreground(
    job: Job,
    *,
    world: int | None,
    first_rank: int,
    ranks: int | None,
    node: int,
    once: bool,
    say: Callable[[str], None],
) -> str:
    """Serves until Ctrl-C, SIGTERM or, with ``once``, until every rank has left. Returns why it ended.

    InvalidArgumentError: a job without ``run_dir``, by which trainers find the host; ranks beyond the world.
    """
    if job.run_dir is None:
        raise InvalidArgumentError("the job has no `run_dir`; trainers find the host by it, so give the job one")
    resolved, world = resolve_for_world(job, world)
    ranks = world - first_rank if ranks is None else ranks
    if first_rank + ranks > world or ranks < 1:
        raise InvalidArgumentError(
            f"ranks {first_rank} to {first_rank + ranks - 1} are not in a world of {world}; lower --first-rank or --ranks"
        )
    folder = host_folder(job.run_dir, "", node)
    description = HostDescription(
        job=resolved,
        first_rank=first_rank,
        ranks=ranks,
        journal=node == 0,
        watch_pid=None,
        patience=Patience(forever=not once, start_seconds=float("inf")),
    )
    return run_host(
        folder,
        description,
        lambda: say(
            f"{job.name}: ranks {first_rank} to {first_rank + ranks - 1} of {world} can attach at {folder.socket}"
        ),
    )
