"""``inspect`` and ``fetch``: files of data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from widestream.cli.options import Json

if TYPE_CHECKING:
    from widestream.corpora import FetchedCorpus


def inspect(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A file, a folder or a glob of data.", show_default=False)
    ],
    text: Annotated[str, typer.Option(help="The column or key that holds the text.")] = "text",
    format: Annotated[
        str,
        typer.Option(help="parquet, jsonl, megatron, text or webdataset; default: from the names.", show_default=False),
    ] = "",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer file: tells lengths in tokens, too.", show_default=False)
    ] = None,
    pattern: Annotated[
        str, typer.Option(help="Of the tokenizer, where its file does not say it.", show_default=False)
    ] = "",
    sample: Annotated[int, typer.Option(min=1, help="Records to read at most.")] = 1000,
    as_json: Json = False,
) -> None:
    """Show what a source holds: format, schema, records, lengths."""
    from widestream import inspection
    from widestream.cli.output import print_json, print_rendered
    from widestream.inspection.render import render_inspection

    found = inspection.inspect_path(
        path, text=text, format=format, tokenizer=tokenizer, pattern=pattern, sample_records=sample
    )
    if as_json:
        print_json(found)
    else:
        print_rendered(render_inspection(found))


def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help='Corpora or tags, or "all"; see --list.', show_default=False)
    ] = [],  # noqa: B006  (typer copies it)
    out: Annotated[Path, typer.Option(help="Folder for the corpora.")] = Path("data/corpora"),
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder for packages; default: ~/.cache/widestream/packages.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option(help="Make corpora again that are there.")] = False,
    show: Annotated[bool, typer.Option("--list", help="List the corpora and fetch nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Bring the demonstration corpora: real text out of Debian packages."""
    from dataclasses import asdict

    from widestream import corpora
    from widestream.cli.output import print_json, print_table

    if show or not names:
        listed = corpora.list_corpora(names or ("all",))
        if as_json:
            for corpus in listed:
                print_json(
                    {k: getattr(corpus, k) for k in ("name", "summary", "tags", "licence", "terms", "download_mb")}
                )
        else:
            rows = [(c.name, f"{c.download_mb} MB", " ".join(c.tags), c.licence, c.summary) for c in listed]
            print_table("Corpora", ("name", "download", "tags", "licence", "what it is"), rows)
        if not show:
            raise typer.BadParameter("name at least one corpus or tag", param_hint="NAME")
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache or caches / "widestream" / "packages"
    if as_json:
        for done in corpora.fetch(names, folder, out, None, force=force):
            print_json({**asdict(done), "path": str(done.path)})
        return
    fetched = _fetch_with_progress(names, folder, out, force)
    files = [(c.name, c.records, f"{c.text_bytes / 1e6:.1f} MB", c.path) for c in fetched]
    print_table("Fetched", ("corpus", "records", "text", "file"), files)


def _fetch_with_progress(names: list[str], cache: Path, out: Path, force: bool) -> list[FetchedCorpus]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from widestream import corpora
    from widestream.cli.failures import clean

    columns = (TextColumn("{task.fields[phase]}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False)) as progress:
        task = progress.add_task("", phase="packages", total=None)

        def show(event: corpora.FetchProgress) -> None:
            progress.update(
                task, phase=event.phase, completed=event.done, total=event.total, description=clean(event.message)
            )

        return corpora.fetch(names, cache, out, show, force=force)
