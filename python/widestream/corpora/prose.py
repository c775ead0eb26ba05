"""Prose: novels, Bibles, manuals and a dictionary, by book or by chapter."""

from __future__ import annotations

import gzip
import re
import struct
import subprocess
from collections.abc import Iterator

from widestream.corpora.catalogue import Corpus, Record, corpus
from widestream.corpora.errors import CorporaError
from widestream.corpora.packages import PackageCache
from widestream.corpora.readers import document, markup_to_text, r_strings, read_text, sword_entries

_NOVEL_CHARACTERS_MIN = 10_000
_BIBLE_TIMEOUT_SECONDS = 120


@corpus(
    tags="text ci multilingual prose",
    licence="CC-BY-SA-3.0",
    terms="share-alike",
    download_mb=9,
    minimum_records=10_000,
    core="gnome-user-docs",
)
def gnome_help(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """GNOME user help, 42 languages, some pages only half translated"""
    for path in cache.files("gnome-user-docs", ".page"):
        lang, _, page = path.as_posix().split("/help/")[1].partition("/")
        text = markup_to_text(read_text(path))
        yield document(text, "en" if lang == "C" else lang, key=page.removesuffix(".page"))


@corpus(
    tags="text multilingual prose",
    licence="GPL-2+ or CC-BY-SA-3.0",
    terms="share-alike",
    download_mb=35,
    minimum_records=3_000,
    core="debian-handbook",
)
def debian_handbook_chapters(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """The Debian Administrator's Handbook by chapter, 26 languages"""
    for path in cache.files("debian-handbook", ".html"):
        yield document(markup_to_text(read_text(path)), path.parent.name, key=path.stem)


@corpus(
    tags="text multilingual prose long",
    licence="GPL-2+ or CC-BY-SA-3.0",
    terms="share-alike",
    download_mb=35,
    minimum_records=25,
    core="debian-handbook",
)
def debian_handbook_books(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """the same handbook, one document of 1.1 to 1.6 MB per language"""
    books: dict[str, list[str]] = {}
    for chapter in debian_handbook_chapters(cache, this):
        books.setdefault(chapter["lang"], []).append(chapter["text"])
    for lang, chapters in books.items():
        yield document("\n\n".join(chapters), lang)


@corpus(
    tags="text ci prose long",
    licence="text public domain, package MIT",
    terms="free",
    download_mb=2,
    minimum_records=6,
    core="r-cran-janeaustenr",
)
def jane_austen(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """six novels of Jane Austen, 0.4 to 0.9 MB each"""
    for strings in r_strings(cache.file("r-cran-janeaustenr", "/Rdata.rdb")):
        text = "\n".join(strings)
        if len(text) > _NOVEL_CHARACTERS_MIN:
            title = next(line.strip() for line in strings if line.strip()).title()
            yield document(text, "en", key=title)


@corpus(
    tags="text prose",
    licence="text public domain, package MIT",
    terms="free",
    download_mb=2,
    minimum_records=250,
    core="r-cran-janeaustenr",
)
def jane_austen_chapters(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """the same novels by chapter, about 15 kB each"""
    for novel in jane_austen(cache, this):
        # What stands before the first chapter (title page, preface) belongs to it.
        chapters = re.split(r"(?=^(?:CHAPTER|Chapter) [IVXLC\d]+\.?$)", novel["text"], flags=re.M)
        chapters[:2] = ["".join(chapters[:2])]
        for number, text in enumerate(chapters, 1):
            yield document(text.strip() + "\n", "en", key=f"{novel['key']} {number}")


@corpus(
    tags="text prose long",
    licence="text public domain, reader GPL-2+",
    terms="free",
    download_mb=3,
    minimum_records=1,
    core="bible-kjv-text bible-kjv",
)
def kjv_bible(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """King James Bible as one document of 4.3 MB"""
    reader = cache.file("bible-kjv", "/usr/bin/bible")
    data = cache.file("bible-kjv-text", "/bible.data").parent
    command = [str(reader), "-l100000", "-p", str(data), "ge1:1-rev22:21"]
    try:
        text = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_BIBLE_TIMEOUT_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise CorporaError(
            f"the `bible` program out of the package bible-kjv does not run here: {error}; "
            f"it needs libreadline8 (`apt-get install libreadline8`) and this machine's architecture"
        ) from error
    yield document(text.decode("utf-8", "replace").strip(), "en")


@corpus(
    tags="text prose",
    licence="text public domain, reader GPL-2+",
    terms="free",
    download_mb=3,
    minimum_records=1_189,
    core="bible-kjv-text bible-kjv",
)
def kjv_bible_chapters(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """King James Bible by chapter, about 3.6 kB each"""
    for book in kjv_bible(cache, this):
        # A heading ("1 Samuel 3") is the only kind of line that is not indented.
        for chapter in re.split(r"\n+(?=\S)", book["text"]):
            heading, _, verses = chapter.partition("\n")
            text = heading.strip() + "\n" + re.sub(r"^ +", "", verses, flags=re.M)
            yield document(text.rstrip() + "\n", "en", key=heading.strip())


@corpus(
    tags="text prose multilingual",
    licence="public domain",
    terms="free",
    download_mb=3,
    minimum_records=1_189,
    core="sword-text-sparv",
)
def reina_valera_chapters(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """the Bible in Spanish (Reina-Valera 1909) by chapter"""
    folder = cache.file("sword-text-sparv", "/ot.bzz").parent
    book, heading, verses = "", "", list[str]()

    def chapter() -> Record:
        lines = (f"{number} {verse}" for number, verse in enumerate(verses, 1) if verse)
        return document("\n".join([heading, *lines]) + "\n", "es", key=heading)

    for testament in ("ot", "nt"):
        for entry in sword_entries(folder, testament):
            title = re.search(r'<title level="1" type="main">(.*?)</title>', entry)
            start = re.search(r'<chapter n="(\d+)"', entry)
            if title or start:
                if verses:
                    yield chapter()
                book = title[1] if title else book
                heading, verses = f"{book} {start[1]}" if start else "", []
            elif heading:
                verses.append(" ".join(markup_to_text(entry).split()))
        if verses:
            yield chapter()
        heading, verses = "", []


@corpus(
    tags="text prose",
    licence="text public domain, markup GPL-2+",
    terms="local",
    download_mb=31,
    minimum_records=75_000,
    core="stardict-xmlittre",
)
def littre_fr(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Littre's French dictionary, entries from 10 B to 115 kB"""
    index = cache.file("stardict-xmlittre", ".idx")
    articles, entries = gzip.decompress(index.with_suffix(".dict.dz").read_bytes()), index.read_bytes()
    at, seen = 0, set[int]()
    while at < len(entries):
        name_end = entries.index(b"\0", at)
        start, size = struct.unpack_from(">II", entries, name_end + 1)
        at = name_end + 9
        if start not in seen:  # several headwords may share an article
            seen.add(start)
            article = articles[start : start + size].decode("utf-8", "replace")
            yield document(re.sub(r"<[^>]+>", "", article), "fr")
