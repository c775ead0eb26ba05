#!/usr/bin/env python3
"""Make the data of examples/quickstart out of Debian packages: the same packages give the same bytes.

    python scripts/make_fixture.py --cache CACHE [--out examples/quickstart/data] [--any-version]

Needs a Debian 12 system (for apt-get), and pyarrow and zstandard in the versions that PROVENANCE.json
names if the bytes shall be the same. Packages of other versions are refused unless --any-version is
given. Each source gets a folder with its shards and a NOTICE.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from widestream.corpora import CorporaError
from widestream.corpora.catalogue import select
from widestream.corpora.packages import PackageCache
from widestream.corpora.store import numbered

Record = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]

# fmt: off
GO_FOLDERS = (
    "archive", "bufio", "bytes", "compress", "container", "context", "database", "encoding",
    "errors", "expvar", "flag", "fmt", "go", "hash", "html", "index", "io", "log", "math", "mime",
    "net", "os", "path", "reflect", "regexp", "sort", "strconv", "strings", "sync", "testing",
    "text", "unicode",
)
# fmt: on
# Questions come from the modules that are not here, so that no text is in two sources.
SYMPY_CODE_MODULES = ("assumptions", "functions", "polys", "printing", "utilities")
CODE_BYTES_MAX = 60_000  # longer files are mostly tables


@dataclass(frozen=True)
class Part:
    """One source of the fixture."""

    name: str
    kind: str
    corpus: str
    package: str  # whose copyright file goes into the NOTICE
    changes: str  # what was done to the text, for the NOTICE
    columns: tuple[str, ...]  # besides text
    keep: Callable[[Record], bool]
    bytes_max: int  # records are thinned out evenly to this much text
    shards: int | Callable[[Record], str]  # a number, or the name of a record's shard
    format: str  # "parquet", "jsonl", "jsonl.gz" or "jsonl.zst"
    row_group_records: int = 0


def everything(record: Record) -> bool:
    return True


def is_plain_go(record: Record) -> bool:
    """Library code of the Go authors alone: no vendored, generated or test data files."""
    path = str(record["path"]).split("/src/", 1)[-1]
    owners = re.findall(r"copyright.*", record["text"], re.I)
    return (
        path.split("/")[0] in GO_FOLDERS
        and "/src/vendor/" not in record["path"]
        and "testdata" not in path
        and not path.endswith("_test.go")
        and record["bytes"] <= CODE_BYTES_MAX
        and bool(owners)
        and all("The Go Authors" in owner for owner in owners)
        and "DO NOT EDIT" not in record["text"]
    )


def sympy_module(record: Record) -> str:
    parts = str(record["path"]).split("/sympy/", 1)[-1].split("/")
    return parts[0] if len(parts) > 1 else ""


def is_plain_sympy(record: Record) -> bool:
    return (
        sympy_module(record) in SYMPY_CODE_MODULES
        and "/tests/" not in record["path"]
        and record["bytes"] <= CODE_BYTES_MAX
        and "copyright" not in record["text"].lower()
    )


def is_other_sympy(record: Record) -> bool:
    return sympy_module(record) not in SYMPY_CODE_MODULES


def novel_file(record: Record) -> str:
    title = str(record["key"]).rpartition(" ")[0]
    return re.sub(r"[^a-z]+", "_", title.lower())


PARTS = (
    Part(
        "novels",
        "prose",
        "jane_austen_chapters",
        "r-cran-janeaustenr",
        "The six novels were divided into chapters, one record a chapter.",
        ("id", "key", "lang"),
        everything,
        10**9,
        novel_file,
        "parquet",
        8,
    ),
    Part(
        "bible",
        "prose",
        "kjv_bible_chapters",
        "bible-kjv-text",
        "One record a chapter; verses lost their indentation.",
        ("id", "key", "lang"),
        everything,
        10**9,
        4,
        "jsonl.gz",
    ),
    Part(
        "definitions",
        "definitions",
        "wordnet_gloss",
        "wordnet-base",
        "One record a synset: its words, part of speech and gloss. About a quarter of the synsets.",
        ("id", "lang"),
        everything,
        3_000_000,
        2,
        "parquet",
        4096,
    ),
    Part(
        "go",
        "code",
        "code_go",
        "golang-1.19-src",
        "Some source files of the standard library, unmodified, one record a file.",
        ("id", "path", "lang"),
        is_plain_go,
        4_000_000,
        4,
        "jsonl.zst",
    ),
    Part(
        "python",
        "code",
        "code_python",
        "python3-sympy",
        "Some source files, unmodified, one record a file.",
        ("id", "path", "lang"),
        is_plain_sympy,
        10**9,
        2,
        "parquet",
        32,
    ),
    Part(
        "questions",
        "question and answer",
        "sympy_doctest_qa",
        "python3-sympy",
        "Examples taken out of docstrings: statements became questions, what they print answers.",
        ("id", "path", "lang"),
        is_other_sympy,
        10**9,
        2,
        "jsonl",
    ),
    Part(
        "proofs",
        "proofs",
        "metamath_theorems",
        "metamath-databases",
        "One record a theorem of set.mm: description, statement and (compressed) proof. About one in eight.",
        ("id", "key", "lang"),
        everything,
        4_000_000,
        3,
        "parquet",
        512,
    ),
    Part(
        "spanish",
        "another language",
        "reina_valera_chapters",
        "sword-text-sparv",
        "One record a chapter; markup removed.",
        ("id", "key", "lang"),
        everything,
        10**9,
        3,
        "jsonl.zst",
    ),
)

# The versions that the committed files were made of.
VERSIONS = {
    "r-cran-janeaustenr": "1.0.0-1",
    "bible-kjv-text": "4.38",
    "wordnet-base": "1:3.0-37",
    "golang-1.19-src": "1.19.8-2",
    "python3-sympy": "1.11.1-1",
    "metamath-databases": "0.0.0~20210101.git55fe226-2",
    "sword-text-sparv": "2.60-1",
}


def thinned(records: Iterable[Record], bytes_max: int) -> list[Record]:
    """Records spread evenly over the corpus, about bytes_max of text in all."""
    kept = list(records)
    total = sum(record["bytes"] for record in kept)
    if total <= bytes_max:
        return kept
    result, passed, taken = list[Record](), 0, 0
    for record in kept:
        passed += record["bytes"]
        if taken + record["bytes"] <= passed * bytes_max // total:
            taken += record["bytes"]
            result.append(record)
    return result


def sharded(part: Part, records: list[Record]) -> Iterator[tuple[str, list[Record]]]:
    """File stems with their records: consecutive records, or those of one name."""
    if callable(part.shards):
        groups: dict[str, list[Record]] = {}
        for record in records:
            groups.setdefault(part.shards(record), []).append(record)
        yield from groups.items()
        return
    for i in range(part.shards):
        start, end = (len(records) * k // part.shards for k in (i, i + 1))
        yield f"{part.name}-{i:02d}-of-{part.shards:02d}", records[start:end]


def write_parquet(path: Path, rows: list[Record], row_group_records: int) -> None:
    fields = [pa.field(name, pa.string(), nullable=False) for name in rows[0]]
    table = pa.Table.from_pylist(rows, schema=pa.schema(fields))
    pq.write_table(
        table, path, row_group_size=row_group_records, compression="zstd", compression_level=19,
        use_dictionary=["lang"], store_schema=False,
    )  # fmt: skip


def write_json_lines(path: Path, rows: list[Record]) -> None:
    data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, 9, mtime=0)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data)
    path.write_bytes(data)


def notice(part: Part, cache: PackageCache) -> str:
    """What the NOTICE of a source says: origin, changes, and the package's copyright file in full."""
    licence_file = cache.file(part.package, f"/usr/share/doc/{part.package}/copyright")
    head = (
        f"Text in this folder ({part.kind}) was taken from the Debian package {part.package} "
        f"{cache.version(part.package)}.\n{part.changes}\n"
        f"\nThe copyright file of that package follows.\n{'-' * 72}\n"
    )
    lines = (line.rstrip() for line in licence_file.read_text(encoding="utf-8").rstrip().splitlines())
    return head + "\n".join(lines) + "\n"


