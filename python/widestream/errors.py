"""The exceptions of Widestream.

Every failure of the engine arrives as one of these. Each inherits `WidestreamError` and the builtin that
Python code would expect for the same cause, so both `except WidestreamError` and, say, `except
FileNotFoundError` work. A message says what failed and where, what was found and expected, and what to do.
"""

from __future__ import annotations

__all__ = [
    "CancelledError",
    "DataCorruptionError",
    "DeadlineExceededError",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "NotFoundError",
    "ResourceExhaustedError",
    "UnavailableError",
    "WidestreamError",
]


class WidestreamError(Exception):
    """Base of every exception that Widestream raises for a failure of its own."""


class InvalidArgumentError(WidestreamError, ValueError):
    """The input is wrong: fix it."""


class NotFoundError(WidestreamError, FileNotFoundError):
    """A file or a name does not exist: fix the path or the name."""


class IoError(WidestreamError, OSError):
    """The operating system failed a call; `errno` says how."""


class UnavailableError(WidestreamError, ConnectionError):
    """A remote side does not answer for now: retry with back-off."""


class DeadlineExceededError(WidestreamError, TimeoutError):
    """Something took longer than its limit: retry, or raise the limit."""


class DataCorruptionError(WidestreamError, ValueError):
    """Data does not match its format or its checksum: skip it within the budget, or mend the shard."""


class ResourceExhaustedError(WidestreamError, MemoryError):
    """A limit of memory or size was reached: lower a bound, or raise the limit."""


class CancelledError(WidestreamError):
    """The work was cancelled: stop quietly."""


class InternalError(WidestreamError, AssertionError):
    """An invariant of Widestream does not hold: this is a bug in Widestream."""
