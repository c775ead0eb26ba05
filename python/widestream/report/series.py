"""Figures of a run as curves: averaged to what a chart can show, with gaps where nothing is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from widestream.report.run_data import StepMetrics

MAX_POINTS = 240
_WINDOWS = 60


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one line; `ys` is None in gaps. `low` and `high` bound the values that a point averages."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()

    @property
    def last(self) -> float | None:
        return next((y for y in reversed(self.ys) if y is not None), None)

    @property
    def empty(self) -> bool:
        return all(y is None for y in self.ys)


def curve(name: str, steps: Sequence[StepMetrics], value: Callable[[StepMetrics], float | None]) -> Curve:
    """A value by step; runs of steps are averaged where there are more than MAX_POINTS."""
    xs: list[float] = []
    ys: list[float | None] = []
    low: list[float | None] = []
    high: list[float | None] = []
    for group in _groups(steps, MAX_POINTS):
        values = [found for step in group if (found := value(step)) is not None]
        xs.append(group[len(group) // 2].step)
        ys.append(sum(values) / len(values) if values else None)
        low.append(min(values, default=None))
        high.append(max(values, default=None))
    return Curve(name, tuple(xs), tuple(ys), tuple(low), tuple(high))


def sparse_curve(name: str, steps: Sequence[StepMetrics], value: Callable[[StepMetrics], float | None]) -> Curve:
    """The steps that have the value, such as those that validated; evenly thinned to MAX_POINTS, the last one kept."""
    points = [(step.step, found) for step in steps if (found := value(step)) is not None]
    if len(points) > MAX_POINTS:
        points = [points[i * (len(points) - 1) // (MAX_POINTS - 1)] for i in range(MAX_POINTS)]
    return Curve(name, tuple(float(x) for x, _ in points), tuple(y for _, y in points))


def _groups(steps: Sequence[StepMetrics], most: int) -> list[Sequence[StepMetrics]]:
    count = min(len(steps), most)
    return [steps[i * len(steps) // count : (i + 1) * len(steps) // count] for i in range(count)]


@dataclass(frozen=True, slots=True)
class SourceMixture:
    """A source's share of the tokens over time, and in total. Shares are 0 to 1."""

    name: str
    tokens: int
    share: float
    wanted_share: float | None
    windowed: Curve
    wanted_windowed: Curve
    cumulative: Curve
    wanted_cumulative: Curve


@dataclass(frozen=True, slots=True)
class Mixture:
    """All sources, the largest first. `error` is the largest difference of a total share to the wanted one."""

    sources: tuple[SourceMixture, ...]
    window_steps: int
    error: float | None


def mixture(steps: Sequence[StepMetrics]) -> Mixture:
    """Realised and wanted shares in about 60 windows of steps, and cumulated from the first step.

    A step's wanted tokens are its weights times its real tokens. Steps without weights leave gaps.
    """
    groups = _groups([step for step in steps if step.tokens_by_source], _WINDOWS)
    xs = tuple(float(group[-1].step) for group in groups)
    all_tokens: Counter[str] = Counter()
    all_wanted: dict[str, float] = {}
    running, with_weights = 0, 0
    windows = []
    for group in groups:
        tokens: Counter[str] = Counter()
        wanted: dict[str, float] = {}
        weighted = 0
        for step in group:
            tokens.update(step.tokens_by_source)
            if step.wanted_by_source:
                weighted += step.tokens
                for name, weight in step.wanted_by_source.items():
                    wanted[name] = wanted.get(name, 0.0) + weight * step.tokens
        all_tokens.update(tokens)
        for name, amount in wanted.items():
            all_wanted[name] = all_wanted.get(name, 0.0) + amount
        running += tokens.total()
        with_weights += weighted
        windows.append((tokens, wanted, weighted, dict(all_tokens), dict(all_wanted), running, with_weights))
    names = sorted(set(all_tokens) | set(all_wanted), key=lambda name: (-all_tokens[name], name))

    def build(name: str) -> SourceMixture:
        def line(label: str, shares: list[float | None]) -> Curve:
            return Curve(label, xs, tuple(shares))

        return SourceMixture(
            name,
            all_tokens[name],
            all_tokens[name] / max(1, running),
            all_wanted.get(name, 0.0) / with_weights if with_weights else None,
            line("window, realised", [_ratio(w[0][name], w[0].total()) for w in windows]),
            line("window, wanted", [_ratio(w[1].get(name, 0.0), w[2]) for w in windows]),
            line("since the start, realised", [_ratio(w[3].get(name, 0), w[5]) for w in windows]),
            line("since the start, wanted", [_ratio(w[4].get(name, 0.0), w[6]) for w in windows]),
        )

    sources = tuple(build(name) for name in names)
    gaps = [abs(s.share - s.wanted_share) for s in sources if s.wanted_share is not None]
    return Mixture(sources, max((len(group) for group in groups), default=0), max(gaps, default=None))


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Bin:
    """Pieces with `low` to `high` tokens, both included."""

    low: int
    high: int
    pieces: int
    tokens: int


def length_bins(lengths: Sequence[int]) -> list[Bin]:
    """Bins that double: 1, 2-3, 4-7, ...; from the first used one to the last."""
    counts: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for length in lengths:
        exponent = max(0, length.bit_length() - 1)
        counts[exponent] += 1
        tokens[exponent] += length
    if not counts:
        return []
    return [
        Bin(2**exponent, 2 ** (exponent + 1) - 1, counts[exponent], tokens[exponent])
        for exponent in range(min(counts), max(counts) + 1)
    ]
