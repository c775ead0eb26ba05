"""Text for a terminal from what the other modules return. Data never acts as markup or as a control sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from widestream.inspection.text import excerpt, visible

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_BAR_CELLS = 40
_STYLES = ("cyan", "green", "magenta", "yellow", "blue", "red")
_MAX_LISTED = 20


def render_preview(preview: dict[str, Any], characters: int = 400) -> Group:
    """Rows of a preview: each piece under its source, with marks where documents begin and end, and the padding.

    `characters` is how much text of a piece is shown: half from its beginning, half from its end.
    """
    from rich.console import Group
    from rich.rule import Rule

    styles = {name: _STYLES[i % len(_STYLES)] for i, name in enumerate(preview["tokens_by_source"])}
    parts: list[Any] = [
        _text(
            f"Step {preview['step']}, rank {preview['rank']} of {preview['world']}, layout {preview['layout']}: "
            f"{preview['real_tokens']:,} tokens and {preview['supervised_tokens']:,} targets over all ranks"
        ),
        _text(
            ", ".join(f"{name} {tokens:,}" for name, tokens in preview["tokens_by_source"].items() if tokens),
            style="dim",
        ),
        _text("[ a document begins   ] it ends   ... it goes on in another piece", style="dim"),
    ]
    for number, microbatch in enumerate(preview["microbatches"]):
        for index, row in enumerate(microbatch["rows"]):
            title = f"microbatch {number}, row {index}: {row['tokens']:,} tokens, {row['padding']:,} padding"
            parts.append(Rule(title, align="left", style="dim", characters="-"))
            if not row["pieces"]:
                parts.append(_text("filler: nothing but padding, no target", style="dim"))
            parts += [_piece(piece, styles.get(piece["source"], "white"), characters) for piece in row["pieces"]]
            if row["pieces"] and row["padding"]:
                parts.append(_text(f"{row['padding']:,} padding", style="dim"))
    return Group(*parts)


def _piece(piece: dict[str, Any], style: str, characters: int) -> Text:
    text = _text(f"{piece['source']} ", style=f"bold {style}")
    text.append(
        f"record {piece['record']:,} of {_safe(piece['shard'])}, tokens {piece['start']:,} to {piece['stop']:,}"
        + (f", epoch {piece['epoch']}" if piece["epoch"] else "")
        + f", {piece['supervised']:,} targets\n",
        style="dim",
    )
    text.append("[" if piece["begins"] else "...", style="bold")
    text.append(_ends_of(piece["text"], characters), style=style)
    text.append("]" if piece["ends"] else "...", style="bold")
    return text


def _ends_of(text: str, characters: int) -> str:
    """The text, or its two ends with the number of characters left out between."""
    if len(text) <= characters:
        return _safe(text)
    half = characters // 2
    return f"{_safe(text[:half])} ... {len(text) - 2 * half:,} characters ... {_safe(text[len(text) - half :])}"


def render_inspection(found: dict[str, Any]) -> Group:
    """What `inspect_path` found."""
    from rich.console import Group

    sample = found["sample"]
    records = "known only at the end" if found["records"] is None else f"{found['records']:,}"
    facts = [
        ("format", found["format"]),
        ("shards", f"{found['shards']:,}"),
        ("bytes", f"{found['size_bytes']:,}"),
        ("records", records),
        ("units", f"{found['units']:,}" + ("" if found["records"] is None else " row groups")),
        ("manifest", found["manifest"]),
        ("schema", "\n".join(found["schema"]) or "none: every record has its own keys"),
        (
            "sample",
            f"{sample['records']:,} records of {sample['shards']:,} shards: {sample['good']:,} good, {sample['bad']:,} bad, "
            f"{sample['empty']:,} empty",
        ),
        ("first text", found["beginning"]),
    ]
    parts: list[Any] = [_facts(facts)]
    for other in found["other_schemas"]:
        parts.append(_text(f"{other['shard']} has another schema: {', '.join(other['schema'])}", style="yellow"))
    for unit, name in (("bytes", "length_bytes"), ("tokens", "length_tokens")):
        if sample[name] is not None:
            parts.append(_histogram(f"Length of a text in {unit}", sample[name]))
    if found["bad_records"]:
        rows = [(bad["shard"], bad["record"], bad["offset"], bad["reason"]) for bad in found["bad_records"]]
        parts.append(_table("Bad records of the sample", ("shard", "record", "offset", "reason"), rows))
    if found["bad_shards"]:
        shards = [(bad["shard"], bad["reason"]) for bad in found["bad_shards"][:_MAX_LISTED]]
        parts.append(_table("Shards that cannot be read", ("shard", "reason"), shards))
    return Group(*parts)


def _histogram(title: str, lengths: dict[str, Any]) -> Group:
    from rich.console import Group
    from rich.table import Table

    most = max(count for _, _, count in lengths["bins"])
    table = Table(show_header=False, box=None, pad_edge=False)
    for low, high, count in lengths["bins"]:
        bar = "#" * max(1 if count else 0, round(_BAR_CELLS * count / most))
        table.add_row(_text(f"{low:,} to {high:,}", justify="right"), _text(bar, style="cyan"), _text(f"{count:,}"))
    told = ", ".join(f"{name} {lengths[name]:,}" for name in ("min", "p10", "p50", "p90", "p99", "max"))
    return Group(_text(title, style="bold"), table, _text(f"mean {lengths['mean']:,.0f}, {told}", style="dim"))


def render_explanation(pieces: Sequence[dict[str, Any]], step: int, rank: int) -> Table:
    """Where the tokens of a batch come from."""
    columns = ("microbatch", "row", "source", "shard", "record", "tokens", "epoch")
    rows = [
        (
            piece["microbatch"],
            piece["row"],
            piece["source"],
            piece["shard"] or f"number {piece['shard_index']}",
            piece["record"],
            f"{piece['start']} to {piece['stop']}" + (" (end)" if piece["last"] else ""),
            piece["epoch"],
        )
        for piece in pieces
    ]
    return _table(f"Step {step}, rank {rank}", columns, rows)


def render_state(state: dict[str, Any]) -> Group:
    """A state's summary."""
    from rich.console import Group

    schedule = state["schedule"] if isinstance(state["schedule"], dict) else {}
    facts = [
        ("file", state["path"]),
        ("next step", state["step"]),
        ("tokens delivered", state["tokens"]),
        ("stream", state["stream_hash"]),
        ("mixture", ", ".join(f"{key} {value}" for key, value in schedule.items() if value is not None)),
        ("carried pieces", state["carried_pieces"] + int(state["closing_piece"])),
        ("decisions", len(state["decisions"])),
    ]
    keys = ("name", "epoch", "position", "tokens", "examined", "rejected", "corrupt", "held_out", "exhausted")
    rows = [[source[key] for key in keys] for source in state["sources"]]
    return Group(_facts(facts), _table("Sources", keys, rows), *_decisions(state["decisions"]))


