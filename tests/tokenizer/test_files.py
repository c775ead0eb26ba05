"""``widestream tokenize``: what Megatron reads back, any number of threads, kill -9, the command line, the slow path."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import widestream as ws
from tests.tokenizer.support import CL100K, R50K, TRAINING_TEXT, unigram
from widestream import errors
from widestream.tokenizer import TokenizeProgress, tokenize_files

END = "<|endoftext|>"


def read(prefix: Path) -> tuple[Any, list[list[int]], list[int]]:
    """Type, sequences and borders of documents, read by the format alone: docs/formats/megatron.md."""
    index = Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, borders = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = {8: np.uint16, 4: np.int32}[code]
    lengths = np.frombuffer(index, np.int32, sequences, 34)
    pointers = np.frombuffer(index, np.int64, sequences, 34 + 4 * sequences)
    documents = np.frombuffer(index, np.int64, borders, 34 + 12 * sequences)
    assert len(index) == 34 + 12 * sequences + 8 * borders
    data = Path(f"{prefix}.bin").read_bytes()
    assert len(data) == int(lengths.sum()) * np.dtype(dtype).itemsize
    rows = [np.frombuffer(data, dtype, n, p).tolist() for n, p in zip(lengths.tolist(), pointers.tolist(), strict=True)]
    return dtype, rows, documents.tolist()


def texts(count: int) -> list[str]:
    return ["" if i % 50 == 7 else " ".join(TRAINING_TEXT[: i % 8 + 1]) + f" {i} \u00e9\n" for i in range(count)]


def lines(some: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in some)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder of plain and compressed JSON Lines, and its texts in order."""
    folder = tmp_path_factory.mktemp("data")
    some = texts(1200)
    (folder / "a.jsonl").write_bytes(lines(some[:500]))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines(some[500:900])))
    (folder / "c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines(some[900:])))
    return folder, some


@pytest.mark.parametrize(("file", "dtype"), [(R50K, np.uint16), (CL100K, np.int32)])
def test_the_documents_are_those_of_the_tokenizer(
    data: tuple[Path, list[str]], tmp_path: Path, file: Path, dtype: Any
) -> None:
    folder, some = data
    tokenizer = ws.Tokenizer.from_file(file)
    summary = tokenize_files(folder, tmp_path / "out", tokenizer, append=[END])
    found, rows, borders = read(tmp_path / "out")
    end = tokenizer.special_token_id(END)
    assert found == dtype
    assert rows == [[*tokenizer.encode(text).tolist(), end] for text in some if text]
    assert borders == [0, *np.cumsum([bool(text) for text in some]).tolist()]
    assert (summary.documents, summary.empty, summary.bad, summary.shards) == (1200, some.count(""), 0, 3)
    assert summary.tokens == sum(map(len, rows)) and summary.text_bytes == sum(len(text.encode()) for text in some)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.bin", "out.idx"]


def test_parquet_gives_the_same(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, some = data
    pq.write_table(pa.table({"body": some}), tmp_path / "x.parquet", row_group_size=100)
    tokenizer = ws.Tokenizer.from_file(R50K)
    tokenize_files(folder, tmp_path / "lines", tokenizer, threads=1)
    tokenize_files(tmp_path / "x.parquet", tmp_path / "parquet", tokenizer, text="body", threads=3)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"lines{suffix}").read_bytes() == (tmp_path / f"parquet{suffix}").read_bytes()


def test_megatron_reads_it(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    folder, some = data
    tokenizer = ws.Tokenizer.from_file(R50K)
    tokenize_files(folder, tmp_path / "ours", tokenizer, append=[END])
    dataset = indexed.IndexedDataset(str(tmp_path / "ours"))
    end = tokenizer.special_token_id(END)
    full = [text for text in some if text]
    assert len(dataset) == len(full)
    for i in range(0, len(full), 97):
        assert dataset[i].tolist() == [*tokenizer.encode(full[i]).tolist(), end]
    builder = indexed.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for text in some:
        ids = [*tokenizer.encode(text).tolist(), end] if text else []
        builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def command(folder: Path, output: Path, *options: str) -> list[str]:
    base = [sys.executable, "-m", "widestream.cli", "tokenize", str(folder), str(output)]
    return [*base, "--tokenizer", str(R50K), *options]


def test_a_killed_run_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    """Killed at several places; the last run is left to end."""
    folder = tmp_path / "in"
    folder.mkdir()
    for shard in range(4):
        (folder / f"{shard}.jsonl").write_bytes(lines(texts(4000)))
    tokenize_files(folder, tmp_path / "whole", ws.Tokenizer.from_file(R50K), threads=1)
    program = (
        "import sys, widestream as ws; from widestream.tokenizer import tokenize_files;"
        f"tokenize_files({str(folder)!r}, {str(tmp_path / 'cut')!r}, ws.Tokenizer.from_file({str(R50K)!r}),"
        "threads=2, checkpoint_bytes=1, on_progress=lambda now: print(now.documents, flush=True))"
    )
    parts = tmp_path / "cut.parts"
    resumed = 0
    for kill_after in (1, 2, 3):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            states = sorted(parts.glob("*.state")) if parts.exists() else []
            if len([path for path in states if path.name != "settings.state"]) >= kill_after:
                break
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if (tmp_path / "cut.idx").exists():
            break  # it was faster than the kill
    if not (tmp_path / "cut.idx").exists():
        summary = tokenize_files(folder, tmp_path / "cut", ws.Tokenizer.from_file(R50K), checkpoint_bytes=1)
        resumed = summary.resumed_documents
        assert resumed > 0
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"whole{suffix}").read_bytes() == (tmp_path / f"cut{suffix}").read_bytes()


def test_an_interrupt_stops_and_the_next_call_goes_on(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = data
    tokenizer = ws.Tokenizer.from_file(R50K)

    def interrupt(now: TokenizeProgress) -> None:
        assert now.shards == 3
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_files(folder, tmp_path / "out", tokenizer, on_progress=interrupt)
    # It may have been done before the interrupt came.
    summary = tokenize_files(folder, tmp_path / "out", tokenizer, overwrite=True)
    assert summary.documents == 1200 and not (tmp_path / "out.lock").exists()


def test_the_command_line(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, some = data
    done = subprocess.run(
        command(folder, tmp_path / "out", "--append", END, "--json"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["documents"] == len(some) and summary["dtype"] == "uint16"
    again = subprocess.run(command(folder, tmp_path / "out"), capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 3 and "--force" in again.stderr
    forced = subprocess.run(
        command(folder, tmp_path / "out", "--force"), capture_output=True, text=True, timeout=60, check=False
    )
    assert forced.returncode == 0 and "1,200 documents" in forced.stdout and "MB/s" in forced.stdout
    alone = subprocess.run(
        command(folder, tmp_path / "out")[:5] + command(folder, folder)[6:], capture_output=True, check=False
    )
    assert alone.returncode == 2


def test_bad_records(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(["a"]) + b"{}\n" + lines(["b"]))
    tokenizer = ws.Tokenizer.from_file(R50K)
    with pytest.raises(errors.DataCorruptionError, match=r"in.jsonl', record 1 .*--bad-records skip"):
        tokenize_files(tmp_path / "in.jsonl", tmp_path / "out", tokenizer)
    with pytest.raises(errors.InvalidArgumentError, match="another skip_bad_records"):
        tokenize_files(tmp_path / "in.jsonl", tmp_path / "out", tokenizer, bad_records="skip")
    summary = tokenize_files(tmp_path / "in.jsonl", tmp_path / "out", tokenizer, bad_records="skip", restart=True)
    assert summary.bad == 1 and "record 1" in summary.first_bad
    assert read(tmp_path / "out")[1] == [[64], [65]]


def test_what_cannot_be_is_refused(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = data
    tokenizer = ws.Tokenizer.from_file(R50K)
    with pytest.raises(errors.InvalidArgumentError, match=r"no special token '<\|x\|>' to append"):
        tokenize_files(folder, tmp_path / "out", tokenizer, append=["<|x|>"])
    with pytest.raises(FileNotFoundError, match="no folder"):
        tokenize_files(folder, tmp_path / "none" / "out", tokenizer)
    with pytest.raises(FileNotFoundError):
        tokenize_files(tmp_path / "none.jsonl", tmp_path / "out", tokenizer)
    with pytest.raises(errors.InvalidArgumentError, match='"fail" or "skip"'):
        tokenize_files(folder, tmp_path / "out", tokenizer, bad_records="warn")  # type: ignore[arg-type]


def test_two_processes_cannot_write_one_output(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    import fcntl

    folder, _ = data
    with (tmp_path / "out.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(errors.UnavailableError, match="another process"):
            tokenize_files(folder, tmp_path / "out", ws.Tokenizer.from_file(R50K))


def test_a_full_disk_is_an_error_and_the_next_run_goes_on(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, _ = data
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        "import widestream as ws; from widestream.tokenizer import tokenize_files;"
        f"tokenize_files({str(folder)!r}, {str(tmp_path / 'out')!r}, ws.Tokenizer.from_file({str(R50K)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0 and "IoError" in done.stderr and "cannot write" in done.stderr, done.stderr
    assert tokenize_files(folder, tmp_path / "out", ws.Tokenizer.from_file(R50K)).documents == 1200


def test_the_slow_path_writes_the_same_format(data: tuple[Path, list[str]], tmp_path: Path) -> None:
    folder, some = data
    tokenizer = ws.Tokenizer.from_file(unigram(tmp_path))
    summary = tokenize_files(folder / "a.jsonl", tmp_path / "out", tokenizer, append=["</s>"], threads=2)
    end = tokenizer.special_token_id("</s>")
    dtype, rows, _ = read(tmp_path / "out")
    assert dtype == np.uint16 and summary.documents == 500
    assert rows == [[*tokenizer.encode(text).tolist(), end] for text in some[:500] if text]


def test_an_output_inside_of_the_input_is_not_read_as_input(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(["a b"]))
    tokenizer = ws.Tokenizer.from_file(R50K)
    tokenize_files(tmp_path, tmp_path / "out", tokenizer)
    assert tokenize_files(tmp_path, tmp_path / "out", tokenizer, overwrite=True).documents == 1
    assert os.listdir(tmp_path).count("a.jsonl") == 1  # noqa: PTH208
