"""When a host process ends: a pure rule over what its server sees."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seen:
    """``idle_seconds``: since when no rank is attached. ``complete``: every rank that the host feeds has attached once.

    ``left_gracefully``: the last one to go said goodbye; else its process died.
    """

    attached: int
    idle_seconds: float
    complete: bool
    left_gracefully: bool
    watched_alive: bool


@dataclass(frozen=True, slots=True)
class Patience:
    """``start_seconds`` for ranks to attach, ``restart_seconds`` for a trainer that died to come back.

    ``quiet_seconds``: ranks that go back to a state leave and attach again within it.
    """

    start_seconds: float = 120.0
    restart_seconds: float = 60.0
    quiet_seconds: float = 1.0
    forever: bool = False


def reason_to_end(seen: Seen, patience: Patience) -> str | None:
    """Why the host ends now; None: it goes on."""
    if seen.attached > 0:
        return None
    if not seen.watched_alive:
        return "the process that it was started for is gone"
    if patience.forever:
        return None
    if not seen.complete:
        late = seen.idle_seconds >= patience.start_seconds
        return f"not all ranks attached within {patience.start_seconds:g} s" if late else None
    if seen.left_gracefully:
        return "every rank has left" if seen.idle_seconds >= patience.quiet_seconds else None
    late = seen.idle_seconds >= patience.restart_seconds
    return f"the ranks died and none came back within {patience.restart_seconds:g} s" if late else None
