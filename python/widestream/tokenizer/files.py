"""Files of records to a Megatron data set of token ids: what ``widestream tokenize`` does."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from widestream.errors import InvalidArgumentError, NotFoundError, UnavailableError
from widestream.tokenizer.tokenizer import Tokenizer

_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class TokenizeProgress:
    """How far ``tokenize_files`` is. A compressed file counts in ``input_bytes_done`` only once it is done."""

    documents: int
    empty: int
    bad: int
    tokens: int
    text_bytes: int
    resumed_documents: int
    resumed_text_bytes: int
    shards: int
    shards_done: int
    input_bytes: int
    input_bytes_done: int
    assembling: bool


@dataclass(frozen=True, slots=True)
class TokenizeSummary:
    """What ``tokenize_files`` did."""

    output: str
    """The prefix: ``output + ".bin"`` and ``".idx"`` are there."""
    documents: int
    """Of the data set, the empty ones counted."""
    empty: int
    """Documents without any text; they have no sequence in the data set."""
    bad: int
    """Records that were left out."""
    first_bad: str
    """Why the first of them is bad, "" without any (or if an earlier run left it out)."""
    tokens: int
    """Appended ones counted."""
    text_bytes: int
    """UTF-8 of all texts."""
    shards: int
    dtype: str
    """ "uint16" where every id fits, else "int32"."""
    resumed_documents: int
    """What an interrupted run had done already."""
    seconds: float
    """Of this run."""
    megabytes_per_second: float
    """Text of this run over its seconds, 1e6 bytes."""


def tokenize_files(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    tokenizer: Tokenizer,
    *,
    append: Iterable[str] = (),
    text: str = "text",
    format: str = "",
    threads: int = 0,
    bad_records: Literal["fail", "skip"] = "fail",
    record_bytes: int = 32 << 20,
    overwrite: bool = False,
    restart: bool = False,
    checkpoint_bytes: int = 64 << 20,
    on_progress: Callable[[TokenizeProgress], None] | None = None,
) -> TokenizeSummary:
    """Tokenizes every record of the files into ``output + ".bin"`` and ``".idx"`` (docs/formats/megatron.md).

    Args:
        paths: files, folders or globs; JSON Lines (plain, gzip, Zstandard) or Parquet.
        output: the prefix of the two files.
        append: special tokens after each document that has any text.
        text: the column or key that holds the text.
        format: "parquet", "jsonl", "text" or "webdataset"; "" tells it from the names.
        threads: 0: one per core. The output does not depend on it.
        bad_records: "skip" leaves out records that cannot be read, and counts them.
        record_bytes: longer records are bad.
        overwrite: replaces an output that is there, once the new one is whole.
        restart: drops what an interrupted run has done (in the folder ``output + ".parts"``) instead of going on.
        checkpoint_bytes: output of a shard between two places to go on at.
        on_progress: called about ten times a second, in this thread.

    Raises NotFoundError, InvalidArgumentError (an output that is there, other settings than those of the interrupted
    run, no token at all), DataCorruptionError (a bad record, a broken file), IoError, UnavailableError (another process
    works on the same output), and passes on KeyboardInterrupt; after each the same call goes on where this one stopped.
    """
    from widestream.loader.engine import core

    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    prefix = os.fspath(Path(output).expanduser().absolute())
    if bad_records not in ("fail", "skip"):
        raise InvalidArgumentError(f'bad_records is {bad_records!r}; it must be "fail" or "skip"')
    if not Path(prefix).parent.is_dir():
        raise NotFoundError(f"there is no folder {Path(prefix).parent} for the output; make it first")
    begin = time.perf_counter()
    with _locked(prefix):
        job = core().TokenizeJob(
            [os.fspath(Path(path).expanduser().absolute()) for path in listed],
            prefix,
            _encoder(tokenizer),
            format=format,
            text=text,
            append=[_special(tokenizer, name) for name in append],
            skip_bad_records=bad_records == "skip",
            record_bytes=record_bytes,
            threads=threads or len(os.sched_getaffinity(0)),
            overwrite=overwrite,
            restart=restart,
            checkpoint_bytes=checkpoint_bytes,
        )
        _run(job, on_progress)
    seconds = time.perf_counter() - begin
    done = TokenizeProgress(**job.progress())
    return TokenizeSummary(
        output=prefix,
        documents=done.documents,
        empty=done.empty,
        bad=done.bad,
        first_bad=job.first_bad_record,
        tokens=done.tokens,
        text_bytes=done.text_bytes,
        shards=done.shards,
        dtype="uint16" if job.id_bytes == 2 else "int32",
        resumed_documents=done.resumed_documents,
        seconds=seconds,
        megabytes_per_second=(done.text_bytes - done.resumed_text_bytes) / 1e6 / seconds,
    )


def _special(tokenizer: Tokenizer, name: str) -> int:
    id = tokenizer.special_token_id(name)
    if id is None:
        known = ", ".join(sorted(tokenizer.special_tokens)[:10]) or "none"
        raise InvalidArgumentError(f"the tokenizer has no special token {name!r} to append; it has {known}")
    return id


def _encoder(tokenizer: Tokenizer) -> Any:
    """What the engine takes as encoder. Only the package backend is called back, once a block of texts."""
    if tokenizer.backend == "native":
        return tokenizer._engine

    def encode(texts: list[bytes]) -> tuple[Any, Any]:
        ids, offsets = tokenizer.encode_batch(texts)
        return ids.astype(np.uint32), offsets

    return encode, tokenizer.vocabulary_size, tokenizer.digest


def _run(job: Any, on_progress: Callable[[TokenizeProgress], None] | None) -> None:
    """Runs the job in a thread of its own, so that this one can show progress and be interrupted."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            job.run()
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=work, name="widestream-tokenize")
    worker.start()
    try:
        while worker.is_alive():
            worker.join(_POLL_SECONDS)
            if on_progress is not None:
                on_progress(TokenizeProgress(**job.progress()))
    except BaseException:
        job.cancel()
        worker.join()
        raise
    if failure:
        raise failure[0]


@contextmanager
def _locked(prefix: str) -> Iterator[None]:
    """One process an output; the lock goes with the process, however it ends."""
    path = Path(prefix + ".lock")
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UnavailableError(f"another process writes {prefix}; wait for it, or choose another output") from error
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
