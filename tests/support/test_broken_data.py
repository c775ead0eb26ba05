"""The broken files are broken, and the odd ones are sound, as independent readers see them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tests.support import broken_data
from tests.support.broken_data import BROKEN, ODD, BrokenFile


def zstd_frames(raw: bytes) -> Iterator[bytes]:
    """Decompressed frames; unlike the library's stream reader, a cut frame is an error."""
    while raw:
        frame = zstandard.ZstdDecompressor().decompressobj()
        yield frame.decompress(raw)
        if not frame.eof:
            raise EOFError("the last frame has no end")
        raw = frame.unused_data


def lines_of(path: Path) -> list[bytes]:
    raw = path.read_bytes()
    if path.suffix == ".gz":
        raw = gzip.decompress(raw)
    elif path.suffix == ".zst":
        raw = b"".join(zstd_frames(raw))
    return raw.split(b"\n")[:-1] if raw.endswith(b"\n") else raw.split(b"\n") if raw else []


def text_of(line: bytes) -> str:
    """The text of a sound line; raises ValueError, TypeError, LookupError or RecursionError otherwise."""
    record: Any = json.loads(line.decode("utf-8"))
    text = record["text"]
    if not isinstance(text, str):
        raise TypeError("text is no string")
    text.encode("utf-8")
    return text


def read(broken: BrokenFile) -> tuple[list[str], list[int]]:
    """Texts and bad records, read without Widestream; raises if the file as a whole cannot be read."""
    texts, bad = [], []
    if broken.format == "parquet":
        column = pq.read_table(broken.path).column("text")
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            column = column.cast(pa.string())
        for i, value in enumerate(column):
            try:
                text = value.as_py()
            except UnicodeDecodeError:
                text = None
            texts.append(text) if text is not None else bad.append(i)
        return texts, bad
    for i, line in enumerate(lines_of(broken.path)):
        try:
            texts.append(text_of(line))
        except (ValueError, TypeError, LookupError, RecursionError):
            bad.append(i)
    return texts, bad


@pytest.mark.parametrize("name", ODD)
def test_odd_files_hold_their_texts(name: str, tmp_path: Path) -> None:
    odd = ODD[name](tmp_path)
    assert odd.fault == "none"
    assert read(odd) == (list(odd.texts), [])


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_broken_as_they_say(name: str, tmp_path: Path) -> None:
    broken = BROKEN[name](tmp_path)
    if broken.fault == "record":
        texts, bad = read(broken)
        assert texts == list(broken.texts)
        assert tuple(bad) == broken.bad_records
        assert bad
    elif name == "wrong_type_parquet":
        assert pq.read_schema(broken.path).field("text").type == pa.int64()
    else:
        with pytest.raises((OSError, EOFError, KeyError, pa.ArrowException, zstandard.ZstdError)):
            read(broken)


def test_damaged_page_leaves_the_first_row_group_readable(tmp_path: Path) -> None:
    broken = broken_data.damaged_page_parquet(tmp_path)
    first = pq.ParquetFile(broken.path).read_row_group(0).column("text").to_pylist()
    assert first == list(broken.texts)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_huge_line_has_the_size_asked_for(suffix: str, tmp_path: Path) -> None:
    broken = broken_data.huge_line(tmp_path, line_bytes=300_000, suffix=suffix)
    lines = lines_of(broken.path)
    assert len(lines[broken_data.BAD_RECORD]) > 300_000
    assert len(lines) == broken_data.RECORDS
    assert suffix == ".jsonl" or broken.path.stat().st_size < 10_000


def test_the_big_ones_are_big(tmp_path: Path) -> None:
    document = broken_data.big_document_jsonl(tmp_path)
    assert max(len(text) for text in document.texts) == broken_data.BIG_DOCUMENT_BYTES
    group = broken_data.big_row_group(tmp_path)
    assert pq.ParquetFile(group.path).metadata.row_group(0).num_rows == broken_data.BIG_ROW_GROUP_RECORDS


def test_deep_line_is_too_deep_for_a_recursive_parser(tmp_path: Path) -> None:
    line = lines_of(broken_data.deep_json_line(tmp_path).path)[broken_data.BAD_RECORD]
    with pytest.raises(RecursionError):
        json.loads(line)
