"""Journals of runs: verify, list, repair."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from widestream.errors import InvalidArgumentError, NotFoundError, UnavailableError, WidestreamError

JOURNAL_NAME = "journal.bin"
_LOCK_NAME = "journal.lock"
_MAX_PROBLEMS = 20
_LENGTH_STEPS = 1000


def journal_path(run: str | os.PathLike[str]) -> Path:
    """The journal of a run folder, or the file itself. NotFoundError if there is none."""
    path = Path(run)
    if path.is_dir():
        path = path / JOURNAL_NAME
    if not path.is_file():
        raise NotFoundError(
            f"there is no journal {path}; give the run_dir of a job that has run, or its {JOURNAL_NAME}"
        )
    return path.absolute()


def open_journal(run: str | os.PathLike[str]) -> Any:
    """The engine's JournalReader. DataCorruptionError if not even the first record can be read."""
    from widestream.loader.engine import core

    return core().JournalReader(journal_path(run))


def read_journal(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Verifies a journal: every checksum, and every step's plan against its digest.

    Returns path, size_bytes, valid_bytes, stream_hash, sources, steps, first_step, last_step, missing_steps, skipped_steps,
    tokens, decisions, manifests, notes, tear (None, or {offset_bytes, lost_bytes, records_follow, reason}), problems
    (at most 20 sentences) and whole (nothing is wrong).
    """
    path = journal_path(run)
    reader = open_journal(path)
    steps = [step for step, _ in reader.steps]
    problems: list[str] = []
    tokens = skipped = wrong = 0
    for step, digest in reader.steps:
        try:
            plan = reader.read_step(step)
        except WidestreamError as error:
            wrong += 1
            if len(problems) < _MAX_PROBLEMS:
                problems.append(f"step {step}: {error}")
            continue
        if plan["digest"] != digest:
            wrong += 1
            problems.append(f"step {step}: its plan has another digest than its record")
        tokens += plan["real_tokens"]
        skipped += plan["skipped"]
    tear = reader.tear
    if tear is not None:
        problems.append(
            f"from byte {tear['offset_bytes']:,} on {tear['lost_bytes']:,} bytes are no whole records ({tear['reason']}); "
            + (
                "whole records follow the damage, so it is not the tail of a crash: check the disk"
                if tear["records_follow"]
                else "this is what a killed process leaves; the run cuts it when it goes on"
            )
        )
    missing = _missing(steps)
    names = list(reader.sources)
    return {
        "path": str(path),
        "size_bytes": path.stat().st_size,
        "valid_bytes": reader.valid_bytes,
        "stream_hash": reader.stream_hash,
        "sources": names,
        "steps": len(steps),
        "first_step": steps[0] if steps else None,
        "last_step": steps[-1] if steps else None,
        "missing_steps": missing,
        "skipped_steps": skipped,
        "tokens": tokens,
        "decisions": [_named(decision, names) for decision in reader.decisions],
        "manifests": [
            {"source": names[source], "epoch": epoch, "hash": digest} for source, epoch, digest in reader.manifests
        ],
        "notes": list(reader.notes),
        "tear": tear,
        "problems": problems[: _MAX_PROBLEMS + 1],
        "whole": not wrong and tear is None,
    }


def _named(decision: dict[str, Any], names: list[str]) -> dict[str, Any]:
    source = decision.get("source")
    return decision if source is None else {**decision, "source": names[source]}


def _missing(steps: list[int]) -> int:
    """Steps between the first and the last that have no record."""
    return steps[-1] - steps[0] + 1 - len(steps) if steps else 0


def journal_steps(run: str | os.PathLike[str], first: int = 0, last: int | None = None) -> Iterator[dict[str, Any]]:
    """Steps first to last (included): step, digest, real_tokens, supervised_tokens, skipped, pieces, tokens_by_source."""
    if first < 0 or (last is not None and last < first):
        raise InvalidArgumentError(f"steps {first} to {last} are no range; give two numbers from 0 on in order")
    reader = open_journal(run)
    names = list(reader.sources)
    for step, digest in reader.steps:
        if step < first or (last is not None and step > last):
            continue
        plan = reader.read_step(step)
        pieces = plan["pieces"]
        by_source: dict[str, int] = {}
        for source, length in zip(pieces["source"].tolist(), pieces["length"].tolist(), strict=True):
            name = source_name(names, source)
            by_source[name] = by_source.get(name, 0) + length
        yield {
            "step": step,
            "digest": digest,
            "real_tokens": plan["real_tokens"],
            "supervised_tokens": plan["supervised_tokens"],
            "skipped": plan["skipped"],
            "pieces": len(pieces["length"]),
            "tokens_by_source": dict(sorted(by_source.items())),
        }


def source_name(names: list[str], index: int) -> str:
    """A step's record may name a source that its journal's header lacks."""
    return names[index] if index < len(names) else f"source {index}"


def repair_journal(run: str | os.PathLike[str], even_if_records_follow: bool = False) -> dict[str, Any]:
    """Cuts what follows the last whole record, and returns `read_journal` plus `cut`: what was cut, or None.

    Steps that are cut are planned again by a resume. Raises UnavailableError while a run uses the folder, and
    DataCorruptionError if whole records follow the damage (they would be lost), unless `even_if_records_follow`.
    """
    from widestream.loader.engine import core

    path = journal_path(run)
    with _locked(path.parent):
        cut = core().repair_journal(path, even_if_records_follow)
    if path.stat().st_size == 0:
        raise InvalidArgumentError(
            f"nothing of the journal {path} was whole; it is empty now, and the next run begins it anew"
        )
    return {**read_journal(path), "cut": cut}


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock that a running loader holds, so that a repair never cuts under a writer."""
    with (folder / _LOCK_NAME).open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnavailableError(f"the run folder {folder} is in use; end the run, then repair its journal") from None
        yield


def piece_lengths(run: str | os.PathLike[str]) -> tuple[list[int], str]:
    """Lengths in tokens of the pieces of a journal's steps, and of which steps: all, or 1,000 spread evenly.

    Empty where there is no journal.
    """
    if Path(run).is_dir() and not (Path(run) / JOURNAL_NAME).is_file():
        return [], ""
    reader = open_journal(run)
    steps = [step for step, _ in reader.steps]
    of = "all steps in the journal"
    if len(steps) > _LENGTH_STEPS:
        steps = [steps[i * (len(steps) - 1) // (_LENGTH_STEPS - 1)] for i in range(_LENGTH_STEPS)]
        of = f"{_LENGTH_STEPS:,} steps spread over the run"
    lengths: list[int] = []
    for step in steps:
        lengths.extend(reader.piece_lengths(step))
    return lengths, of
