"""Writes Parquet files of many kinds for parquet_test, with the records that each must give as JSON Lines.

Usage: make_parquet.py FOLDER. The text column is `meta.text` in nested.parquet and `text` elsewhere. A record
that must be bad has a null text in the JSON Lines. Files without a .jsonl beside them must be refused.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = [
    "",
    "a",
    "wide",
    "stream",
    "na\u00efve",
    "\u65e5\u672c\u8a9e",
    "\U0001f600",
    "line\nbreak",
    "nul\0byte",
    "x" * 300,
]


def texts(count: int, nulls: bool, seed: int) -> list[str | None]:
    """`count` random short texts, a tenth of them null if `nulls`."""
    rng = random.Random(seed)
    out: list[str | None] = []
    for _ in range(count):
        if nulls and rng.random() < 0.1:
            out.append(None)
        else:
            out.append(" ".join(rng.choices(WORDS, k=rng.randrange(4))))
    return out


def expect(folder: Path, name: str, records: list[str | None]) -> None:
    """Writes the records that a file must give."""
    with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as out:
        for text in records:
            out.write(json.dumps({"text": text}) + "\n")


def write(
    folder: Path,
    name: str,
    records: list[str | None],
    column: pa.Array | None = None,
    required: bool = False,
    **options: object,
) -> None:
    """Writes one file with an `id` and a `text` column, and its expectation."""
    column = pa.array(records, pa.string()) if column is None else column
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("text", column.type, nullable=not required)])
    table = pa.Table.from_arrays([pa.array(range(len(records)), pa.int64()), column], schema=schema)
    options.setdefault("row_group_size", 97)
    pq.write_table(table, folder / f"{name}.parquet", **options)
    expect(folder, name, records)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    plain = texts(1000, nulls=True, seed=1)
    whole = texts(1000, nulls=False, seed=2)

    for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        write(folder, f"codec_{codec}", plain, compression=codec)
    write(folder, "required", whole, required=True)
    write(folder, "one_row_group", plain, row_group_size=10000)
    write(folder, "small_pages", plain, row_group_size=500, data_page_size=200, write_batch_size=7)
    write(folder, "pages_v2", plain, data_page_version="2.0", data_page_size=500, write_batch_size=11)
    write(folder, "checksums", plain, write_page_checksum=True)
    for encoding in ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]:
        write(
            folder,
            f"encoding_{encoding.lower()}",
            plain,
            use_dictionary=False,
            column_encoding={"text": encoding},
            data_page_size=500,
            write_batch_size=13,
        )
    write(folder, "large_string", plain, pa.array(plain, pa.large_string()))
    write(folder, "string_view", plain, pa.array(plain, pa.string_view()))
    write(folder, "dictionary", plain, pa.array(plain, pa.string()).dictionary_encode())
    write(
        folder,
        "dictionary_overflow",
        whole,
        dictionary_pagesize_limit=200,
        data_page_size=500,
        write_batch_size=13,
    )
    write(folder, "all_null", [None] * 200)
    long: list[str | None] = ["short", "y" * 3_000_000, "short again"]
    write(folder, "long_text", long)
    write(folder, "no_rows", [])

    invalid = pa.array([b"good", b"\xff\xfe", b"also good"], pa.binary())
    buffers = invalid.buffers()
    write(folder, "invalid_utf8", ["good", None, "also good"], pa.Array.from_buffers(pa.string(), 3, buffers))

    meta = [None if i % 10 == 0 else {"text": text, "lang": "en"} for i, text in enumerate(plain)]
    nested = pa.array(meta, pa.struct([("text", pa.string()), ("lang", pa.string())]))
    pq.write_table(pa.table({"id": list(range(1000)), "meta": nested}), folder / "nested.parquet", row_group_size=300)
    expect(folder, "nested", [None if m is None else m["text"] for m in meta])

    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(folder / "empty_row_groups.parquet", schema) as writer:
        for part in [[], plain[:10], [], [], plain[10:30], []]:
            writer.write_table(pa.table({"text": pa.array(part, pa.string())}, schema=schema))
    expect(folder, "empty_row_groups", plain[:30])
    with pq.ParquetWriter(folder / "no_row_groups.parquet", schema):
        pass
    expect(folder, "no_row_groups", [])

    pq.write_table(
        pa.table(
            {
                "text": pa.array([b"bytes"], pa.binary()),
                "n": [1],
                "many": [["a", "b"]],
                "meta": [{"text": "a"}],
            }
        ),
        folder / "other_types.parquet",
    )


if __name__ == "__main__":
    main()
