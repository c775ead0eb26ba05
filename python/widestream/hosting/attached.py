"""A rank's way to the host of its node: finds it, starts it if this is the node's first rank, attaches."""

from __future__ import annotations

import json
import time
from typing import Any

from widestream.errors import DeadlineExceededError, NotFoundError, UnavailableError
from widestream.hosting.folder import HostFolder, host_folder
from widestream.hosting.launch import Launch
from widestream.hosting.process import HostDescription
from widestream.hosting.start import start_host
from widestream.loader.engine import core

_RETRY_SECONDS = 0.02


def attach(
    job: dict[str, Any],
    launch: Launch,
    *,
    state_json: str = "",
    fork: bool = False,
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
    while True:
        left = end - time.monotonic()
        try:
            return core().Client(
                str(folder.socket),
                job_json,
                rank=launch.rank,
                launch_id=launch.launch_id,
                state_json=state_json,
                fork=fork,
                timeout_seconds=max(left, 0.01),
                log=str(folder.log),
            )
        except NotFoundError as error:  # nobody listens
            seen: Exception = error
            if launch.local_rank == 0 and start:
                _start(folder, job, launch)
                continue
        except UnavailableError as error:
            seen = error
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
    )
    start_host(folder, description)
