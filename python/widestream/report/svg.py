"""Small charts as inline SVG. Every text is escaped here; hovering a chart shows the figures of that step."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from widestream.inspection.text import visible
from widestream.report.series import Bin, Curve

COLOURS = 8
_HOVERS = 80


def escape(text: object) -> str:
    return html.escape(visible(str(text)), quote=True)


def short(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def plain(value: float) -> str:
    """A number in at most about six characters: 4.213, 12.9k, 3.4M, 2.1e-05."""
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 1e15 or size < 1e-4:
        return f"{value:.1e}"
    for bound, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= bound:
            unit = 1e3 if letter == "k" else bound
            return f"{value / unit:.3g}{letter}"
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    """A share of 1 with about two digits: 0.31 %, 4.5 %, 37.2 %."""
    scaled = 100 * value
    if abs(scaled - round(scaled)) < 1e-9 or scaled >= 99.95:
        return f"{scaled:.0f} %"
    return f"{scaled:.2g} %" if scaled < 10 else f"{scaled:.1f} %"


@dataclass(frozen=True, slots=True)
class Line:
    """How a curve is drawn: `colour` 1 to COLOURS, or 0 for grey; `dash` for what is wanted or a baseline."""

    curve: Curve
    colour: int = 1
    dash: bool = False
    thin: bool = False
    dots: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The plot area and its scales, in the units of the SVG's view box."""

    width: int
    height: int
    left: int
    top: int
    right: int
    bottom: int
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        span = self.x_high - self.x_low
        return self.left + (value - self.x_low) / span * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        span = self.y_high - self.y_low
        return self.height - self.bottom - (value - self.y_low) / span * (self.height - self.top - self.bottom)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers inside [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    step = (high - low) / max(1, about)
    if step <= 0 or not math.isfinite(step):
        return [low]
    power = 10.0 ** math.floor(math.log10(step))
    unit = next((m * power for m in (1, 2, 5, 10) if m * power >= step), 10 * power)
    first = math.ceil(low / unit - 1e-9)
    return [n * unit for n in range(first, first + about + 3) if n * unit <= high + unit * 1e-9]


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    form: Callable[[float], str] = plain,
    zero: bool = False,
    size: tuple[int, int] = (460, 230),
    levels: Sequence[tuple[str, float]] = (),
    hover: bool = True,
    across: str = "step",
) -> str:
    """Lines over steps, or what `across` names. `label` is what a screen reader says; `levels` are dashed horizontals with a name."""
    drawn = [line for line in lines if not line.curve.empty]
    values = [y for line in drawn for y in (*line.curve.ys, *line.curve.low, *line.curve.high) if y is not None]
    values += [value for _, value in levels]
    xs = [x for line in drawn for x in line.curve.xs]
    if not xs or not values:
        return '<p class="none">No figures.</p>'
    frame = _frame(size, xs, values, zero)
    parts = [_open(size, label), _axes(frame, form, small=size[0] < 400, across=across)]
    for line in drawn:
        parts.append(_band(frame, line))
    for name, value in levels:
        y = frame.y(value)
        parts.append(f'<path class="l c0 d" d="M{frame.left} {y:.1f}H{size[0] - frame.right}"/>')
        parts.append(
            f'<text class="t" x="{size[0] - frame.right - 2}" y="{y - 4:.1f}" text-anchor="end">{escape(name)}</text>'
        )
    parts += [_line(frame, line) for line in drawn]
    if hover:
        parts.append(_hovers(frame, drawn, form))
    parts.append("</svg>")
    return "".join(parts)


