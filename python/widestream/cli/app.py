"""The typer application: its commands and the options that every command has."""

from __future__ import annotations

import os

import typer

from widestream.cli import bench, calibrate, data, generate, job, runs, serve, tokenize, train
from widestream.cli.failures import Settings, handled

app = typer.Typer(
    name="widestream",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Widestream: feeds and trains large models from hundreds of sources.",
    epilog="Every command takes --traceback (show where an error comes from). Exit codes: 0 ok, 1 bug, 2 usage, "
    "3 bad job, path or data, 4 environment, 5 timeout, 130 interrupted.",
)
for _command in (
    train.train,
    serve.serve,
    job.lint,
    data.inspect,
    job.preview,
    job.plan,
    runs.explain,
    runs.state,
    runs.journal,
    data.fetch,
    tokenize.tokenize,
    generate.generate,
    runs.report,
    bench.bench,
    calibrate.calibrate,
):
    app.command()(handled(_command))


def _print_version(value: bool) -> None:
    if value:
        from widestream import __version__

        print(f"widestream {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
) -> None:
    pass


def run(arguments: list[str]) -> int:
    """Runs a command line and returns the exit code."""
    # Anywhere on the line, whatever the command: typer knows options of the command only.
    Settings.traceback = "--traceback" in arguments or os.environ.get("WIDESTREAM_TRACEBACK", "0") not in ("", "0")
    Settings.json = "--json" in arguments
    try:
        app(args=[argument for argument in arguments if argument != "--traceback"], prog_name="widestream")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    return 0
