"""``lint``, ``preview`` and ``plan``: what a job says, and what it will give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from widestream.cli.options import JobFile, Json, Overrides, Rank, Step


def lint(
    job: JobFile,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print the resolved job, which the C++ API reads.")
    ] = False,
    open_sources: Annotated[
        bool, typer.Option("--open/--no-open", help="Open every source and build the first batch.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Check a job: its keys, its files, its sources; say what is wrong and what to write instead."""
    from widestream.cli.failures import INPUT
    from widestream.cli.output import print_json, print_table, print_text
    from widestream.job import Job
    from widestream.job.checks import check_files, check_sources

    checked = Job.load(job, overrides)
    if resolved:
        print(checked.to_json())
        return
    findings = check_files(checked)
    sources: list[dict[str, Any]] = []
    if open_sources and not any(finding.level == "error" for finding in findings):
        opened, sources = check_sources(checked)
        findings += opened
    failed = any(finding.level == "error" for finding in findings)
    if as_json:
        print_json({"ok": not failed, "findings": [finding.to_dict() for finding in findings], "sources": sources})
    else:
        for finding in findings:
            where = f"{finding.key}: " if finding.key else ""
            print_text(f"{finding.level}: {where}{finding.message}", "red" if finding.level == "error" else "yellow")
        if sources:
            rows = [(s["name"], s["format"], len(s["shards"]), s["records"]) for s in sources]
            print_table("Sources", ("source", "format", "shards", "records"), rows)
        if not failed:
            print_text(f"{job}: ok" + (f", {len(findings)} warnings" if findings else ""), "green")
    if failed:
        raise typer.Exit(INPUT)


def preview(
    job: JobFile,
    step: Step = 0,
    rank: Rank = 0,
    world: Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks; default: the job's.")] = None,
    characters: Annotated[int, typer.Option(min=1, help="Longest text shown of a piece; --json shows all.")] = 400,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """Show what a rank will see in a step, as text, with the borders of documents."""
    from widestream import inspection
    from widestream.cli.output import print_json, print_rendered
    from widestream.inspection.render import render_preview
    from widestream.job import Job

    found = inspection.preview(Job.load(job, overrides), step, rank, world)
    if as_json:
        print_json(found)
    else:
        print_rendered(render_preview(found, characters))


def plan(
    job: JobFile,
    steps: Annotated[str, typer.Option(metavar="FIRST:STOP", help="The steps to plan.")] = "0:100",
    world: Annotated[int | None, typer.Option(min=1, help="Data-parallel ranks; default: the job's.")] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the pictures here; default: plan-JOB.html.")
    ] = None,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """Plan steps of a job without training: mixture, balance, padding and memory, as a table and as one HTML file."""
    from widestream import inspection
    from widestream.cli.failures import clean
    from widestream.cli.output import print_json, print_rendered, print_text
    from widestream.errors import InvalidArgumentError
    from widestream.inspection.render_plan import render_plan
    from widestream.job import Job
    from widestream.report.plan_page import write_plan

    first, colon, stop = steps.partition(":")
    if not (colon and first.isascii() and first.isdigit() and stop.isascii() and stop.isdigit()):
        raise InvalidArgumentError(f"--steps {clean(steps)!r} is no range; write FIRST:STOP, for example 0:100")
    loaded = Job.load(job, overrides)
    with _progress(int(stop) - int(first), shown=not as_json) as on_step:
        found = inspection.dry_run(loaded, int(first), int(stop), world, on_step)
    if as_json:
        print_json(found)
        return
    print_rendered(render_plan(found))
    out = html or Path(f"plan-{job.stem}.html")
    print_text(f"Pictures: {write_plan(found, out)}", "bold")


@contextlib.contextmanager
def _progress(total: int, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal; a line elsewhere, as the texts of the steps must be tokenized."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    if not shown:
        yield None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        sys.stderr.write(f"planning {total:,} steps: their texts are read and tokenized\n")
        yield None
        return
    columns = TextColumn("tokenizing and planning"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("plan", total=total)
        yield lambda done: progress.update(task, completed=done)
