"""The report's section on the wide state of a VWN model, from `wide_state.json` (`widestream.vwn.Monitor`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from widestream.report.run_data import RunData, number, read_object_if_there
from widestream.report.series import Curve
from widestream.report.svg import Line, escape, legend, line_chart, percent, plain

FILE = "wide_state.json"
_MAX_SUB_LAYERS = 2_000
_MAX_ALARMS = 50


def wide_state(data: RunData) -> str:
    """The section, or nothing where the run has no such file. Every text from it is escaped."""
    document = read_object_if_there(data, FILE)
    if document is None:
        return ""
    found = document.get("sub_layers")
    rows = [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []
    if not rows:
        data.notes.append(f"{FILE} has no list `sub_layers`; it is left out.")
        return ""
    rows = rows[:_MAX_SUB_LAYERS]
    alarms = document.get("alarms")
    texts = [str(text)[:500] for text in alarms[:_MAX_ALARMS]] if isinstance(alarms, list) else []
    warning = "".join(f'<p class="bad">{escape(text)}</p>' for text in texts)
    figures = (
        _chart("Composite carry gain", rows, [("gain", "composite_gain")], plain, "A residual network has 1.")
        + _chart(
            "Use of the virtual slots and saturation",
            rows,
            [("reads from virtual slots", "virtual_read_share"), ("mean |tanh|", "saturation")],
            percent,
            "Share of the read coefficients on slots m and above, and how far the dynamic coefficients saturate.",
        )
        + _slots(rows)
    )
    return (
        "<h2>Wide state</h2><p>Each sub-layer's connection, from the first to the last, at the latest look.</p>"
        f'{warning}<div class="grid">{figures}</div>'
    )


def _curve(name: str, rows: Sequence[dict[str, Any]], value: Callable[[dict[str, Any]], float | None]) -> Curve:
    return Curve(name, tuple(float(i) for i in range(1, len(rows) + 1)), tuple(value(row) for row in rows))


def _chart(
    title: str, rows: list[dict[str, Any]], keys: list[tuple[str, str]], form: Callable[[float], str], caption: str
) -> str:
    lines = [
        Line(_curve(name, rows, lambda row, key=key: number(row.get(key))), colour)  # type: ignore[misc]
        for colour, (name, key) in enumerate(keys, start=1)
    ]
    return _figure(title, lines, form, caption)


def _slots(rows: list[dict[str, Any]]) -> str:
    def extreme(row: dict[str, Any], pick: Callable[[list[float]], float]) -> float | None:
        values = row.get("slot_rms")
        known = [x for x in map(number, values) if x is not None] if isinstance(values, list) else []
        return pick(known) if known else None

    lines = [
        Line(_curve("largest slot", rows, lambda row: extreme(row, max)), 1),
        Line(_curve("smallest slot", rows, lambda row: extreme(row, min)), 2),
    ]
    return _figure("Size of the slots", lines, plain, "Root mean square of a slot's numbers before the sub-layer.")


def _figure(title: str, lines: list[Line], form: Callable[[float], str], caption: str) -> str:
    chart = line_chart(lines, label=f"{title} by sub-layer", form=form, zero=True, hover=False, across="sub-layer")
    return (
        f"<figure><h3>{escape(title)}</h3>{legend(lines, form)}{chart}"
        f"<figcaption>By sub-layer. {escape(caption)}</figcaption></figure>"
    )
