"""Bad input: an error that says what failed where and what to do, or what is bad is skipped and counted. Never a hang,
a crash or silently changed data.
"""

from __future__ import annotations

import collections
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import widestream as ws
from tests.integration.test_reference import write_tokenizer
from tests.support import broken_data
from tests.support.broken_data import BROKEN, ODD, BrokenFile
from tests.support.jobs import sentences, small_job, take, write_jsonl
from widestream.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    IoError,
    NotFoundError,
    UnavailableError,
    WidestreamError,
)

pytestmark = pytest.mark.timeout(60)
GOOD = [f"good {i}" for i in range(8)]


def job_over(folder: Path, path: Path | str, **changes: Any) -> ws.Job:
    """A good source and one over `path`, each read once."""
    write_jsonl(folder / "good.jsonl", GOOD)
    settings: dict[str, Any] = {
        "data_roots": [str(folder)],
        "tokenizer": {"file": str(write_tokenizer(folder)), "pattern": "gpt2"},
        "sources": [
            {"name": "good", "path": str(folder / "good.jsonl"), "max_epochs": 1},
            {"name": "suspect", "path": str(path), "max_epochs": 1, **changes.pop("suspect", {})},
        ],
        "batch": {"sequence_length": 512, "rows": 4},
        "limits": {"host_memory": "64MiB", "threads": 2},
        "errors": {"record_bytes": "8MiB"},
    }
    return ws.Job(**{**settings, **changes})


def read(job: ws.Job) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """The texts of each source in file order, put together from the tensors; and the last state."""
    pieces: dict[tuple[int, int], dict[int, bytes]] = collections.defaultdict(dict)
    with ws.DataLoader(job, rank=0, world=1, tensors="numpy") as loader:
        for batch in loader:
            columns = batch.pieces
            for microbatch, rows in zip(batch.microbatches, batch.layout[0], strict=True):
                for row, indices in enumerate(rows):
                    at = 0
                    for index in indices:
                        length = int(columns["length"][index])
                        key = int(columns["source"][index]), int(columns["record"][index])
                        ids = microbatch.tokens[row, at : at + length]
                        pieces[key][int(columns["start"][index])] = loader.decode(ids)
                        at += length
        state = loader.state_dict()
        names = loader.source_names
    texts: dict[str, list[str]] = {name: [] for name in names}
    for (source, _), parts in sorted(pieces.items()):
        texts[names[source]].append(b"".join(part for _, part in sorted(parts.items())).decode())
    return texts, state


def check_message(error: BaseException, *needles: str) -> None:
    """Everything is named, and there is advice after the last colon or semicolon."""
    message = str(error)
    for needle in needles:
        assert needle in message, message
    assert "\n" not in message, message
    assert re.search(
        r"\b(mend|restore|correct|rename|put|set|remove|name|write|get|raise|give|use|choose|add|repair|check|move)\b",
        message,
    ), f"no word of what to do: {message}"


def outcome(folder: Path, broken: BrokenFile) -> str:
    """Reads it and checks what must hold; says what became of it, for the subprocess."""
    try:
        texts, state = read(job_over(folder, broken.path))
    except WidestreamError as error:
        assert broken.fault != "none", error
        if broken.fault == "record":
            assert not broken.texts, f"only {broken.bad_records} are bad: {error}"
        check_message(error, "suspect", broken.path.name)
        return f"error {error}"
    assert broken.fault in ("record", "none"), f"read without an error: {len(texts['suspect'])} texts"
    assert texts == {"good": GOOD, "suspect": [text for text in broken.texts if text]}
    assert state["sources"]["suspect"]["corrupt"] == len(broken.bad_records)
    assert state["sources"]["suspect"]["examined"] == len(broken.texts) + len(broken.bad_records)
    return "read"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_an_error_or_its_bad_records_are_counted(tmp_path, name):
    outcome(tmp_path, BROKEN[name](tmp_path))


@pytest.mark.parametrize(
    "name", [name for name in ODD if name not in ("empty_jsonl", "empty_jsonl_gz", "no_rows_parquet")]
)
def test_an_odd_file_is_read_completely(tmp_path, name):
    assert outcome(tmp_path, ODD[name](tmp_path)) == "read"


