"""Writes the seed corpora of the fuzzers: make_corpus.py FOLDER gives FOLDER/jsonl_fuzz/*, and so on.

The seeds of parquet_glue_fuzz are what engine/formats/testdata/make_parquet.py writes, without large ones;
it needs pyarrow. The zstd seed needs the zstandard package; each is left out where its package is absent.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

LINES = [
    b'{"text":"a"}\n{"id":1,"text":"b\\n\\u00e9\\ud83d\\ude00"}\n',
    b'\xef\xbb\xbf{"text":"a"}\r\n\r\n  \n{"text":null}\n{"text":[1,2.5e3,true]}\n{"text":"last"}',
    b'{"meta":{"text":"nested"},"meta.text":"flat"}\n{"meta":1}\n[]\n"x"\n{"text":"\xff"}\n',
    b'{"text":"' + b"x" * 3000 + b'"}\n{"text":"y"}\n' + b" " * 500 + b"\n",
]


def write_jsonl(folder: Path) -> None:
    """Three control bytes (compression and key, record_bytes, block size), then the file."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, lines in enumerate(LINES):
        half = len(lines) // 2
        (folder / f"plain_{i}").write_bytes(bytes([0, 12, 2]) + lines)
        (folder / f"dotted_{i}").write_bytes(bytes([4, 8, 83]) + lines)
        members = gzip.compress(lines[:half], mtime=0) + gzip.compress(lines[half:], mtime=0)
        (folder / f"gzip_{i}").write_bytes(bytes([1, 12, 2]) + members)
        if importlib.util.find_spec("zstandard") is not None:
            import zstandard

            frames = [zstandard.ZstdCompressor().compress(part) for part in (lines[:half], lines[half:])]
            (folder / f"zstd_{i}").write_bytes(bytes([2, 12, 2]) + b"".join(frames))


def write_megatron(folder: Path) -> None:
    """Two control bytes (record_bytes, block size), then an index of four documents; every code of a type."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths = [3, 1, 0, 2]
    for code, width in ((1, 1), (2, 1), (3, 2), (4, 4), (5, 8), (6, 8), (7, 4), (8, 2)):
        places = [sum(lengths[:i]) * width for i in range(len(lengths))]
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), 5)
        index += struct.pack("<4i4q5q", *lengths, *places, 0, 2, 2, 3, 4)
        (folder / f"type_{code}").write_bytes(bytes([12, 0x42]) + index)
        (folder / f"modes_{code}").write_bytes(bytes([12, 0x42]) + index + bytes(len(lengths)))


def write_webdataset(folder: Path) -> None:
    """Three control bytes (text, record_bytes, block size), then a tar file of each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    members = {
        "a/0.txt": b"zero",
        "a/0.json": b'{"a":{"b":"x"}}',
        "1.txt": b"",
        "n" * 120 + ".txt": b"long name",
        "2.jpg": b"j" * 700,
        "../3.txt": b"up",
    }
    for name, kind in (("ustar", tarfile.USTAR_FORMAT), ("gnu", tarfile.GNU_FORMAT), ("pax", tarfile.PAX_FORMAT)):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
            for path, content in members.items():
                if kind == tarfile.USTAR_FORMAT and len(path) > 100:
                    path = "f" * 60 + "/" + path[60:]
                info = tarfile.TarInfo(path)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            link = tarfile.TarInfo("4.txt")
            link.type, link.linkname = tarfile.SYMTYPE, "1.txt"
            tar.addfile(link)
        for text in (0, 1):
            (folder / f"{name}_{text}").write_bytes(bytes([text, 12, 0x42]) + out.getvalue())


def write_parquet(folder: Path) -> None:
    """The test files of the Parquet reader, up to 100 kB each."""
    if importlib.util.find_spec("pyarrow") is None:
        return
    script = Path(__file__).parent.parent / "engine" / "formats" / "testdata" / "make_parquet.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    for path in folder.iterdir():
        if path.suffix != ".parquet" or path.stat().st_size > 100_000:
            path.unlink()


def write_tokenizers(folder: Path) -> None:
    script = Path(__file__).parent / "make_tokenizer_corpus.py"
    folders = [str(folder / name) for name in ("tokenizer_file_fuzz", "tokenizer_differential_fuzz")]
    subprocess.run([sys.executable, str(script), *folders], check=True)


def main() -> None:
    folder = Path(sys.argv[1])
    write_jsonl(folder / "jsonl_fuzz")
    write_megatron(folder / "megatron_fuzz")
    write_webdataset(folder / "webdataset_fuzz")
    write_parquet(folder / "parquet_glue_fuzz")
    write_tokenizers(folder)


if __name__ == "__main__":
    main()
