"""Writing a corpus: one compressed JSON Lines file and a manifest beside it, verified."""

from __future__ import annotations

import collections
import gzip
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from widestream.corpora.catalogue import Choice, Record
from widestream.corpora.errors import CorporaError
from widestream.corpora.packages import PackageCache

_CONVERTER_VERSION = 1  # changes when the same packages would give other records
_REPORT_EVERY_RECORDS = 20_000


@dataclass(frozen=True)
class FetchedCorpus:
    """A corpus on disk, complete and verified."""

    name: str
    path: Path
    records: int
    text_bytes: int
    duplicates: int
    languages: dict[str, int]
    packages: dict[str, str]  # package -> version
    licence: str
    sha256: str  # of the compressed file
    converter_version: int = _CONVERTER_VERSION


def numbered(name: str, records: Iterable[Record], keep_duplicates: bool = False) -> Iterator[tuple[Record, int]]:
    """Records with id, source and size, and how many exact duplicates were left out so far.

    Texts that hold nothing but white space are left out too.
    """
    seen: set[bytes] = set()
    count = duplicates = 0
    for record in records:
        data = record["text"].encode()
        if not data.strip():
            continue
        digest = hashlib.blake2b(data, digest_size=16).digest()
        if digest in seen and not keep_duplicates:
            duplicates += 1
            continue
        seen.add(digest)
        yield {"id": f"{name}-{count:07d}", "source": name, "bytes": len(data)} | record, duplicates
        count += 1


def write_corpus(choice: Choice, cache: PackageCache, out_dir: Path, progress: Callable[[str], None]) -> FetchedCorpus:
    """Write `OUT/NAME.jsonl.gz` and `OUT/NAME.json`; whatever fails, both are whole or not touched.

    Raises CorporaError if a package is not unpacked, cannot be read, or gives too few records.
    """
    this = choice.corpus
    missing = [spec for spec in this.core if cache.unpacked(spec) is None]
    if missing:
        raise CorporaError(f"corpus {this.name}: not in {cache.trees}: {', '.join(missing)}; fetch it first")
    path = out_dir / f"{this.name}.jsonl.gz"
    languages: collections.Counter[str] = collections.Counter()
    records = text_bytes = duplicates = 0
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    out_dir.mkdir(parents=True, exist_ok=True)
    try:
        # No time and no name go into the file, so that the same records give the same bytes.
        with partial.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
            for record, duplicates in numbered(this.name, this.convert(cache, this)):  # noqa: B007
                packed.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
                records += 1
                text_bytes += record["bytes"]
                languages[record["lang"]] += 1
                if records % _REPORT_EVERY_RECORDS == 0:
                    progress(f"converted {records:,} records of {this.name}")
        if records < this.minimum_records:
            raise CorporaError(
                f"corpus {this.name}: only {records:,} records came out of {', '.join(this.core)}, "
                f"expected at least {this.minimum_records:,}: the layout of the package has changed, "
                f"or the unpacked tree is incomplete (delete {cache.trees} and fetch again)"
            )
        fetched = FetchedCorpus(
            name=this.name,
            path=path,
            records=records,
            text_bytes=text_bytes,
            duplicates=duplicates,
            languages=dict(languages.most_common()),
            packages=_versions(choice, cache),
            licence=this.licence,
            sha256=_sha256(partial),
        )
        partial.replace(path)
        _write_manifest(fetched)
        return fetched
    except (ValueError, LookupError, EOFError, struct.error, zlib.error) as error:
        raise CorporaError(
            f"corpus {this.name}: a file of {', '.join(this.core)} could not be read "
            f"({type(error).__name__}: {error}): the layout of the package has changed"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def verified(choice: Choice, cache: PackageCache, out_dir: Path) -> FetchedCorpus | None:
    """The corpus in `out_dir` if it is complete, unchanged, and made of the packages in the cache."""
    path = out_dir / f"{choice.corpus.name}.jsonl.gz"
    try:
        manifest: dict[str, Any] = json.loads(_manifest_path(path).read_text(encoding="utf-8"))
        fetched = FetchedCorpus(**(manifest | {"path": path}))
        current = fetched.packages == _versions(choice, cache) and fetched.converter_version == _CONVERTER_VERSION
        return fetched if current and _sha256(path) == fetched.sha256 else None
    except (OSError, ValueError, TypeError):
        return None  # absent, or not written by this version: it is made again


def _versions(choice: Choice, cache: PackageCache) -> dict[str, str]:
    unpacked = (cache.unpacked(spec) for spec in choice.corpus.core + choice.corpus.extra)
    return {package: cache.version(package) for package in unpacked if package is not None}


def _write_manifest(fetched: FetchedCorpus) -> None:
    manifest = asdict(fetched)
    del manifest["path"]
    target = _manifest_path(fetched.path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(target)


def _manifest_path(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(".jsonl.gz") + ".json")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
