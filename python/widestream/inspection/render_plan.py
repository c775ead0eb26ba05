"""A dry run as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from widestream.inspection.text import visible

if TYPE_CHECKING:
    from rich.console import Group

_MOST_SOURCES = 40


def render_plan(found: dict[str, Any]) -> Group:
    """The mixture, and the figures of the steps: mean, least and most."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    steps = found["steps"]
    total = sum(step["real_tokens"] for step in steps)
    tokens: dict[str, int] = dict.fromkeys(steps[0]["tokens_by_source"], 0)
    wanted = dict.fromkeys(tokens, 0.0)
    for step in steps:
        for name, count in step["tokens_by_source"].items():
            tokens[name] += count
        for name, share in step["wanted_by_source"].items():
            wanted[name] += share * step["real_tokens"]
    mixture = Table(title="Mixture", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("source", "tokens", "share", "wanted"):
        mixture.add_column(column, justify="left" if column == "source" else "right")
    names = sorted(tokens, key=lambda name: (-tokens[name], name))
    for name in names[:_MOST_SOURCES]:
        mixture.add_row(
            Text(visible(name)),
            f"{tokens[name]:,}",
            f"{100 * tokens[name] / max(1, total):.3f} %",
            f"{100 * wanted[name] / max(1, total):.3f} %",
        )
    if len(names) > _MOST_SOURCES:
        mixture.add_row(Text(f"and {len(names) - _MOST_SOURCES} smaller sources", style="dim"), "", "", "")

    figures = Table(title="A step", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("", "mean", "least", "most"):
        figures.add_column(column, justify="left" if not column else "right")
    for label, key, form in (
        ("tokens, all ranks", "real_tokens", "{:,.0f}"),
        ("targets, all ranks", "supervised_tokens", "{:,.0f}"),
        ("pieces", "pieces", "{:,.1f}"),
        ("of these not whole documents", "cut_pieces", "{:,.1f}"),
        (f"padding, share of the slots of {found['padding_of']}", "padding_share", "{:.4f}"),
        ("costliest rank over the mean", "spread", "{:.4f}"),
        ("microbatches of rank 0", "microbatches", "{:.1f}"),
        ("bytes of rank 0's tensors", "size_bytes", "{:,.0f}"),
    ):
        values = [step[key] for step in steps]
        figures.add_row(
            label, form.format(sum(values) / len(values)), form.format(min(values)), form.format(max(values))
        )
    head = (
        f"{found['job']}: steps {found['first']:,} to {found['stop'] - 1:,}, {found['ranks']} data-parallel "
        f"rank{'s' if found['ranks'] > 1 else ''}, layout {found['layout']}, {total:,} tokens"
    )
    parts: list[Any] = [Text(visible(head)), mixture, figures]
    if found["ended"]:
        parts.append(Text(f"The stream ends after step {found['stop'] - 1:,}.", style="yellow"))
    return Group(*parts)
