"""``train``: a model on a job's stream."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated

import typer

from widestream.cli.options import JobFile, Json, Overrides


def train(
    job: JobFile,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint of the run.")] = False,
    fork: Annotated[
        bool, typer.Option("--fork", help="With --resume: accept changed settings, and drop later decisions.")
    ] = False,
    mock_data: Annotated[
        bool,
        typer.Option(
            "--mock-data", help="Measure the trainer: every step is the job's first batch, no journal is kept."
        ),
    ] = False,
    overrides: Overrides = [],  # noqa: B006  (typer copies it)
    as_json: Json = False,
) -> None:
    """Train a (VWN) language model on a job's stream."""
    from widestream.cli.failures import INTERRUPTED, rank_of_many
    from widestream.cli.output import print_json
    from widestream.job import Job

    if fork and not resume:
        raise typer.BadParameter("it goes with --resume", param_hint="--fork")
    checked = Job.load(job, overrides)
    result = import_module("widestream.train").run(
        checked, resume=resume, fork=fork, mock_data=mock_data, overrides=overrides, job_file=job
    )
    if as_json and not rank_of_many():
        fields = ("step", "interrupted", "checkpoint_step", "summary")
        print_json({name: getattr(result, name, None) for name in fields})
    if getattr(result, "interrupted", False):
        raise typer.Exit(INTERRUPTED)
