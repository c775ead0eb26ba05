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
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from widestream.hosting.folder import FolderLock, HostFolder, is_held, make_private, remove_leftovers
from widestream.hosting.lifetime import Patience, Seen, reason_to_end
from widestream.loader.engine import core

_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class HostDescription:
    """What a host serves: the resolved job, and the ranks of its node.

    ``journal``: this node's host keeps the run folder's journal. ``watch_pid``: the process whose end ends the host. ``log``: where its
    standard error goes, for messages.
    """

    job: dict[str, Any]
    first_rank: int
    ranks: int
    journal: bool
    watch_pid: int | None
    log: str = ""
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
        with _Signals() as signals:
            note_of(folder).write_text(
                json.dumps({"pid": os.getpid(), "job": core().job_hash(json.dumps(description.job))})
            )
            reason = _serve(folder, description, on_ready, signals)
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
        lock.release()
    log(f"ends: {reason}")
    return reason


def _serve(folder: HostFolder, description: HostDescription, on_ready: Callable[[], None], signals: _Signals) -> str:
    watched = _open_process(description.watch_pid)
    tree = core().PlaceTree(json.dumps(description.job["mesh"]))
    server = core().HostServer(
        json.dumps(description.job),
        str(folder.path),
        log_path=description.log,
        first_rank=description.first_rank,
        ranks=description.ranks,
        journal=description.journal,
    )
    try:
        on_ready()
        before: dict[str, Any] = server.status()
        while True:
            signals.wait(_LOOK_SECONDS)
            status = server.status()
            for event in changes(before, status):
                log(event)
            before = status
            if signals.stop:
                return f"received {signals.stop}"
            if signals.retire and status["clients"] == 0:
                return "another job takes its place"
            seen = Seen(
                attached=status["clients"],
                idle_seconds=status["idle_seconds"],
                complete=all(place["pid"] or not tree.place(place["rank"]).fetches for place in status["places"]),
                left_gracefully=status["last_left_gracefully"],
                watched_alive=_is_alive(watched),
            )
            reason = reason_to_end(seen, description.patience)
            if reason is not None:
                return reason
    finally:
        server.stop()


def note_of(folder: HostFolder) -> Path:
    """The file that says which process serves which job here."""
    return folder.path / "host.json"


def make_room(folder: HostFolder, job_json: str) -> None:
    """Asks the host of this folder to end, if it serves another job; one that has ranks does not."""
    try:
        note = json.loads(note_of(folder).read_text())
        if note["job"] == core().job_hash(job_json) or not is_held(folder.root, folder.path.name):
            return
        os.kill(note["pid"], signal.SIGUSR1)
    except (OSError, ValueError, KeyError):
        return  # none, or one that begins or ends just now: whoever attaches sees


def changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What happened between two looks at a server, for the log."""
    events = []
    if now["sessions"] != before["sessions"]:
        events.append(f"session {now['sessions']} is open")
    for old, new in zip(before["places"], now["places"], strict=True):
        if new["attached"] and (not old["attached"] or new["pid"] != old["pid"]):
            events.append(f"rank {new['rank']} attached (process {new['pid']})")
        elif old["attached"] and not new["attached"]:
            events.append(f"rank {new['rank']} is gone (process {old['pid']})")
    return events


class _Signals:
    """The signals that a host listens to: those that stop it, and SIGUSR1, which asks an idle one to make room."""

    _STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.stop: str | None = None
        self.retire = False
        self._arrived = threading.Event()

    def __enter__(self) -> _Signals:
        handlers = dict.fromkeys(self._STOP, self._on_stop) | {signal.SIGUSR1: self._on_retire}
        self._before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self, seconds: float) -> None:
        self._arrived.wait(seconds)
        self._arrived.clear()

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        self.stop = signal.Signals(number).name
        self._arrived.set()

    def _on_retire(self, _number: int, _frame: FrameType | None) -> None:
        self.retire = True
        self._arrived.set()


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
