"""A node of trainer ranks without torch: each a process that torchrun's environment describes.

``python -m tests.support.node SCRIPT`` is one rank: it runs the Python text of the script with ``job``, ``state``, ``ws``,
``rank`` and ``say`` (prints a JSON line) defined.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import widestream as ws

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_SECONDS = 60


class Node:
    """The ranks of one node. ``agent`` is the process that stands for torchrun: it starts and outlives them."""

    def __init__(
        self, folder: Path, world: int, *, local: range | None = None, node: int = 0, launch: str = "a"
    ) -> None:
        self.folder, self.world, self.node, self.launch = folder, world, node, launch
        self.local = local if local is not None else range(world)
        self.ranks: list[subprocess.Popen[str]] = []
        self.runtime = folder / "r"
        folder.mkdir(exist_ok=True)

    def environment(self, rank: int) -> dict[str, str]:
        return {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_RANK": str(rank - self.local.start),
            "LOCAL_WORLD_SIZE": str(len(self.local)),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
            "TORCHELASTIC_RUN_ID": self.launch,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "WIDESTREAM_RUNTIME_DIR": str(self.runtime),
            "PYTHONPATH": str(ROOT),
        }

    def start(self, jobs: ws.Job | list[ws.Job], script: str, state: dict[str, Any] | None = None) -> None:
        """Every rank runs the script, which finds ``state``; ``jobs`` may differ by local rank."""
        for index, rank in enumerate(self.local):
            job = jobs[index] if isinstance(jobs, list) else jobs
            text = json.dumps(
                {
                    "job": job.model_dump(mode="json", exclude_none=True),
                    "script": textwrap.dedent(script),
                    "state": state,
                }
            )
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.node"],
                env=self.environment(rank),
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert process.stdin is not None
            process.stdin.write(text)
            process.stdin.close()
            process.stdin = None
            self.ranks.append(process)

    def finish(self, expect: int | None = 0) -> list[list[Any]]:
        """What each rank said, by local rank. Fails if one did not end with ``expect`` (None: whatever)."""
        said = []
        end = time.monotonic() + _LIMIT_SECONDS
        for index, process in enumerate(self.ranks):
            out, err = process.communicate(timeout=max(1, end - time.monotonic()))
            if expect is not None:
                assert process.returncode == expect, f"rank {index} ended with {process.returncode}: {err[-3000:]}"
            said.append([json.loads(line) for line in out.splitlines()])
        self.ranks = []
        return said

    def read_line(self, index: int) -> Any:
        """The next thing that a local rank says."""
        stream = self.ranks[index].stdout
        assert stream is not None
        line = stream.readline()
        assert line, f"rank {index} ended: {self.ranks[index].stderr.read()[-3000:]}"  # type: ignore[union-attr]
        return json.loads(line)

    def kill(self, number: int = signal.SIGKILL) -> None:
        for process in self.ranks:
            process.send_signal(number)
        for process in self.ranks:
            process.wait(_LIMIT_SECONDS)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self.ranks = []

    def host_pids(self) -> list[int]:
        """The host processes of this node's runtime folder."""
        pids = []
        for note in self.runtime.glob("*/host.json"):
            with contextlib.suppress(OSError, ValueError):
                pids.append(json.loads(note.read_text())["pid"])
        return pids


@contextlib.contextmanager
def node(folder: Path, world: int, **options: Any) -> Iterator[Node]:
    """A node whose processes are gone at the end, whatever happened."""
    made = Node(folder, world, **options)
    try:
        yield made
    finally:
        for process in made.ranks:
            process.kill()
            process.wait()
        for pid in made.host_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wait_until(condition: Any, what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """False for a zombie, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _main() -> None:
    from tests.support import jobs

    given = json.loads(sys.stdin.read())

    def say(value: Any) -> None:
        print(json.dumps(value), flush=True)

    names = {
        "job": ws.Job(**given["job"]),
        "state": given["state"],
        "ws": ws,
        "rank": int(os.environ["RANK"]),
        "say": say,
        "fingerprint": jobs.fingerprint,
        "take": jobs.take,
        "members": jobs.members,
        "json": json,
        "os": os,
        "time": time,
    }
    exec(compile(given["script"], "script of the test", "exec"), names)


if __name__ == "__main__":
    _main()
