"""Starts a program on several ranks with torchrun, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence


def command(ranks: int, program: Sequence[str], *options: str) -> list[str]:
    """The command line of torchrun: on one node, unless the options say where the nodes meet."""
    meeting = [] if any(option.startswith("--nnodes") for option in options) else ["--standalone"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *meeting, *options]
    return [*torchrun, *program]


def start(ranks: int, *program: str, options: Sequence[str] = (), **environment: str) -> subprocess.Popen[str]:
    """`python PROGRAM...` on several ranks of one thread each, in a process group of its own."""
    return subprocess.Popen(
        command(ranks, program, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def finish(process: subprocess.Popen[str], seconds: float = 100) -> tuple[int, str, str]:
    """(exit status, stdout, stderr); a process that hangs is killed with all its ranks, and fails the test."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        raise AssertionError(f"still running after {seconds} s\n{out}\n{errors}") from None
    return process.returncode, out, errors


def run(ranks: int, *program: str, **environment: str) -> str:
    """Runs to the end, which must be a good one; stdout."""
    status, out, errors = finish(start(ranks, *program, **environment))
    assert status == 0, f"{out}\n{errors}"
    return out