def legend(lines: Sequence[Line], form: Callable[[float], str] = plain) -> str:
    """Names, colours and last values of the lines that have any."""
    items = []
    for line in lines:
        last = line.curve.last
        if last is None:
            continue
        kind = " d" if line.dash else " thin" if line.thin else ""
        items.append(
            f'<li><svg class="k" viewBox="0 0 18 8" aria-hidden="true"><path class="l c{line.colour}{kind}" d="M0 4H18"/>'
            f"</svg>{escape(line.curve.name)} <b>{escape(form(last))}</b></li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def area_chart(curves: Sequence[tuple[Curve, int]], *, label: str, size: tuple[int, int] = (460, 230)) -> str:
    """Shares that add up to 1, stacked from below in the given order, each with its colour."""
    if not curves or not curves[0][0].xs:
        return '<p class="none">No figures.</p>'
    xs = curves[0][0].xs
    frame = _frame(size, xs, [0.0, 1.0], zero=True)
    parts = [_open(size, label), _axes(frame, percent, small=False)]
    below = [0.0] * len(xs)
    for curve, colour in curves:
        above = [base + (y or 0.0) for base, y in zip(below, curve.ys, strict=True)]
        forth = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in zip(xs, above, strict=True))
        back = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in reversed(list(zip(xs, below, strict=True))))
        parts.append(f'<polygon class="a f{colour}" points="{forth} {back}"/>')
        below = above
    parts.append(_hovers(frame, [Line(curve) for curve, _ in reversed(curves)], percent))
    parts.append("</svg>")
    return "".join(parts)


def histogram(bins: Sequence[Bin], *, label: str, size: tuple[int, int] = (460, 230)) -> str:
    """Share of pieces (wide bars) and of tokens (narrow bars) by length."""
    if not bins:
        return '<p class="none">No figures.</p>'
    pieces = max(1, sum(b.pieces for b in bins))
    tokens = max(1, sum(b.tokens for b in bins))
    shares = [(b.pieces / pieces, b.tokens / tokens) for b in bins]
    top = max(max(pair) for pair in shares)
    frame = Frame(*size, 44, 10, 8, 34, 0, len(bins), 0, top * 1.05)
    parts = [_open(size, label)]
    for tick in ticks(0, top, 4):
        parts.append(_grid(frame, tick, percent(tick)))
    floor = frame.y(0)
    every = math.ceil(len(bins) / 12)
    for i, (b, (of_pieces, of_tokens)) in enumerate(zip(bins, shares, strict=True)):
        left, right = frame.x(i), frame.x(i + 1)
        half = (right - left) * 0.42
        says = (
            f"{b.low:,} to {b.high:,} tokens: {b.pieces:,} pieces ({percent(of_pieces)}), "
            f"{b.tokens:,} tokens ({percent(of_tokens)})"
        )
        middle = (left + right) / 2
        parts.append("<g>")
        for at, share, colour in ((middle - half, of_pieces, 1), (middle + 1, of_tokens, 2)):
            y = frame.y(share)
            parts.append(
                f'<rect class="f{colour}" x="{at:.1f}" y="{y:.1f}" width="{half - 1:.1f}" height="{floor - y:.1f}"/>'
            )
        parts.append(
            f'<rect class="h" x="{left:.1f}" y="{frame.top}" width="{right - left:.1f}" '
            f'height="{floor - frame.top:.1f}"><title>{escape(says)}</title></rect></g>'
        )
        if i % every == 0:
            parts.append(
                f'<text class="t" x="{middle:.1f}" y="{floor + 14:.1f}" text-anchor="middle">{plain(b.low)}</text>'
            )
    parts.append(
        f'<text class="t" x="{size[0] - 8}" y="{size[1] - 4}" text-anchor="end">tokens in the piece, at least</text></svg>'
    )
    return "".join(parts)


def _open(size: tuple[int, int], label: str) -> str:
    return f'<svg class="chart" viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(label)}">'


def _frame(size: tuple[int, int], xs: Sequence[float], values: Sequence[float], zero: bool) -> Frame:
    low, high = min(values), max(values)
    if zero:
        low = min(0.0, low)
    room = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-9)
    high = high if zero and high == 1.0 else high + room
    low = low if zero else low - room
    small = size[0] < 400
    x_low, x_high = min(xs), max(xs)
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1
    return Frame(*size, 40 if small else 48, 8, 8, 18 if small else 34, x_low, x_high, low, high)


