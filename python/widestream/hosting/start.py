"""Starting the host process of a node: exec of a fresh interpreter, never a bare fork."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from typing import BinaryIO

from widestream.errors import DeadlineExceededError, IoError
from widestream.hosting.folder import HostFolder, make_private
from widestream.hosting.process import HostDescription

READY = b"ready\n"
_LOG_TAIL_BYTES = 4000


def start_host(folder: HostFolder, description: HostDescription, *, deadline_seconds: float = 60.0) -> int:
    """Starts ``python -m widestream.hosting`` for ``description`` and waits until its socket is there. Returns its pid.

    The process leads a session of its own, so that a Ctrl-C at the trainer's terminal reaches the trainer only, and
    writes its log into the folder. IoError with the log's end if it fails.
    """
    make_private(folder.root)
    make_private(folder.path)
    folder.log.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.log, "a+b", opener=_private) as log:
        begin = log.seek(0, os.SEEK_END)
        ready, ready_write = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "widestream.hosting", str(folder.root), folder.path.name, str(ready_write)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(ready_write,),
                start_new_session=True,
            )
        finally:
            os.close(ready_write)
        try:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it ended already; the log says why
                process.stdin.write(description.to_json().encode())
                process.stdin.close()
            _wait(ready, process, log, begin, deadline_seconds)
        finally:
            os.close(ready)
    # Reaped when it ends, should this process still be there; a zombie would look alive to others.
    _children.append(process)
    return process.pid


_children: list[subprocess.Popen[bytes]] = []


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _wait(ready: int, process: subprocess.Popen[bytes], log: BinaryIO, begin: int, deadline_seconds: float) -> None:
    end = time.monotonic() + deadline_seconds
    received = b""
    while received != READY:
        found, _, _ = select.select([ready], [], [], max(0.0, end - time.monotonic()))
        if not found:
            process.kill()
            process.wait()
            raise DeadlineExceededError(
                f"the host process did not start within {deadline_seconds:.0f} s; its log says: {_rest(log, begin)}"
            )
        piece = os.read(ready, len(READY))
        if not piece:
            code = process.wait()
            raise IoError(f"the host process ended at its start (exit code {code}); its log says: {_rest(log, begin)}")
        received += piece


def _rest(log: BinaryIO, begin: int) -> str:
    """What the host has written since, from the open file: a host that fails removes its folder."""
    size = log.seek(0, os.SEEK_END)
    log.seek(max(begin, size - _LOG_TAIL_BYTES))
    return log.read().decode("utf-8", "replace").strip() or "nothing"
