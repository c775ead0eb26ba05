"""``bench``: named workloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from widestream.cli.options import Json


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The workload; see --list.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A tiny size, which only shows that it works.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder of data that the workload reads.", show_default=False)
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="Tokenizer file.", show_default=False)] = None,
    pairs: Annotated[int | None, typer.Option(min=1, help="Interleaved pairs of runs.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="List the workloads and run nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Run a benchmark: each figure beside a peer or a floor in the same run, one JSON line a figure with --json."""
    from widestream.bench import WORKLOADS, run_workload
    from widestream.cli.output import print_json, print_table, print_text

    if show or name is None:
        if as_json:
            print_json(WORKLOADS)
        else:
            print_table("Workloads", ("name", "what it measures"), WORKLOADS.items())
        if not show:
            raise typer.BadParameter("name a workload", param_hint="NAME")
        return
    options: dict[str, Any] = {"data": data and str(data), "tokenizer": tokenizer and str(tokenizer), "pairs": pairs}
    given = {key: value for key, value in options.items() if value is not None}
    for figure in run_workload(name, quick=quick, options=given):
        if as_json:
            print(figure.to_json(), flush=True)
        else:
            verdict = {None: "", True: ", goal met", False: ", goal missed"}[figure.met]
            peer = f" (against {figure.against['name']})" if figure.against else ""
            print_text(f"{figure.id}: {figure.value:.4g} {figure.unit}{peer}{verdict}; {figure.case}; {figure.checked}")
