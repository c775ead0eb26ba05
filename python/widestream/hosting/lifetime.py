"""When a host process ends: a pure rule over what its server sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """``idle_seconds``: since when no rank is attached (0 while one is). ``complete``: every rank that this host feeds
    has attached to the present session. ``all_left``: each of those that attached said goodbye, for good."""

    attached: int
    idle_seconds: float
    complete: bool
    all_left: bool
    watched_alive: bool


@dataclass(frozen=True, slots=True)
class Patience:
    """``start_seconds`` for ranks to attach, ``restart_seconds`` for a trainer that died to come back."""

    start_seconds: float = 120.0
    restart_seconds: float = 60.0
    forever: bool = False


def reason_to_end(seen: Seen, patience: Patience) -> str | None:
    """Why the host ends now; None: it goes on."""
    if seen.attached > 0:
        return None
    if not seen.watched_alive:
        return "the process that it was started for is gone"
    if patience.forever:
        return None
    if seen.complete and seen.all_left:
        return "every rank has left"
    if not seen.complete and seen.idle_seconds >= patience.start_seconds:
        return f"not all ranks attached within {patience.start_seconds:.0f} s"
    if seen.complete and seen.idle_seconds >= patience.restart_seconds:
        return f"the ranks died and none came back within {patience.restart_seconds:.0f} s"
    return None
