"""What the host process does: load the engine, serve the ranks of this node on a socket, end by the rule of ``lifetime``.

Its log goes to standard error.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from widestream.hosting.folder import FolderLock, HostFolder, make_private, remove_leftovers
from widestream.hosting.lifetime import Patience, Seen, reason_to_end

_LOOK_SECONDS = 0.25
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class HostDescription:
    """What a host serves: the resolved job, and the ranks of its node.

    ``journal``: this node's host keeps the run folder's journal. ``watch_pid``: the process whose end ends the host.
    """

    job: dict[str, Any]
    first_rank: int
    ranks: int
    journal: bool
    watch_pid: int | None
    patience: Patience = field(default_factory=Patience)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> HostDescription:
        values = json.loads(text)
        return cls(**{**values, "patience": Patience(**values["patience"])})


def run_host(folder: HostFolder, description: HostDescription, on_ready: Callable[[], None]) -> str:
    """Serves until there is a reason to end, which is returned. ``on_ready`` is called when ranks can attach.

    UnavailableError: another host serves this folder.
    """
    lock = FolderLock(folder.root, folder.path.name)
    make_private(folder.path)
    # Of a host that was killed; with the lock it is nobody's.
    folder.socket.unlink(missing_ok=True)
    for path in remove_leftovers(folder.root):
        log(f"removed {path}, which a killed host left")
    last = description.first_rank + description.ranks - 1
    log(f"serves ranks {description.first_rank} to {last} at {folder.socket}")
    try:
        with _stop_signals() as received:
            reason = _serve(folder.socket, description, on_ready, received)
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
        lock.release()
    log(f"ends: {reason}")
    return reason


def _serve(socket: Path, description: HostDescription, on_ready: Callable[[], None], received: list[str]) -> str:
    from widestream.loader.engine import core

    watched = _open_process(description.watch_pid)
    server = core().HostServer(
        str(socket),
        json.dumps(description.job),
        first_rank=description.first_rank,
        ranks=description.ranks,
        journal=description.journal,
    )
    try:
        on_ready()
        while True:
            server.wait(_LOOK_SECONDS)
            for event in server.take_events():
                log(event)
            if received:
                return f"received {received[0]}"
            if server.retired:
                return "another job takes its place"
            seen = Seen(
                attached=server.attached,
                idle_seconds=server.idle_seconds,
                complete=server.complete,
                all_left=server.all_left,
                watched_alive=_is_alive(watched),
            )
            reason = reason_to_end(seen, description.patience)
            if reason is not None:
                return reason
    finally:
        server.stop()


@contextmanager
def _stop_signals() -> Iterator[list[str]]:
    received: list[str] = []
    before = {
        number: signal.signal(number, lambda found, _frame: received.append(signal.Signals(found).name))
        for number in _STOP_SIGNALS
    }
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def log(message: str) -> None:
    """One line of the log."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    sys.stderr.write(f"{stamp}.{int(now * 1000) % 1000:03d}Z {os.getpid()} {message}\n")
    sys.stderr.flush()


def _open_process(pid: int | None) -> int | None:
    """A descriptor that becomes readable when the process ends: a pid alone could be used again by another."""
    if pid is None:
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1


def _is_alive(descriptor: int | None) -> bool:
    if descriptor is None:
        return True
    return descriptor >= 0 and not select.select([descriptor], [], [], 0)[0]
