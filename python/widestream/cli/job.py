"""``lint`` and ``preview``: what a job says, and what it will give."""

from __future__ import annotations

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
