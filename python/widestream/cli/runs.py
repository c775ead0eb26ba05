"""``explain``, ``state``, ``journal`` and ``report``: looking at a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from widestream.cli.options import Json, Rank, RunFolder, Step


def explain(run: RunFolder, step: Step, rank: Rank = 0, as_json: Json = False) -> None:
    """Say where every token of a batch comes from: source, shard, record, token range; from the journal."""
    from widestream import inspection
    from widestream.cli.output import print_json, print_rendered
    from widestream.inspection.render import render_explanation

    pieces = inspection.explain(run, step, rank)
    if as_json:
        print_json(pieces)
    else:
        print_rendered(render_explanation(pieces, step, rank))


def state(run: RunFolder, as_json: Json = False) -> None:
    """Show the newest state of a run: step, mixture position, cursors of the sources, carried pieces."""
    from widestream import inspection
    from widestream.cli.output import print_json, print_rendered
    from widestream.inspection.render import render_state

    found = inspection.read_state(run)
    if as_json:
        print_json(found)
    else:
        print_rendered(render_state(found))


def journal(
    run: RunFolder,
    repair: Annotated[bool, typer.Option("--repair", help="Cut off a torn tail, as a crash leaves it.")] = False,
    as_json: Json = False,
) -> None:
    """Verify the journal of a run and show what it holds."""
    from widestream import inspection
    from widestream.cli.failures import INPUT
    from widestream.cli.output import print_json, print_rendered
    from widestream.inspection.render import render_journal

    found = inspection.repair_journal(run) if repair else inspection.read_journal(run)
    if as_json:
        print_json(found)
    else:
        print_rendered(render_journal(found))
    if not found["whole"]:
        raise typer.Exit(INPUT)


def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(help="The HTML file; default: report.html in the run.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file about a run."""
    from widestream.cli.output import print_json, print_text
    from widestream.report import write_report

    path = write_report(run, out)
    if as_json:
        print_json({"report": str(path)})
    else:
        print_text(str(path))
