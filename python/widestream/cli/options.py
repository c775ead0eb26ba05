"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path, typer.Argument(metavar="JOB", help="A job file (docs/job.md).", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="The run_dir of a job.", show_default=False)]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job; may be repeated.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Step = Annotated[int, typer.Option("--step", min=0, help="The step, from 0.")]
Rank = Annotated[int, typer.Option("--rank", min=0, help="The data-parallel rank, from 0.")]
