"""Readers of the file formats that the packages use. They read trusted (signed) packages."""

from __future__ import annotations

import gzip
import html
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_R_STRING_BYTES_MAX = 10_000


def document(text: str, lang: str, **fields: Any) -> Record:
    """A record of plain text."""
    return {"lang": lang, **fields, "text": text}


def question_and_answer(prompt: str, answer: str, lang: str, **fields: Any) -> Record:
    """A record whose text joins a question and its answer."""
    prompt, answer = prompt.strip(), answer.strip()
    return document(f"Q: {prompt}\nA: {answer}", lang, prompt=prompt, answer=answer, **fields)


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Decoded content of a file, decompressed if it is a .gz or .dz (dictzip)."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix in (".gz", ".dz") else data).decode(encoding, "replace")


def markup_to_text(markup: str) -> str:
    """Visible text of HTML or Mallard: block tags break lines, <pre> and <screen> keep theirs."""
    hidden = r"<!--.*?-->|<(script|style|nav|head|noscript|info)\b.*?</\1>"
    markup = re.sub(hidden, "", markup, flags=re.S)
    parts = re.split(r"(<(?:pre|screen)\b.*?</(?:pre|screen)>)", markup, flags=re.S)
    markup = "".join(part if i % 2 else re.sub(r"\s+", " ", part) for i, part in enumerate(parts))
    block = "p|div|br|li|tr|td|h[1-6]|pre|dt|dd|table|section|title|item|steps|list|note|screen"
    markup = re.sub(rf"</?(?:{block})\b[^>]*>", "\n", markup)
    text = html.unescape(re.sub(r"<[^>]+>", "", markup))
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r"[ \t]+\n", "\n", text)).strip()


def gettext_messages(path: Path) -> Iterator[tuple[str, str]]:
    """Pairs of msgid (without context) and translation (first plural form) of a .mo file."""
    data = path.read_bytes()
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, ids, translations = struct.unpack_from(order + "3I", data, 8)

    def entry(table: int, i: int) -> str:
        size, start = struct.unpack_from(order + "2I", data, table + 8 * i)
        return data[start : start + size].decode("utf-8", "replace").split("\0")[0]

    for i in range(count):
        yield entry(ids, i).split("\x04")[-1], entry(translations, i)


def r_strings(path: Path) -> Iterator[list[str]]:
    """The strings of each object in an R lazy-load database (.rdb), in stored order."""
    header = re.compile(rb"\x00[\x00-\x04][\x00\x40-\x4f]\x09", re.S)  # of a CHARSXP
    data, at = path.read_bytes(), 0
    while at + 4 < len(data):
        inflate = zlib.decompressobj()
        blob = inflate.decompress(data[at + 4 :])  # the first four bytes hold the length
        at = len(data) - len(inflate.unused_data)
        strings, i = list[str](), 0
        while match := header.search(blob, i):
            i = match.end()
            if i + 4 > len(blob):
                break
            (size,) = struct.unpack_from(">i", blob, i)
            if 0 <= size < _R_STRING_BYTES_MAX:
                strings.append(blob[i + 4 : i + 4 + size].decode("utf-8", "replace"))
                i += 4 + size
        yield strings


def sword_entries(folder: Path, testament: str) -> Iterator[str]:
    """Entries (headings and verses, OSIS markup) of one testament of a SWORD zText module, in order.

    `.bzs` lists the compressed blocks (offset, size, unpacked size), `.bzv` the entries (block, offset,
    size), `.bzz` holds the blocks.
    """
    blocks_index, entries_index, data = (
        (folder / f"{testament}.{suffix}").read_bytes() for suffix in ("bzs", "bzv", "bzz")
    )
    blocks = [
        zlib.decompress(data[offset : offset + size]) if size else b""
        for offset, size, _ in struct.iter_unpack("<3I", blocks_index)
    ]
    for block, start, size in struct.iter_unpack("<2IH", entries_index):
        yield blocks[block][start : start + size].decode("utf-8", "replace") if size else ""
