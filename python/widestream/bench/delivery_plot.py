"""The plot of ``bench delivery``: ``python -m widestream.bench.delivery_plot FIGURES.jsonl OUT.svg``.

Bytes a second over the size of a batch, both axes logarithmic: ours, and the worker queue of a torch DataLoader.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 360, 70, 40, 40, 50
_CURVES = (("Widestream: host to rank", "#1f6f8b", 0), ("torch DataLoader: worker to trainer", "#c0504d", 1))


def plot(figures: list[dict[str, object]]) -> str:
    """An SVG of the bandwidth figures, each a dict as ``bench --json`` prints it."""
    points: list[tuple[int, tuple[float, float]]] = []
    for figure in figures:
        if figure["id"] == "delivery-bandwidth":
            pairs = figure["pairs"]
            assert isinstance(pairs, list)
            size = int(str(figure["case"]).split()[2])
            points.append((size, (statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs))))
    points.sort()
    low = min(min(values) for _, values in points)
    high = max(max(values) for _, values in points)
    bottom, top = math.floor(math.log10(low)), math.ceil(math.log10(high))

    def x(size: int) -> float:
        first, last = math.log2(points[0][0]), math.log2(points[-1][0])
        return _LEFT + (math.log2(size) - first) / max(last - first, 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (math.log10(value) - bottom) / (top - bottom) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="20" font-size="14">Bytes a second from one process to another, a word of each page read</text>',
    ]
    for power in range(bottom, top + 1):
        at = y(10.0**power)
        label = f"{10.0 ** (power - 9):g} GB/s"
        parts.append(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for size, _ in points:
        parts.append(f'<text x="{x(size):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{size} MiB</text>')
    for name, colour, index in _CURVES:
        line = " ".join(f"{x(size):.1f},{y(values[index]):.1f}" for size, values in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for size, values in points:
            parts.append(f'<circle cx="{x(size):.1f}" cy="{y(values[index]):.1f}" r="3" fill="{colour}"/>')
        place = _LEFT + 10 + index * 250
        parts.append(f'<rect x="{place}" y="{_HEIGHT - 22}" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{place + 18}" y="{_HEIGHT - 12}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    Path(sys.argv[2]).write_text(plot([json.loads(line) for line in lines]), encoding="utf-8")