def _grid(frame: Frame, tick: float, text: str) -> str:
    y = frame.y(tick)
    return (
        f'<path class="g" d="M{frame.left} {y:.1f}H{frame.width - frame.right}"/>'
        f'<text class="t" x="{frame.left - 5}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _axes(frame: Frame, form: Callable[[float], str], small: bool, across: str = "step") -> str:
    parts = [_grid(frame, tick, form(tick)) for tick in ticks(frame.y_low, frame.y_high, 3 if small else 5)]
    floor = frame.height - frame.bottom
    for tick in ticks(frame.x_low, frame.x_high, 3 if small else 6):
        if tick == round(tick):
            x = min(frame.x(tick), frame.width - frame.right - 3)
            parts.append(f'<text class="t" x="{x:.1f}" y="{floor + 14}" text-anchor="middle">{plain(tick)}</text>')
    if not small:
        parts.append(
            f'<text class="t" x="{frame.width - frame.right}" y="{frame.height - 4}" text-anchor="end">{escape(across)}</text>'
        )
    return "".join(parts)


def _band(frame: Frame, line: Line) -> str:
    """The range of what a point averages; only where it averages more than one value."""
    curve = line.curve
    points = [
        (x, low, high)
        for x, low, high in zip(curve.xs, curve.low, curve.high, strict=False)
        if low is not None and high is not None
    ]
    if len(points) < 2 or all(low == high for _, low, high in points):
        return ""
    forth = " ".join(f"{frame.x(x):.1f},{frame.y(high):.1f}" for x, _, high in points)
    back = " ".join(f"{frame.x(x):.1f},{frame.y(low):.1f}" for x, low, _ in reversed(points))
    return f'<polygon class="b f{line.colour}" points="{forth} {back}"/>'


def _line(frame: Frame, line: Line) -> str:
    path, pen = [], "M"
    dots = []
    known = [y is not None for y in line.curve.ys]
    for i, (x, y) in enumerate(zip(line.curve.xs, line.curve.ys, strict=True)):
        if y is None:
            pen = "M"
            continue
        at_x, at_y = frame.x(x), frame.y(y)
        path.append(f"{pen}{at_x:.1f} {at_y:.1f}")
        alone = not (i and known[i - 1]) and not (i + 1 < len(known) and known[i + 1])
        if line.dots or alone:
            dots.append(f'<circle class="f{line.colour}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="2.5"/>')
        pen = "L"
    kind = (" d" if line.dash else "") + (" thin" if line.thin else "")
    return f'<path class="l c{line.colour}{kind}" d="{"".join(path)}"/>{"".join(dots)}'


def _hovers(frame: Frame, lines: Sequence[Line], form: Callable[[float], str]) -> str:
    """Invisible columns, each with a title that tells the figures there."""
    longest = max((line.curve.xs for line in lines), key=len, default=())
    if not longest:
        return ""
    count = min(_HOVERS, len(longest))
    centres = [longest[i * (len(longest) - 1) // max(1, count - 1)] for i in range(count)]
    edges = [frame.left, *(frame.x((a + b) / 2) for a, b in zip(centres, centres[1:], strict=False))]
    edges.append(frame.width - frame.right)
    parts = []
    for centre, left, right in zip(centres, edges, edges[1:], strict=False):
        says = [f"step {centre:,.0f}"]
        for line in lines:
            nearest = min(
                ((abs(x - centre), y) for x, y in zip(line.curve.xs, line.curve.ys, strict=True) if y is not None),
                default=None,
            )
            if nearest is not None:
                says.append(f"{line.curve.name}: {form(nearest[1])}")
        parts.append(
            f'<rect class="h" x="{left:.1f}" y="{frame.top}" width="{max(0.0, right - left):.1f}" '
            f'height="{frame.height - frame.top - frame.bottom}"><title>{escape(chr(10).join(says))}</title></rect>'
        )
    return "".join(parts)