def make_part(part: Part, cache: PackageCache, out: Path) -> Record:
    """Write one source and return its entry in PROVENANCE.json."""
    (choice,) = select([part.corpus])
    found = numbered(part.corpus, choice.corpus.convert(cache, choice.corpus))
    records = thinned((record for record, _ in found if part.keep(record)), part.bytes_max)
    folder = out / part.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    files = {}
    for stem, group in sharded(part, records):
        rows = [{name: record[name] for name in (*part.columns, "text")} for record in group]
        path = folder / f"{stem}.{part.format}"
        if part.format == "parquet":
            write_parquet(path, rows, part.row_group_records)
        else:
            write_json_lines(path, rows)
        files[path.name] = {
            "records": len(rows),
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    (folder / "NOTICE").write_text(notice(part, cache), encoding="utf-8")
    return {
        "kind": part.kind,
        "corpus": part.corpus,
        "licence": choice.corpus.licence,
        "package": f"{part.package} {cache.version(part.package)}",
        "records": len(records),
        "text_bytes": sum(record["bytes"] for record in records),
        "files": files,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder for the packages")
    parser.add_argument("--out", type=Path, default=ROOT / "examples" / "quickstart" / "data")
    parser.add_argument("--any-version", action="store_true", help="take what the system's release offers")
    args = parser.parse_args()
    cache = PackageCache(args.cache)
    try:
        for part in PARTS:
            (choice,) = select([part.corpus])
            for spec in choice.corpus.core:
                cache.fetch(spec, lambda message: print(message, file=sys.stderr))
        wrong = {p: cache.version(p) for p, wanted in VERSIONS.items() if cache.version(p) != wanted}
        if wrong and not args.any_version:
            raise CorporaError(
                f"packages of other versions than the committed data: {wrong}; see --any-version"
            )
        sources = {}
        for part in PARTS:
            sources[part.name] = made = make_part(part, cache, args.out)
            size = sum(file["bytes"] for file in made["files"].values())
            text, packed = made["text_bytes"] / 1e6, size / 1e6
            print(f"{part.name}: {made['records']:,} records, {text:.2f} MB of text, {packed:.2f} MB packed")
    except CorporaError as error:
        print(f"make_fixture.py: error: {error}", file=sys.stderr)
        return 1
    tools = {name: importlib.metadata.version(name) for name in ("pyarrow", "zstandard")}
    provenance = {"made_by": "scripts/make_fixture.py", "tools": tools, "sources": sources}
    target = args.out / "PROVENANCE.json"
    target.write_text(json.dumps(provenance, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