def render_journal(journal: dict[str, Any]) -> Group:
    """A journal's summary: what it holds and what is wrong with it."""
    from rich.console import Group

    steps = f"{journal['steps']:,}"
    if journal["steps"]:
        steps += f", {journal['first_step']:,} to {journal['last_step']:,}"
    facts = [
        ("file", journal["path"]),
        ("bytes", f"{journal['size_bytes']:,}, {journal['valid_bytes']:,} in whole records"),
        ("stream", journal["stream_hash"]),
        ("sources", ", ".join(journal["sources"][:_MAX_LISTED])),
        ("steps", steps),
        ("missing, skipped", f"{journal['missing_steps']:,}, {journal['skipped_steps']:,}"),
        ("tokens", f"{journal['tokens']:,}"),
        ("notes", "\n".join(journal["notes"][:_MAX_LISTED])),
    ]
    parts: list[Any] = [_facts(facts), *_decisions(journal["decisions"])]
    if "cut" in journal:
        cut = journal["cut"]
        parts.append(
            _text(
                "There was nothing to repair." if cut is None else f"Cut {cut['lost_bytes']:,} bytes: {cut['reason']}."
            )
        )
    if journal["whole"]:
        parts.append(_text("Every record is whole.", style="green"))
    parts += [_text(problem, style="yellow") for problem in journal["problems"]]
    return Group(*parts)


def _decisions(decisions: Iterable[dict[str, Any]]) -> list[Any]:
    rows = [
        (
            decision.get("step"),
            decision.get("kind"),
            ", ".join(f"{k} {v}" for k, v in decision.items() if k not in ("step", "kind")),
        )
        for decision in decisions
    ]
    return [_table("Decisions", ("step", "kind", "what"), rows[-_MAX_LISTED:])] if rows else []


def _safe(text: object) -> str:
    return visible(str(text))


def _text(text: object, style: str = "", justify: Any = None) -> Text:
    from rich.text import Text

    return Text(_safe(text), style=style, justify=justify)


def _facts(facts: Iterable[tuple[str, object]]) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts:
        if value is not None and value != "":
            table.add_row(_text(name, style="dim"), _text(value))
    return table


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = (
            "" if cell is None else f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else cell
            for cell in row
        )
        table.add_row(*(_text(excerpt(cell, 2000) if isinstance(cell, str) else cell) for cell in cells))
    return table
