"""write_report: from a run folder to its report."""

from __future__ import annotations

import os
from pathlib import Path

from widestream.report.page import render
from widestream.report.run_data import read_run

REPORT_NAME = "report.html"


def write_report(run_dir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> Path:
    """Writes the report of a run folder, replacing an older one whole or not at all, and returns its path.

    `out` is the file to write; default: report.html in the run folder.

    Reads metrics.jsonl, summary.json, provenance.json, job.json or job.yaml, and the journal. What is missing, torn or
    damaged is said on the page. The file needs no network, holds no script, and stays below 1 MB.

    Raises:
        NotFoundError: there is no such folder.
        InvalidArgumentError: the folder holds nothing of a run.
        OSError: the file cannot be written.
    """
    folder = Path(run_dir)
    page = render(read_run(folder))
    path = folder / REPORT_NAME if out is None else Path(out)
    write_page(path, page)
    return path


def write_page(path: Path, page: str) -> None:
    """Replaces the file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(page, encoding="utf-8", errors="replace")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
