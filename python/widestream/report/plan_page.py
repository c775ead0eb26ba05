"""The page of a dry run: mixture, balance, packing and memory of the steps that were planned."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from widestream.report.page import document, figure, mixture_section, packing_section, tile
from widestream.report.run_data import RunData, StepMetrics
from widestream.report.series import Curve, curve, mixture
from widestream.report.svg import Line, escape, legend, line_chart, percent, plain

_MOST_LENGTHS = 200_000


def write_plan(found: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Writes what `widestream.inspection.dry_run` found as one self-contained HTML file, and returns its path."""
    from widestream.report.write import write_page

    page = document(f"{found['job']} - Widestream plan", _body(found))
    write_page(Path(path), page)
    return Path(path)


def _body(found: dict[str, Any]) -> str:
    steps = [
        StepMetrics(
            step=step["step"],
            tokens=step["real_tokens"],
            tokens_by_source=step["tokens_by_source"],
            wanted_by_source=step["wanted_by_source"],
            padding_share=step["padding_share"],
        )
        for step in found["steps"]
    ]
    data = RunData(folder=Path(), steps=steps, piece_lengths=_sample(found["lengths"]))
    data.piece_lengths_of = "these steps"
    return _head(found) + mixture_section(mixture(steps)) + _balance(found, steps) + packing_section(data)


def _sample(lengths: dict[int, int]) -> list[int]:
    """The lengths of all pieces; of very many an even thinning."""
    total = sum(lengths.values())
    keep = max(1, -(-total // _MOST_LENGTHS))
    return [length for length, count in lengths.items() for _ in range(-(-count // keep))]


def _head(found: dict[str, Any]) -> str:
    steps = found["steps"]
    tokens = sum(step["real_tokens"] for step in steps)
    pieces = sum(step["pieces"] for step in steps)
    cut = sum(step["cut_pieces"] for step in steps)
    padding = sum(step["padding_share"] for step in steps) / len(steps)
    spread = sum(step["spread"] for step in steps) / len(steps)
    tiles = [
        tile(f"{len(steps):,}", f"steps planned, {found['first']:,} to {found['stop'] - 1:,}"),
        tile(plain(tokens), "tokens over all ranks"),
        tile(f"{found['ranks']:,}", "data-parallel ranks"),
        tile(percent(padding), "of the slots are padding", "good" if padding < 0.01 else ""),
        tile(percent(cut / max(1, pieces)), "of the pieces are not a whole document"),
    ]
    if found["ranks"] > 1:
        tiles.append(
            tile(f"{spread:.4f} x", "the costliest rank over the mean, on average", "good" if spread < 1.02 else "warn")
        )
    note = ""
    if found["ended"]:
        note = f'<section class="notes"><b>The stream ends</b><ul><li>after step {found["stop"] - 1:,}.</li></ul></section>'
    return (
        f"<header><h1>{escape(found['job'])}</h1><p class='soft'>What a job of Widestream would do: a dry run of the "
        "planner. Hover over a chart for its figures.</p></header>"
        f'<div class="tiles">{"".join(tiles)}</div>{note}'
    )


def _balance(found: dict[str, Any], steps: list[StepMetrics]) -> str:
    by_step = {step["step"]: step for step in found["steps"]}

    def of(name: str, value: Callable[[dict[str, Any]], float]) -> Curve:
        return curve(name, steps, lambda s: float(value(by_step[s.step])))

    figures = ""
    if found["ranks"] > 1:
        lines = [
            Line(of("costliest rank", lambda s: max(s["costs"])), 2),
            Line(of("mean of all ranks", lambda s: sum(s["costs"]) / len(s["costs"])), 1),
            Line(of("cheapest rank", lambda s: min(s["costs"])), 3),
        ]
        figures += figure(
            "Cost of the ranks",
            legend(lines) + line_chart(lines, label="Cost of the ranks by step"),
            "All ranks wait for the costliest one: its distance to the mean is what is lost.",
        )
        figures += figure(
            "Loss by imbalance",
            line_chart(
                [Line(of("costliest rank over the mean, less 1", lambda s: s["spread"] - 1), 2)],
                label="Loss by imbalance by step",
                form=percent,
                zero=True,
            ),
            "How much longer a step takes than with equal ranks, if time follows cost.",
        )
    lines = [
        Line(of("targets", lambda s: s["supervised_tokens"]), 1),
        Line(of("tokens", lambda s: s["real_tokens"]), 2),
    ]
    figures += figure(
        "Tokens of a step",
        legend(lines) + line_chart(lines, label="Tokens of a step"),
        "Over all ranks. Targets are the tokens that the loss counts.",
    )
    figures += figure(
        "Memory",
        line_chart([Line(of("bytes", lambda s: s["size_bytes"]), 1)], label="Bytes of a rank's tensors", zero=True),
        "Bytes of the tensors that rank 0 gets at a step.",
    )
    return f'<h2>Balance and memory</h2><div class="grid">{figures}</div>'