@pytest.mark.parametrize("name", ["empty_jsonl", "empty_jsonl_gz", "no_rows_parquet"])
def test_an_empty_file_is_read_beside_others_and_an_error_alone(tmp_path, name):
    empty = ODD[name](tmp_path)
    with pytest.raises(InvalidArgumentError, match="0 records and delivered no token") as caught:
        read(job_over(tmp_path, empty.path))
    check_message(caught.value, "source suspect")
    if empty.format == "jsonl":
        other = write_jsonl(tmp_path / "other.jsonl", ["one", "two"])
        texts, _ = read(job_over(tmp_path, empty.path, suspect={"path": [str(empty.path), str(other)]}))
    else:
        other = broken_data.write_parquet(tmp_path / "other.parquet", ["one", "two"])
        texts, _ = read(job_over(tmp_path, empty.path, suspect={"path": [str(empty.path), str(other)]}))
    assert texts["suspect"] == ["one", "two"]


NASTY = ["footer_length_parquet", "damaged_page_parquet", "deep_json_line", "huge_line", "bomb_gz", "bomb_zst"]


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_file_harms_no_process_and_no_memory(tmp_path, name):
    """In a process of its own: a crash is seen as one, and its memory is measured."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.test_bad_input", name, str(tmp_path)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["outcome"] == "read" or report["outcome"].startswith("error ")
    assert report["grown_bytes"] < 160 * 2**20, "the limit is 64 MiB; allocators and Arrow take some"


def nasty(name: str, folder: Path) -> dict[str, Any]:
    import resource

    def peak_bytes() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    makers: dict[str, Callable[[Path], BrokenFile]] = {
        **BROKEN,
        "deep_json_line": broken_data.deep_json_line,
        "huge_line": lambda f: broken_data.huge_line(f, 100 * 2**20),
        "bomb_gz": lambda f: broken_data.huge_line(f, 200 * 2**20, ".jsonl.gz"),
        "bomb_zst": lambda f: broken_data.huge_line(f, 200 * 2**20, ".jsonl.zst"),
    }
    # Made by a child, whose memory does not count here.
    child = os.fork()
    if child == 0:
        makers[name](folder)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    # The same description without making it again: only small ones are made here.
    texts = broken_data.sample_texts()
    kept = texts[: broken_data.BAD_RECORD] + texts[broken_data.BAD_RECORD + 1 :]
    if name in BROKEN:
        broken = BROKEN[name](folder)
    elif name == "deep_json_line":
        broken = BrokenFile(folder / "deep.jsonl", "record", kept, (broken_data.BAD_RECORD,))
    else:
        suffix = {"huge_line": "", "bomb_gz": ".gz", "bomb_zst": ".zst"}[name]
        broken = BrokenFile(folder / f"huge_line.jsonl{suffix}", "record", kept, (broken_data.BAD_RECORD,))
    (folder / "warm").mkdir()
    outcome(folder / "warm", broken_data.one_record_parquet(folder / "warm"))
    before = peak_bytes()
    return {"outcome": outcome(folder, broken), "grown_bytes": peak_bytes() - before}


# --- paths -------------------------------------------------------------------------------


def folder_like_a_file(folder: Path) -> Path:
    (folder / "x" / "a.jsonl").mkdir(parents=True)
    return folder / "x" / "*.jsonl"


def dangling_link(folder: Path) -> Path:
    (folder / "x").mkdir()
    (folder / "x" / "a.jsonl").symlink_to(folder / "nothing.jsonl")
    return folder / "x"


def link_to_itself(folder: Path) -> Path:
    (folder / "a.jsonl").symlink_to(folder / "a.jsonl")
    return folder / "a.jsonl"


def pipe(folder: Path) -> Path:
    os.mkfifo(folder / "a.jsonl")
    return folder / "a.jsonl"


def unknown_suffix(folder: Path) -> Path:
    (folder / "a.csv").write_text("words")
    return folder / "a.csv"


def outside(folder: Path) -> Path:
    return write_jsonl(folder.parent / f"{folder.name}-outside" / "a.jsonl", ["x"])


def link_to_outside(folder: Path) -> Path:
    (folder / "a.jsonl").symlink_to(outside(folder))
    return folder / "a.jsonl"


PATHS: list[tuple[Callable[[Path], Path], type[WidestreamError], str]] = [
    (lambda folder: folder / "*.none", NotFoundError, "*.none"),
    (lambda folder: folder / "none.jsonl", NotFoundError, "none.jsonl"),
    (folder_like_a_file, NotFoundError, "x/*.jsonl"),
    (dangling_link, NotFoundError, "x/a.jsonl"),
    (link_to_itself, IoError, "a.jsonl"),
    (pipe, InvalidArgumentError, "a.jsonl"),
    (unknown_suffix, InvalidArgumentError, "a.csv"),
    (outside, InvalidArgumentError, "data_roots"),
    (link_to_outside, InvalidArgumentError, "data_roots"),
]


@pytest.mark.parametrize(("make", "kind", "needle"), PATHS)
def test_a_path_that_cannot_be_read_names_source_and_file(tmp_path, make, kind, needle):
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(kind) as caught:
        read(job_over(folder, make(folder)))
    assert "source 'suspect'" in str(caught.value)
    assert needle in str(caught.value)


# --- bad records -------------------------------------------------------------------------


def test_bad_record_error_stops_at_the_first(tmp_path):
    broken = broken_data.invalid_json_line(tmp_path)
    with pytest.raises(DataCorruptionError) as caught:
        read(job_over(tmp_path, broken.path, errors={"bad_record": "error"}))
    check_message(caught.value, "suspect", "record 5", broken.path.name, "a string is not closed", "bad_record")


def test_a_spent_budget_says_why_the_record_is_bad(tmp_path):
    path = broken_data.write_parquet(tmp_path / "nulls.parquet", [None] * 50 + ["x"])
    with pytest.raises(DataCorruptionError) as caught:
        read(job_over(tmp_path, path))
    check_message(caught.value, "suspect", "nulls.parquet", "the text is null", "the 11th", "errors.budget")


@pytest.mark.parametrize("records", [5, 100])
def test_a_wrong_text_key_is_named(tmp_path, records):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(records)])
    with pytest.raises(WidestreamError) as caught:
        read(job_over(tmp_path, path, suspect={"text": "body"}))
    check_message(caught.value, "suspect", "a.jsonl", "no key 'body'", "'text'")


def test_a_source_whose_records_are_all_held_out_is_an_error_with_the_count(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(40)])
    with pytest.raises(InvalidArgumentError) as caught:
        read(job_over(tmp_path, path, validation={"fraction": 0.99999}))
    check_message(caught.value, "no token", "held out")


# --- files that change -------------------------------------------------------------------


def replace(path: Path) -> None:
    write_jsonl(path.with_name("new"), ["other"] * 3000).replace(path)


@pytest.mark.parametrize(
    ("change", "kind", "needle"),
    [
        (replace, DataCorruptionError, "changed since the job began"),
        (Path.unlink, NotFoundError, "is gone since the job began"),
    ],
)
def test_a_file_that_changes_under_a_running_job_is_named(tmp_path, change, kind, needle):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {i}" for i in range(300)])
    source = {"name": "suspect", "path": str(path), "shuffle": {"records": 10}}
    job = job_over(tmp_path, path, sources=[source], batch={"sequence_length": 64, "rows": 2}, lookahead_steps=1)
    with ws.DataLoader(job, rank=0, world=1, tensors="numpy") as loader:
        next(loader)
        change(path)
        with pytest.raises(kind) as caught:
            while True:  # the next epoch opens the file again
                next(loader)
    check_message(caught.value, "suspect", "a.jsonl", needle)


def test_a_file_cut_in_place_under_a_running_job_is_named(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [f"text {i} " + "x" * 3000 for i in range(3000)])
    source = {"name": "suspect", "path": str(path), "shuffle": {"records": 10}, "max_epochs": 1}
    job = job_over(
        tmp_path,
        path,
        sources=[source],
        batch={"sequence_length": 64, "rows": 2},
        lookahead_steps=1,
        limits={"host_memory": "16MiB"},
    )
    with ws.DataLoader(job, rank=0, world=1, tensors="numpy") as loader:
        next(loader)
        os.truncate(path, path.stat().st_size - 1000)
        with pytest.raises(DataCorruptionError) as caught:
            while True:
                next(loader)
    check_message(caught.value, "suspect", "a.jsonl", "truncated while in use")


def test_a_file_replaced_before_a_resume_is_named(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 3)
        state = loader.state_dict()
    write_jsonl(tmp_path / "data" / "code.jsonl", sentences(77, 150))
    with pytest.raises(DataCorruptionError) as caught:
        ws.DataLoader(job, state=state)
    check_message(caught.value, "source 'code'", "code.jsonl", "put the files back")


# --- tokenizer and limits ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "needle"),
    [
        ("t.tiktoken", None, "does not exist"),
        ("t.tiktoken", b"", "empty"),
        ("t.tiktoken", bytes(range(256)) * 10, "line 1"),
        ("t.tiktoken", b"YQ== 0\n", "256"),
        ("t.tiktoken", b"YQ== 99999999999999\n", "line 1"),
        ("t.json", b'{"model": 5}', "t.json"),
        ("t.json", b"[" * 100_000, "t.json"),
        ("t.json", b'{"model": ' + b"[" * 100_000, "t.json"),
    ],
)
def test_a_broken_tokenizer_file_is_named(tmp_path, name, content, needle):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    tokenizer = {"file": str(tmp_path / name), **({"pattern": "gpt2"} if name.endswith("tiktoken") else {})}
    with pytest.raises((InvalidArgumentError, NotFoundError)) as caught:
        read(job_over(tmp_path, path, tokenizer=tokenizer))
    assert name in str(caught.value)
    assert needle in str(caught.value)


def test_a_memory_limit_that_is_too_low_says_how_much_is_needed(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["x"])
    with pytest.raises(InvalidArgumentError, match=r"raise it to at least \d+") as caught:
        read(
            job_over(
                tmp_path,
                path,
                limits={"host_memory": "16MiB"},
                batch={"sequence_length": 4096, "rows": 60},
                errors={"record_bytes": "1MiB"},
            )
        )
    needed = int(re.search(r"at least (\d+)", str(caught.value))[1])
    job = job_over(
        tmp_path,
        path,
        limits={"host_memory": needed},
        batch={"sequence_length": 4096, "rows": 60},
        errors={"record_bytes": "1MiB"},
    )
    assert read(job)[0]["suspect"] == ["x"]


# --- the journal -------------------------------------------------------------------------


def run_steps(job: ws.Job, steps: int = 20) -> list[str]:
    with ws.DataLoader(job, tensors="numpy") as loader:
        digests = [batch.digest for batch in take(loader, steps)]
        loader.commit()
    return digests


def test_a_journal_of_another_stream_is_refused(tmp_path):
    run_steps(small_job(tmp_path, run_dir=True))
    with pytest.raises(InvalidArgumentError) as caught:
        run_steps(small_job(tmp_path, run_dir=True, seed=6))
    check_message(caught.value, "journal.bin", "another run_dir")


def test_two_loaders_on_one_run_folder_are_refused(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    with ws.DataLoader(job, tensors="numpy") as first:
        with pytest.raises(UnavailableError) as caught:
            ws.DataLoader(job, tensors="numpy")
        check_message(caught.value, str(tmp_path / "run"), "in use")
        assert len(take(first, 3)) == 3, "the first goes on"
    assert len(run_steps(job)) == 20, "closed, the folder is free"


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-7],
        lambda data: data + b"\x01\x02 no record" * 9,
        lambda data: data + bytes(5000),
        lambda data: b"",
    ],
    ids=["cut", "garbage", "zeros", "empty"],
)
def test_a_torn_tail_of_the_journal_is_repaired(tmp_path, damage):
    job = small_job(tmp_path, run_dir=True)
    digests = run_steps(job)
    journal = tmp_path / "run" / "journal.bin"
    journal.write_bytes(damage(journal.read_bytes()))
    assert run_steps(job) == digests
    assert run_steps(job) == digests


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.7])
def test_a_flipped_byte_in_the_middle_of_the_journal_is_refused(tmp_path, share):
    job = small_job(tmp_path, run_dir=True)
    run_steps(job)
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 20)
        loader.skip(1)  # a synced record at the end
        take(loader, 2)
    journal = tmp_path / "run" / "journal.bin"
    data = bytearray(journal.read_bytes())
    data[int(len(data) * share)] ^= 0x40
    journal.write_bytes(data)
    with pytest.raises(DataCorruptionError) as caught:
        run_steps(job)
    check_message(caught.value, "journal.bin", "damaged")
    assert journal.read_bytes() == bytes(data), "nothing was cut off unasked"


def test_a_file_that_is_no_journal_is_kept(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    journal = tmp_path / "run" / "journal.bin"
    journal.parent.mkdir()
    journal.write_text("my notes\n" * 50)
    with pytest.raises(DataCorruptionError) as caught:
        run_steps(job)
    check_message(caught.value, "journal.bin", "no journal", "run_dir")
    assert journal.read_text() == "my notes\n" * 50


def test_a_run_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(InvalidArgumentError, match="is a file"):
        run_steps(small_job(tmp_path, run_dir=True))


# --- decisions ---------------------------------------------------------------------------


def test_an_edit_that_cannot_be_carried_out_changes_nothing(tmp_path):
    reference = run_steps(small_job(tmp_path))
    job = small_job(tmp_path, run_dir=True)
    with ws.DataLoader(job, tensors="numpy") as loader:
        digests = [next(loader).digest]
        for mixture in ({"stages": [{"weights": {"nope": 1}}]}, {"unit": 5}, {}, {"stages": []}):
            with pytest.raises(InvalidArgumentError, match="edit at step"):
                loader.edit_mixture(mixture)
        digests += [batch.digest for batch in take(loader, 9)]
    assert digests == reference[:10]
    assert run_steps(job) == reference, "no edit is in the journal"


if __name__ == "__main__":
    print(json.dumps(nasty(sys.argv[1], Path(sys.argv[2]))))
