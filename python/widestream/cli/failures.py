"""From exceptions to exit codes and short messages: the one place that decides."""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from widestream import errors

OK = 0
INTERNAL = 1  # a bug in Widestream
USAGE = 2  # the command line is wrong
INPUT = 3  # a job, a path or data is wrong: fix it
ENVIRONMENT = 4  # the machine: disk, memory, network, a package that is not installed
TIMEOUT = 5
INTERRUPTED = 130
PIPE_CLOSED = 141

P = ParamSpec("P")
R = TypeVar("R")


class Settings:
    """What holds for the whole command, whichever it is."""

    traceback = False
    json = False


def exit_code(error: BaseException) -> int:
    """The exit code of a command that ended with this exception."""
    if isinstance(error, KeyboardInterrupt | errors.CancelledError) or type(error).__name__ == "Interrupted":
        return INTERRUPTED
    if isinstance(error, BrokenPipeError):
        return PIPE_CLOSED
    if isinstance(error, errors.InternalError):
        return INTERNAL
    if isinstance(error, errors.DeadlineExceededError):
        return TIMEOUT
    if isinstance(error, errors.InvalidArgumentError | errors.DataCorruptionError | errors.NotFoundError):
        return INPUT
    # Packages that stand alone have exceptions of their own, which say what to do.
    if type(error).__name__ in ("CheckpointError", "ValidationError"):
        return INPUT
    if type(error).__name__ == "CorporaError":
        return ENVIRONMENT
    if isinstance(error, FileExistsError | FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return INPUT
    if isinstance(error, OSError | MemoryError | ImportError):
        return ENVIRONMENT
    return INTERNAL


def message(error: BaseException) -> str:
    """What to tell the user."""
    text = str(error).strip()
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        if package == "widestream":
            return f"{error.name} is missing from this installation; install Widestream again, or build it"
        extra = {"torch": "train", "safetensors": "train", "plotly": "report"}.get(package)
        return f"the Python package {package} is not installed; " + (
            f"pip install 'widestream[{extra}]'" if extra else f"pip install {package}"
        )
    if exit_code(error) == INTERRUPTED:
        return "interrupted"
    if exit_code(error) == INTERNAL:
        return f"{type(error).__name__}: {text}\nThis is a bug in Widestream; please report it with the output of --traceback."
    return text or type(error).__name__


def rank_of_many() -> int | None:
    """The rank of this process among several that torchrun started; None where it is alone."""
    rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() and world.isdecimal() and int(world) > 1 else None


def clean(text: str) -> str:
    """Text that may be hostile, without the control characters that would steer a terminal."""
    return "".join(c if c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) else "\ufffd" for c in text)


def report_failure(error: BaseException) -> int:
    """Prints an exception to stderr, as JSON with --json, and returns the exit code."""
    code = exit_code(error)
    rank = rank_of_many()
    if code == PIPE_CLOSED:
        # Python would complain about the same pipe once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    if Settings.traceback:
        traceback.print_exception(error)
    if Settings.json:
        report = {"error": type(error).__name__, "message": message(error), "exit_code": code}
        print(json.dumps(report if rank is None else {**report, "rank": rank}), file=sys.stderr)
        return code
    prefix = ("" if rank is None else f"rank {rank}: ") + ("" if code == INTERRUPTED else "error: ")
    red, plain = ("\x1b[31m", "\x1b[0m") if sys.stderr.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{red}{prefix}{plain}{clean(message(error))}", file=sys.stderr)
    return code


def handled(function: Callable[P, R]) -> Callable[P, R]:
    """Of a command: every exception becomes an exit code and a short message."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = function(*args, **kwargs)
            sys.stdout.flush()
            return result
        except (KeyboardInterrupt, Exception) as error:
            # typer's own exceptions (Exit, usage errors) are for typer.
            if type(error).__module__.split(".")[0] in ("typer", "click"):
                raise
            sys.exit(report_failure(error))
        except BaseException as error:
            if type(error).__name__ == "Interrupted":
                sys.exit(report_failure(error))
            raise

    return wrapper
