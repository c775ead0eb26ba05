"""Writes the seed corpora of the fuzzers: make_corpus.py FOLDER gives FOLDER/jsonl_fuzz/*, and so on.

The seeds of parquet_glue_fuzz are what engine/formats/testdata/make_parquet.py writes, without large ones;
it needs pyarrow. The zstd seed needs the zstandard package; each is left out where its package is absent.
"""

from __future__ import annotations

import gzip
import importlib.util
import subprocess
import sys
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
    write_parquet(folder / "parquet_glue_fuzz")
    write_tokenizers(folder)


if __name__ == "__main__":
    main()
