"""A rank's way to the host of its node: finds it, starts it if this is the node's first rank, attaches."""

from __future__ import annotations

import json
import time
from typing import Any

from widestream.errors import DeadlineExceededError, UnavailableError
from widestream.hosting.folder import HostFolder, host_folder, is_held
from widestream.hosting.launch import Launch
from widestream.hosting.process import HostDescription, make_room
from widestream.hosting.start import start_host
from widestream.loader.engine import core

_RETRY_SECONDS = 0.02


def attach(
    job: dict[str, Any],
    launch: Launch,
    *,
    state_json: str = "",
    fork: bool = False,
    begin_step: int | None = None,
    start: bool = True,
    attach_seconds: float = 60.0,
) -> Any:
    """The engine's client of this rank, attached to its node's host at ``state_json``.

    The node's first rank starts the host where none answers and ``start``; the others wait for it. Ranks that still
    hold an older session (a trainer that restarts, or goes back to a state) are waited for, too.

    Raises:
        InvalidArgumentError: the host serves another job, or this rank's job differs from the other ranks'.
        DeadlineExceededError: no host, or no agreement of the ranks, within ``attach_seconds``; says what was seen.
        Whatever opening the job's sources raises, on every rank.
    """
    folder = host_folder(job["run_dir"], launch.launch_id, launch.node)
    job_json = json.dumps(job)
    end = time.monotonic() + attach_seconds
    if launch.local_rank == 0 and start:
        make_room(folder, job_json)
    while True:
        left = end - time.monotonic()
        try:
            return core().Client(
                str(folder.socket),
                job_json,
                rank=launch.rank,
                world=launch.world,
                launch_id=launch.launch_id,
                state_json=state_json,
                fork=fork,
                begin_step=begin_step,
                timeout_seconds=max(left, 0.01),
            )
        except UnavailableError as error:  # nobody listens, or other ranks are still in an older session
            seen = error
            if launch.local_rank == 0 and start and not is_held(folder.root, folder.path.name):
                _start(folder, job, launch)
                continue
        if left <= 0:
            raise DeadlineExceededError(
                f"rank {launch.rank} found no host at {folder.socket} to attach to within {attach_seconds:.0f} s: "
                f"{seen}" + ("" if launch.local_rank == 0 else "; the node's first rank starts it, see its output")
            ) from seen
        time.sleep(_RETRY_SECONDS)


def _start(folder: HostFolder, job: dict[str, Any], launch: Launch) -> None:
    description = HostDescription(
        job=job,
        first_rank=launch.first_rank,
        ranks=launch.local_world,
        journal=launch.node == 0,
        watch_pid=launch.watch_pid,
        log=str(folder.log),
    )
    start_host(folder, description)
