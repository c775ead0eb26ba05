"""``tokenize``: files of text to a Megatron data set of token ids."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from widestream.cli.options import Json

if TYPE_CHECKING:
    from widestream.tokenizer import TokenizeProgress, TokenizeSummary

_LINE_SECONDS = 5.0


def tokenize(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT", help="Files, folders or globs; then the output without suffix.", show_default=False
        ),
    ],
    tokenizer: Annotated[Path, typer.Option(help="Tokenizer file.", show_default=False)],
    pattern: Annotated[
        str, typer.Option(help="Of the tokenizer, where its file does not say it.", show_default=False)
    ] = "",
    append: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Special token after each document, as <|endoftext|>; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006  (typer copies it)
    text: Annotated[str, typer.Option(help="The column or key that holds the text.")] = "text",
    format: Annotated[
        str, typer.Option(help="parquet, jsonl, text or webdataset; default: from the names.", show_default=False)
    ] = "",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one per core.")] = 0,
    bad_records: Annotated[Literal["fail", "skip"], typer.Option(help="At a record that cannot be read.")] = "fail",
    record_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Longer records are bad.")] = "32MiB",
    force: Annotated[bool, typer.Option("--force", help="Replace an output that is there.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Drop the work of an interrupted run.")] = False,
    as_json: Json = False,
) -> None:
    """Tokenize files into OUT.bin and OUT.idx, as Megatron reads them. The same command goes on after an interruption."""
    from dataclasses import asdict

    from widestream.cli.output import print_json, print_text
    from widestream.tokenizer import Tokenizer, tokenize_files
    from widestream.units import parse_bytes

    if len(paths) < 2:
        raise typer.BadParameter("give at least one input, and the output last", param_hint="IN... OUT")
    loaded = Tokenizer.from_file(tokenizer, pattern=pattern)
    if loaded.backend == "tokenizers" and not as_json:
        print(f"{tokenizer}: through the tokenizers package, which is slow", file=sys.stderr)
    with _shown(silent=as_json) as show:
        summary = tokenize_files(
            paths[:-1],
            paths[-1],
            loaded,
            append=append,
            text=text,
            format=format,
            threads=threads,
            bad_records=bad_records,
            record_bytes=parse_bytes(record_bytes),
            overwrite=force,
            restart=restart,
            on_progress=show,
        )
    if as_json:
        print_json(asdict(summary))
    else:
        print_text(describe(summary))


def describe(summary: TokenizeSummary) -> str:
    """A summary in words."""
    lines = [
        f"{summary.output}.bin and .idx: {summary.documents:,} documents, {summary.tokens:,} tokens ({summary.dtype}), "
        f"{summary.text_bytes / 1e6:,.1f} MB of text from {summary.shards:,} files",
        f"{summary.seconds:.1f} s, {summary.megabytes_per_second:.1f} MB/s",
    ]
    if summary.resumed_documents:
        lines[1] += f"; {summary.resumed_documents:,} documents were done before"
    if summary.empty:
        lines.append(f"{summary.empty:,} documents are empty")
    if summary.bad:
        lines.append(
            f"{summary.bad:,} bad records were left out" + (f"; {summary.first_bad}" if summary.first_bad else "")
        )
    return "\n".join(lines)


@contextmanager
def _shown(*, silent: bool) -> Iterator[Callable[[TokenizeProgress], None] | None]:
    """How progress is shown: a bar on a terminal, a line every few seconds elsewhere, both on stderr."""
    if silent:
        yield None
    elif sys.stderr.isatty():
        with _bar() as show:
            yield show
    else:
        yield _lines()


@contextmanager
def _bar() -> Iterator[Callable[[TokenizeProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)
        begin = time.monotonic()

        def show(now: TokenizeProgress) -> None:
            progress.update(
                task,
                description=_described(now, time.monotonic() - begin),
                total=max(now.input_bytes, 1),
                completed=now.input_bytes_done,
            )

        yield show


def _lines() -> Callable[[TokenizeProgress], None]:
    begin = last = time.monotonic()

    def show(now: TokenizeProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_SECONDS:
            last = time.monotonic()
            print(_described(now, last - begin), file=sys.stderr, flush=True)

    return show


def _described(now: TokenizeProgress, seconds: float) -> str:
    if now.assembling:
        return f"{now.documents:,} documents tokenized; putting the output together"
    speed = (now.text_bytes - now.resumed_text_bytes) / 1e6 / max(seconds, 1e-3)
    return (
        f"{now.documents:,} documents, {now.tokens / 1e6:,.1f} M tokens, {speed:,.1f} MB/s, "
        f"{now.shards_done:,} of {now.shards:,} files"
    )
