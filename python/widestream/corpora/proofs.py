"""Mathematics with proofs: the Metamath database set.mm, in two length regimes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from widestream.corpora.catalogue import Corpus, Record, corpus
from widestream.corpora.packages import PackageCache
from widestream.corpora.readers import document, read_text


@corpus(
    tags="text ci maths",
    licence="CC0-1.0 (set.mm)",
    terms="free",
    download_mb=13,
    minimum_records=36_000,
    core="metamath-databases",
)
def metamath_theorems(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Metamath set.mm: description, statement and proof of each theorem"""
    text, at, comment, label = read_text(cache.file("metamath-databases", "/set.mm")), 0, "", ""
    token = re.compile(r"\S+")
    while match := token.search(text, at):
        word, at = match[0], match.end()
        if word == "$(":
            end = text.index("$)", at)
            comment, at = text[at:end], end + 2
        elif word == "$p":
            equals = text.index("$=", at)
            end = text.index("$.", equals)
            parts = (" ".join(part.split()) for part in (comment, text[at:equals], text[equals + 2 : end]))
            yield document("Theorem {}. {}\nStatement: {}\nProof: {}".format(label, *parts), "metamath", key=label)
            at = end + 2
        elif word in ("$a", "$e", "$f", "$c", "$v", "$d"):
            at = text.index("$.", at) + 2
        else:
            label = word


@corpus(
    tags="text ci maths long",
    licence="CC0-1.0 (set.mm)",
    terms="free",
    download_mb=13,
    minimum_records=140,
    core="metamath-databases",
)
def metamath_sections(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """the same file by section: 156 documents, up to 3.6 MB"""
    text = read_text(cache.file("metamath-databases", "/set.mm"))
    for section in re.split(r"(?=\$\(\n#\*#\*)|(?=\$\(\n####)", text):
        yield document(section, "metamath")
