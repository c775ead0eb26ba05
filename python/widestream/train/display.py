"""What a person sees while a model trains: a live panel on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from widestream.train.validation import Validation

_SOURCES_SHOWN = 8


class MixtureTally:
    """Tokens delivered by source against the mixture asked for, over the whole run.

    `realised` counts tokens; `wanted` is what every step's weights would have given of that step's tokens.
    """

    def __init__(self) -> None:
        self.realised: dict[str, int] = {}
        self.wanted: dict[str, float] = {}

    def add(self, tokens_by_source: Mapping[str, int], weights: Mapping[str, float]) -> None:
        """Counts one step."""
        total, scale = sum(tokens_by_source.values()), sum(weights.values())
        for name, tokens in tokens_by_source.items():
            self.realised[name] = self.realised.get(name, 0) + tokens
        for name, weight in weights.items():
            if scale > 0:
                self.wanted[name] = self.wanted.get(name, 0.0) + total * weight / scale

    def shares(self) -> dict[str, tuple[float, float]]:
        """(realised, wanted) share of all tokens by source name."""
        total = max(1, sum(self.realised.values()))
        names = sorted(set(self.realised) | set(self.wanted))
        return {name: (self.realised.get(name, 0) / total, self.wanted.get(name, 0.0) / total) for name in names}

    def error(self) -> float | None:
        """Largest difference of the two shares; None where no weights were given."""
        return max(abs(a - b) for a, b in self.shares().values()) if self.wanted else None


@dataclasses.dataclass(frozen=True, slots=True)
class Progress:
    """What the display shows of a step.

    Attributes:
        step: steps done.
        steps: of the whole run.
        loss: next-token loss of the step, nats a token.
        learning_rate, gradient_norm: of the step.
        tokens_per_second: over the last steps, waiting included.
        data_wait_share: share of the training time spent waiting for the loader, 0 to 1.
        validation: the last one.
        shares: (realised, wanted) by source.
        seconds_left: estimate for the rest of the run.
    """

    step: int
    steps: int
    loss: float
    learning_rate: float
    gradient_norm: float
    tokens_per_second: float
    data_wait_share: float
    validation: Validation | None
    shares: Mapping[str, tuple[float, float]]
    seconds_left: float


class Display(Protocol):
    """Shows progress and messages."""

    def show(self, progress: Progress) -> None:
        """After every step."""
        ...

    def say(self, message: str) -> None:
        """One line that stays."""
        ...

    def close(self) -> None:
        """The training ended; may be called twice."""
        ...


def make_display(stream: TextIO | None = None, *, log_every: int = 10) -> Display:
    """A live panel where `stream` (default: standard output) is a terminal, plain lines otherwise."""
    stream = stream or sys.stdout
    console = Console(file=stream)
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(stream, log_every=log_every)


def _mixture(shares: Mapping[str, tuple[float, float]]) -> str:
    """The largest sources as "name realised/wanted %"."""
    order = sorted(shares.items(), key=lambda item: -max(item[1]))
    parts = [f"{name} {100 * got:.1f}/{100 * want:.1f}" for name, (got, want) in order[:_SOURCES_SHOWN]]
    rest = len(order) - len(parts)
    return ", ".join(parts) + (f" and {rest} more" if rest else "") + " %"


class SilentDisplay:
    """Shows nothing: ranks other than 0."""

    def show(self, progress: Progress) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing is held."""


class PlainDisplay:
    """Lines for logs and pipes: every `log_every` steps, and whenever a validation is new."""

    def __init__(self, stream: TextIO, *, log_every: int = 10) -> None:
        self._stream, self._log_every = stream, log_every
        self._validation: Validation | None = None

    def show(self, progress: Progress) -> None:
        """Prints the step where one is due."""
        new_validation = progress.validation is not self._validation
        self._validation = progress.validation
        if progress.step % self._log_every and progress.step != progress.steps and not new_validation:
            return
        validation = f"  val {progress.validation.loss:.4f}" if progress.validation else ""
        self.say(
            f"step {progress.step}/{progress.steps}  loss {progress.loss:.4f}{validation}"
            f"  {progress.tokens_per_second:,.0f} tok/s  wait {100 * progress.data_wait_share:.1f} %"
            f"  lr {progress.learning_rate:.2e}  mixture got/want {_mixture(progress.shares)}"
        )

    def say(self, message: str) -> None:
        """Prints one line."""
        print(message, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class LiveDisplay:
    """A panel that is redrawn in place, at most four times a second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def show(self, progress: Progress) -> None:
        """Redraws the panel."""
        if self._live is None:
            self._live = Live(console=self._console, refresh_per_second=4, transient=False)
            self._live.start()
        self._live.update(self._panel(progress))

    @staticmethod
    def _panel(progress: Progress) -> Table:
        table = Table.grid(padding=(0, 2))
        filled = round(24 * progress.step / max(1, progress.steps))
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        validation = f"{progress.validation.loss:.4f}" if progress.validation else "-"
        baseline = f" (unigram {progress.validation.unigram_cross_entropy:.4f})" if progress.validation else ""
        table.add_row(
            Text("=" * filled + "-" * (24 - filled), style="green"),
            f"step [bold]{progress.step}[/]/{progress.steps}",
            f"{minutes}:{seconds:02d} left",
        )
        table.add_row(
            f"loss [bold]{progress.loss:.4f}[/]",
            f"validation [bold]{validation}[/]{baseline}",
            f"lr {progress.learning_rate:.2e}  |g| {progress.gradient_norm:.2f}",
        )
        table.add_row(
            f"{progress.tokens_per_second:,.0f} tokens/s",
            f"waiting for data {100 * progress.data_wait_share:.1f} %",
        )
        outer = Table.grid()
        outer.add_row(table)
        outer.add_row(Text(f"mixture got/want: {_mixture(progress.shares)}", style="dim"))
        return outer

    def say(self, message: str) -> None:
        """Prints one line above the panel."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leaves the last panel on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None
