"""Ctrl-C and SIGTERM: ask once, insist after a moment."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

# A request that nothing answered by then ends the training where it stands. Leaves time to say so within 2 s.
INSIST_AFTER_SECONDS = 1.2


class Interrupted(BaseException):
    """Raised in the main thread when a stop was asked for and not answered in time. Never swallow it."""


class StopRequest:
    """Whether a signal asked the training to stop, and which."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._answered = False

    @property
    def number(self) -> int:
        """The signal's number; 0 where none came."""
        return signal.Signals[self.signal_name].value if self.signal_name else 0

    def join(self, number: int) -> None:
        """Another rank's request, if `number` is not 0: this one stops with it."""
        if number and not self:
            self.signal_name = signal.Signals(number).name

    def __bool__(self) -> bool:
        return self.signal_name is not None

    def ask(self, number: int, frame: FrameType | None) -> None:
        """The handler of SIGINT and SIGTERM. The second signal does not wait for an answer."""
        if self._answered:
            return
        if self:
            raise Interrupted
        self.signal_name = signal.Signals(number).name
        signal.setitimer(signal.ITIMER_REAL, INSIST_AFTER_SECONDS)

    def insist(self, number: int, frame: FrameType | None) -> None:
        """The handler of the timer."""
        if not self._answered:
            raise Interrupted

    def answered(self) -> None:
        """The training has stopped: no signal interrupts what follows."""
        self._answered = True


@contextlib.contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[None]:
    """Within it, SIGINT and SIGTERM set `request`; a second one, or no answer in time, raises `Interrupted`.

    Signal handlers belong to the main thread: in any other this does nothing. Handlers and the interval timer
    are restored on the way out.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: request.ask, signal.SIGTERM: request.ask, signal.SIGALRM: request.insist}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        request.answered()
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
