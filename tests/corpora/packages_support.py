"""Unpacked packages and a package manager, made up for tests."""

from __future__ import annotations

import os
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from widestream.corpora.catalogue import select
from widestream.corpora.packages import PackageCache

_APT_GET = """#!/bin/sh
# Stands in for apt-get: packages lie in $FAKE_APT as NAME_VERSION_all.deb.
for name; do :; done
found=$(ls "$FAKE_APT/$name"_*.deb 2>/dev/null)
if [ -z "$found" ]; then echo "E: Unable to locate package $name" >&2; exit 100; fi
case "$*" in *--print-uris*) exit 0;; esac
echo "$name" >> "$FAKE_APT/downloads"
if [ -e "$FAKE_APT/no-network" ]; then echo "E: Temporary failure resolving mirror" >&2; exit 100; fi
cp "$found" .
"""

_DPKG_DEB = """#!/bin/sh
# Stands in for dpkg-deb -x: the packages of these tests are tar files.
exec tar -xf "$2" -C "$3"
"""


def unpack(root: Path, package: str, files: dict[str, bytes | str]) -> PackageCache:
    """Put files into a cache as if `package` had been unpacked."""
    for name, content in files.items():
        path = root / "tree" / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return PackageCache(root)


def convert(name: str, cache: PackageCache) -> list[dict[str, Any]]:
    """All records of one corpus."""
    (choice,) = select([name])
    return list(choice.corpus.convert(cache, choice.corpus))


class FakeApt:
    """apt-get and dpkg-deb on the PATH, and the packages that they offer."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, programs = folder / "apt", folder / "bin"
        self.folder.mkdir()
        programs.mkdir()
        for name, script in (("apt-get", _APT_GET), ("dpkg-deb", _DPKG_DEB)):
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        monkeypatch.setenv("FAKE_APT", str(self.folder))

    def offer(self, package: str, files: dict[str, str], version: str = "1.0") -> None:
        content = self.folder / f"content-{package}"
        unpack(content, package, dict(files))
        with tarfile.open(self.folder / f"{package}_{version}_all.deb", "w") as tar:
            tar.add(content / "tree" / package, ".")

    def cut_network(self) -> None:
        (self.folder / "no-network").touch()

    @property
    def downloads(self) -> list[str]:
        log = self.folder / "downloads"
        return log.read_text().split() if log.exists() else []


def mo_file(messages: dict[str, str], order: str = "<") -> bytes:
    """A compiled gettext catalogue."""
    ids, translations = ([text.encode() for text in column] for column in zip(*messages.items(), strict=True))
    at, tables, data = 28 + 16 * len(ids), [b"", b""], b""
    for table, column in enumerate((ids, translations)):
        for text in column:
            tables[table] += struct.pack(order + "2I", len(text), at + len(data))
            data += text + b"\0"
    head = struct.pack(order + "7I", 0x950412DE, 0, len(ids), 28, 28 + 8 * len(ids), 0, 0)
    return head + tables[0] + tables[1] + data


def r_database(objects: list[list[str]]) -> bytes:
    """An R lazy-load database as far as strings matter: CHARSXP headers, lengths and bytes."""
    data = b""
    for strings in objects:
        blob = b"RDX3 head"
        for text in strings:
            raw = text.encode()
            blob += b"\x00\x04\x00\x09" + struct.pack(">i", len(raw)) + raw
        packed = zlib.compress(blob)
        data += struct.pack(">I", len(blob)) + packed
    return data


def sword_module(blocks: list[list[str]]) -> dict[str, bytes]:
    """Files bzs, bzv and bzz of one testament, a block per book."""
    index, entries, data = b"", b"", b""
    for number, texts in enumerate(blocks):
        raw = [text.encode() for text in texts]
        packed = zlib.compress(b"".join(raw))
        index += struct.pack("<3I", len(data), len(packed), sum(map(len, raw)))
        data += packed
        at = 0
        for text in raw:
            entries += struct.pack("<2IH", number, at, len(text))
            at += len(text)
    return {"bzs": index, "bzv": entries, "bzz": data}
