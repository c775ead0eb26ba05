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
    from widestream.cli.output import print_json, print_text
    from widestream.cli.preview import preview_step
    from widestream.job import Job

    pieces = preview_step(Job.load(job, overrides), step=step, rank=rank, world=world)
    if as_json:
        print_json({"step": step, "rank": rank, "pieces": pieces})
        return
    place: tuple[int, int] | None = None
    for piece in pieces:
        if place != (piece["microbatch"], piece["row"]):
            place = (piece["microbatch"], piece["row"])
            print_text(f"== step {step}, rank {rank}, microbatch {place[0]}, row {place[1]}", "bold")
        print_text(
            f"-- {piece['source']}: {piece['shard']} record {piece['record']}, tokens {piece['start']}..{piece['stop']}",
            "cyan",
        )
        text = piece["text"]
        left = len(text) - characters
        print_text(text if left <= 0 else f"{text[:characters]} [... {left} more characters]")
