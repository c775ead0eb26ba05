"""Files that a data source may meet and must survive: damaged ones and odd but valid ones.

Nothing here is committed as a file: every function writes one into a folder that the test gives.

    for name, make in BROKEN.items():
        broken = make(tmp_path)           # writes broken.path
        # a reader delivers broken.texts in this order and reports broken.bad_records, or, where
        # broken.fault is "file", refuses the whole file.

Records are numbered from 0 in file order (JSON Lines: lines), bad ones included.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

RECORDS = 12
BAD_RECORD = 5
HUGE_LINE_BYTES = 100 * 2**20
BIG_DOCUMENT_BYTES = 4 * 2**20
BIG_ROW_GROUP_RECORDS = 100_000


@dataclass(frozen=True)
class BrokenFile:
    """What was written and what a correct reader makes of it."""

    path: Path
    # "file": unreadable as a whole. "tail": a part of the texts from the start comes, then an error and
    # no more of this file. "record": only the bad records are skipped or reported. "none": valid.
    fault: Literal["none", "file", "tail", "record"]
    texts: Sequence[str]  # delivered in file order, if bad records are skipped
    bad_records: tuple[int, ...] = ()
    text_column: str = "text"

    @property
    def format(self) -> str:
        """ "parquet" or "jsonl"."""
        return "parquet" if self.path.suffix == ".parquet" else "jsonl"


def sample_texts(count: int = RECORDS) -> list[str]:
    """Short distinct texts with some letters outside ASCII."""
    return [f"Record {i}: plain words, \u00e9t\u00e9, \u6c34 and \U0001f40b." for i in range(count)]


def write_parquet(path: Path, texts: Sequence[str | None], row_group_records: int = 4) -> Path:
    """A sound Parquet file (zstd) with columns id and text."""
    table = pa.table({"id": pa.array([f"r{i}" for i in range(len(texts))]), "text": pa.array(texts, pa.string())})
    pq.write_table(table, path, row_group_size=row_group_records, compression="zstd")
    return path


def json_lines(texts: Sequence[str]) -> list[bytes]:
    """Sound lines without their line ends."""
    return [json.dumps({"id": f"r{i}", "text": t}, ensure_ascii=False).encode() for i, t in enumerate(texts)]


def write_lines(path: Path, lines: Sequence[bytes]) -> Path:
    """JSON Lines, compressed as the name says; every line ends in a newline."""
    data = b"".join(line + b"\n" for line in lines)
    if path.suffix == ".gz":
        data = gzip.compress(data, 6, mtime=0)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)
    path.write_bytes(data)
    return path


# --- Parquet -------------------------------------------------------------------------


def truncated_parquet(folder: Path) -> BrokenFile:
    """Cut after 60 %: the footer is gone."""
    path = write_parquet(folder / "truncated.parquet", sample_texts())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 6 // 10])
    return BrokenFile(path, "file", ())


def wrong_magic_parquet(folder: Path) -> BrokenFile:
    """Not Parquet at all, only named so; longer than any footer."""
    path = folder / "wrong_magic.parquet"
    path.write_bytes(b"".join(line + b"\n" for line in json_lines(sample_texts())))
    return BrokenFile(path, "file", ())


def tiny_parquet(folder: Path) -> BrokenFile:
    """Only the magic: shorter than the smallest file."""
    path = folder / "tiny.parquet"
    path.write_bytes(b"PAR1")
    return BrokenFile(path, "file", ())


def empty_parquet_file(folder: Path) -> BrokenFile:
    """Zero bytes: no Parquet file (one without rows has a footer)."""
    path = folder / "empty.parquet"
    path.write_bytes(b"")
    return BrokenFile(path, "file", ())


def footer_length_parquet(folder: Path) -> BrokenFile:
    """The footer claims to be 2 GiB long: nothing of that size may be allocated."""
    path = write_parquet(folder / "footer_length.parquet", sample_texts())
    data = bytearray(path.read_bytes())
    data[-8:-4] = (2**31 - 1).to_bytes(4, "little")
    path.write_bytes(data)
    return BrokenFile(path, "file", ())


def damaged_page_parquet(folder: Path) -> BrokenFile:
    """Footer and first row group are sound; bytes of the text pages of the second are overwritten."""
    texts = sample_texts()
    path = write_parquet(folder / "damaged_page.parquet", texts)
    metadata = pq.ParquetFile(path).metadata
    column = metadata.row_group(1).column(metadata.schema.names.index("text"))
    start = column.dictionary_page_offset or column.data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(data)
    return BrokenFile(path, "tail", texts[:4], (4,))


def missing_column_parquet(folder: Path) -> BrokenFile:
    """There is "body", but no "text"."""
    path = folder / "missing_column.parquet"
    pq.write_table(pa.table({"id": ["r0"], "body": ["words"]}), path)
    return BrokenFile(path, "file", ())


def wrong_type_parquet(folder: Path) -> BrokenFile:
    """Column "text" holds integers."""
    path = folder / "wrong_type.parquet"
    pq.write_table(pa.table({"id": ["r0", "r1"], "text": pa.array([1, 2], pa.int64())}), path)
    return BrokenFile(path, "file", ())


def list_type_parquet(folder: Path) -> BrokenFile:
    """Column "text" holds lists of strings: more leaf values than rows."""
    path = folder / "list_type.parquet"
    pq.write_table(pa.table({"text": pa.array([["a", "b"], ["c"]], pa.list_(pa.string()))}), path)
    return BrokenFile(path, "file", ())


def null_text_parquet(folder: Path) -> BrokenFile:
    """One text is null."""
    texts: list[str | None] = list(sample_texts())
    texts[BAD_RECORD] = None
    path = write_parquet(folder / "null_text.parquet", texts)
    return BrokenFile(path, "record", [t for t in texts if t is not None], (BAD_RECORD,))


def invalid_utf8_parquet(folder: Path) -> BrokenFile:
    """One text of a string column is no UTF-8, which Parquet writers do not check."""
    values = [t.encode() for t in sample_texts()]
    values[BAD_RECORD] = b"fine until \xff\xfe here"
    binary = pa.array(values, pa.binary())
    text = pa.Array.from_buffers(pa.string(), len(binary), binary.buffers())
    path = folder / "invalid_utf8.parquet"
    pq.write_table(pa.table({"text": text}), path, row_group_size=4, compression="zstd")
    texts = sample_texts()
    return BrokenFile(path, "record", texts[:BAD_RECORD] + texts[BAD_RECORD + 1 :], (BAD_RECORD,))


# --- JSON Lines ----------------------------------------------------------------------


def _one_bad_line(path: Path, line: bytes) -> BrokenFile:
    texts = sample_texts()
    lines = json_lines(texts)
    lines[BAD_RECORD] = line
    write_lines(path, lines)
    return BrokenFile(path, "record", texts[:BAD_RECORD] + texts[BAD_RECORD + 1 :], (BAD_RECORD,))


def invalid_json_line(folder: Path) -> BrokenFile:
    """A line in the middle ends inside a string."""
    return _one_bad_line(folder / "invalid_json.jsonl", b'{"id": "r5", "text": "no end')


def invalid_json_line_zst(folder: Path) -> BrokenFile:
    """The same in a compressed file."""
    return _one_bad_line(folder / "invalid_json.jsonl.zst", b'{"id": "r5", "text": "no end')


def trailing_garbage_line(folder: Path) -> BrokenFile:
    """Two objects in one line."""
    return _one_bad_line(folder / "two_objects.jsonl", b'{"text": "one"} {"text": "two"}')


def array_line(folder: Path) -> BrokenFile:
    """A line that is JSON but no object."""
    return _one_bad_line(folder / "array.jsonl", b'["text", "words"]')


def deep_json_line(folder: Path) -> BrokenFile:
    """100,000 nested arrays in a field that nobody reads: no parser may recurse through them.

    The line is valid JSON, so a reader may deliver its text "deep" or call the record bad. In neither
    registry for that reason.
    """
    nested = b"[" * 100_000 + b"]" * 100_000
    return _one_bad_line(folder / "deep.jsonl", b'{"extra": ' + nested + b', "text": "deep"}')


def missing_key_line(folder: Path) -> BrokenFile:
    """One record has no "text"."""
    return _one_bad_line(folder / "missing_key.jsonl", b'{"id": "r5", "body": "words"}')


def wrong_type_line(folder: Path) -> BrokenFile:
    """One "text" is a number."""
    return _one_bad_line(folder / "wrong_type.jsonl", b'{"id": "r5", "text": 5}')


def null_text_line(folder: Path) -> BrokenFile:
    """One "text" is null."""
    return _one_bad_line(folder / "null_text.jsonl", b'{"id": "r5", "text": null}')


def invalid_utf8_line(folder: Path) -> BrokenFile:
    """One text holds bytes that are no UTF-8."""
    return _one_bad_line(folder / "invalid_utf8.jsonl", b'{"id": "r5", "text": "fine until \xff\xfe here"}')


def lone_surrogate_line(folder: Path) -> BrokenFile:
    """One text escapes half of a surrogate pair, which no UTF-8 can hold."""
    return _one_bad_line(folder / "lone_surrogate.jsonl", b'{"id": "r5", "text": "half \\ud83d only"}')


def binary_jsonl(folder: Path) -> BrokenFile:
    """A Parquet file under the name of JSON Lines: no line is a record."""
    path = write_parquet(folder / "parquet_inside.parquet", sample_texts()).rename(folder / "parquet_inside.jsonl")
    return BrokenFile(path, "record", (), tuple(range(path.read_bytes().count(b"\n") + 1)))


def truncated_gzip(folder: Path) -> BrokenFile:
    """The last 8 bytes (checksum and length) and more are gone. What comes before may be delivered."""
    texts = _varied_texts(2_000)
    path = write_lines(folder / "truncated.jsonl.gz", json_lines(texts))
    path.write_bytes(path.read_bytes()[:-200])
    return BrokenFile(path, "tail", texts)


def truncated_zstd(folder: Path) -> BrokenFile:
    """The end of the frame is gone. What comes before may be delivered."""
    texts = _varied_texts(2_000)
    path = write_lines(folder / "truncated.jsonl.zst", json_lines(texts))
    path.write_bytes(path.read_bytes()[:-200])
    return BrokenFile(path, "tail", texts)


def wrong_magic_gzip(folder: Path) -> BrokenFile:
    """Plain text under the name of a gzip file."""
    path = folder / "wrong_magic.jsonl.gz"
    path.write_bytes(b"".join(line + b"\n" for line in json_lines(sample_texts())))
    return BrokenFile(path, "file", ())


def wrong_magic_zstd(folder: Path) -> BrokenFile:
    """Plain text under the name of a zstd file."""
    path = folder / "wrong_magic.jsonl.zst"
    path.write_bytes(b"".join(line + b"\n" for line in json_lines(sample_texts())))
    return BrokenFile(path, "file", ())


def huge_line(folder: Path, line_bytes: int = HUGE_LINE_BYTES, suffix: str = ".jsonl") -> BrokenFile:
    """One line of 100 MB between sound ones: over any record limit; memory must not follow it.

    With suffix ".jsonl.gz" or ".jsonl.zst" the file itself is small: a decompression bomb.
    """
    line = b'{"id": "r5", "text": "' + b"x" * line_bytes + b'"}'
    return _one_bad_line(folder / f"huge_line{suffix}", line)


# --- Valid but odd -------------------------------------------------------------------


def empty_jsonl(folder: Path) -> BrokenFile:
    """Zero bytes: a shard without records."""
    path = folder / "empty.jsonl"
    path.write_bytes(b"")
    return BrokenFile(path, "none", ())


def empty_jsonl_gz(folder: Path) -> BrokenFile:
    """A gzip stream of nothing."""
    return BrokenFile(write_lines(folder / "empty.jsonl.gz", []), "none", ())


def no_rows_parquet(folder: Path) -> BrokenFile:
    """A schema and no rows."""
    return BrokenFile(write_parquet(folder / "no_rows.parquet", []), "none", ())


def no_final_newline(folder: Path) -> BrokenFile:
    """The last line has no line end."""
    path = folder / "no_final_newline.jsonl"
    path.write_bytes(b"\n".join(json_lines(sample_texts())))
    return BrokenFile(path, "none", sample_texts())


def carriage_returns(folder: Path) -> BrokenFile:
    """Lines end in CR LF; the CR is white space after the object."""
    path = folder / "crlf.jsonl"
    path.write_bytes(b"".join(line + b"\r\n" for line in json_lines(sample_texts())))
    return BrokenFile(path, "none", sample_texts())


def many_frames(folder: Path, suffix: str = ".jsonl.zst") -> BrokenFile:
    """Several compressed members or frames in one file, one of them empty, cut in mid-line."""
    data = b"".join(line + b"\n" for line in json_lines(sample_texts()))
    path = folder / f"many_frames{suffix}"
    parts = [data[:100], b"", data[100:333], data[333:]]
    if suffix.endswith(".gz"):
        path.write_bytes(b"".join(gzip.compress(part, mtime=0) for part in parts))
    else:
        path.write_bytes(b"".join(zstandard.ZstdCompressor().compress(part) for part in parts))
    return BrokenFile(path, "none", sample_texts())


def many_members_gzip(folder: Path) -> BrokenFile:
    """The same as gzip members."""
    return many_frames(folder, ".jsonl.gz")


def escaped_text(folder: Path) -> BrokenFile:
    """Escapes, a NUL and a surrogate pair, which must come out as the characters they stand for."""
    texts = ['a\tb\nc\\d"e/f', "nul \0 inside", "whale \U0001f40b", "\u2028 separators \u2029"]
    path = folder / "escaped.jsonl"
    path.write_bytes(b"".join(json.dumps({"text": t}).encode("ascii") + b"\n" for t in texts))
    return BrokenFile(path, "none", texts)


def one_record_parquet(folder: Path) -> BrokenFile:
    """A shard of one record."""
    return BrokenFile(write_parquet(folder / "one_record.parquet", ["alone"]), "none", ["alone"])


def one_record_jsonl(folder: Path) -> BrokenFile:
    """A shard of one record."""
    return BrokenFile(write_lines(folder / "one_record.jsonl", json_lines(["alone"])), "none", ["alone"])


def empty_texts(folder: Path) -> BrokenFile:
    """Texts of no length between others: examined, and nothing comes of them."""
    texts = [t if i % 3 else "" for i, t in enumerate(sample_texts())]
    return BrokenFile(write_parquet(folder / "empty_texts.parquet", texts), "none", texts)


def big_document_parquet(folder: Path, text_bytes: int = BIG_DOCUMENT_BYTES) -> BrokenFile:
    """A document of 4 MB between short ones."""
    texts = [*sample_texts(3), _words(text_bytes), *sample_texts(3)]
    return BrokenFile(write_parquet(folder / "big_document.parquet", texts, 2), "none", texts)


def big_document_jsonl(folder: Path, text_bytes: int = BIG_DOCUMENT_BYTES) -> BrokenFile:
    """The same as JSON Lines."""
    texts = [*sample_texts(3), _words(text_bytes), *sample_texts(3)]
    return BrokenFile(write_lines(folder / "big_document.jsonl", json_lines(texts)), "none", texts)


def big_row_group(folder: Path, records: int = BIG_ROW_GROUP_RECORDS) -> BrokenFile:
    """One row group of 100,000 short records."""
    texts = [f"short {i}" for i in range(records)]
    return BrokenFile(write_parquet(folder / "big_row_group.parquet", texts, records), "none", texts)


def large_string_parquet(folder: Path) -> BrokenFile:
    """The Arrow schema in the file says large_string (64-bit offsets), as some writers do."""
    path = folder / "large_string.parquet"
    pq.write_table(pa.table({"text": pa.array(sample_texts(), pa.large_string())}), path, row_group_size=4)
    return BrokenFile(path, "none", sample_texts())


def dictionary_parquet(folder: Path) -> BrokenFile:
    """The Arrow schema in the file says dictionary: texts repeat."""
    texts = [f"kind {i % 3}" for i in range(RECORDS)]
    path = folder / "dictionary.parquet"
    pq.write_table(pa.table({"text": pa.array(texts).dictionary_encode()}), path, row_group_size=4)
    return BrokenFile(path, "none", texts)


def _words(size_bytes: int) -> str:
    return "".join(_numbered_words(size_bytes))[:size_bytes]


def _numbered_words(size_bytes: int) -> Iterator[str]:
    written = i = 0
    while written < size_bytes:
        word = f"word{i * 2654435761 % 9973} " if i % 17 else f"end {i}.\n"
        yield word
        written += len(word)
        i += 1


def _varied_texts(count: int) -> list[str]:
    return [f"Record {i}: {i * 2654435761 % 2**32:x} {i * 40503 % 65521:x}" for i in range(count)]


_Maker = Callable[[Path], BrokenFile]

# What a job must refuse or skip with a clear error. `huge_line` is left out: it takes 100 MB.
BROKEN: dict[str, _Maker] = {
    make.__name__: make
    for make in (
        truncated_parquet,
        wrong_magic_parquet,
        tiny_parquet,
        empty_parquet_file,
        footer_length_parquet,
        damaged_page_parquet,
        missing_column_parquet,
        wrong_type_parquet,
        list_type_parquet,
        null_text_parquet,
        invalid_utf8_parquet,
        invalid_json_line,
        invalid_json_line_zst,
        trailing_garbage_line,
        array_line,
        missing_key_line,
        wrong_type_line,
        null_text_line,
        invalid_utf8_line,
        lone_surrogate_line,
        binary_jsonl,
        truncated_gzip,
        truncated_zstd,
        wrong_magic_gzip,
        wrong_magic_zstd,
    )
}

# What a job must read completely.
ODD: dict[str, _Maker] = {
    make.__name__: make
    for make in (
        empty_jsonl,
        empty_jsonl_gz,
        no_rows_parquet,
        no_final_newline,
        carriage_returns,
        many_frames,
        many_members_gzip,
        escaped_text,
        one_record_parquet,
        one_record_jsonl,
        empty_texts,
        big_document_parquet,
        big_document_jsonl,
        big_row_group,
        large_string_parquet,
        dictionary_parquet,
    )
}
