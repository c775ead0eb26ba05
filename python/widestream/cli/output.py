"""Printing: tables for people, JSON for machines. Nothing from data reaches a terminal unescaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from widestream.cli.failures import clean


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    print(json.dumps(value, ensure_ascii=False, default=str))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; cells are plain text, never markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=clean(title), title_justify="left", show_edge=False, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean("" if cell is None else str(cell))) for cell in row))
    Console().print(table)


def print_text(text: str, style: str = "") -> None:
    """Plain text in a style of rich."""
    from rich.console import Console
    from rich.text import Text

    Console().print(Text(clean(text), style=style), soft_wrap=True)


def print_rendered(rendered: Any) -> None:
    """What a renderer of widestream.inspection.render made."""
    from rich.console import Console

    Console().print(rendered)
