"""Corpora in which one file of a package is one document: code and documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from widestream.corpora.catalogue import Corpus, Record, corpus
from widestream.corpora.packages import PackageCache
from widestream.corpora.readers import document, read_text


def _documents(cache: PackageCache, this: Corpus, suffixes: tuple[str, ...], lang: str) -> Iterator[Record]:
    for path in cache.files(this.core + this.extra, *suffixes):
        yield document(read_text(path), lang, path=path.relative_to(cache.trees).as_posix())


def _documents_by_path(cache: PackageCache, this: Corpus, suffixes: tuple[str, ...], pattern: str) -> Iterator[Record]:
    """Only the paths that match; the language is group 1, or English where it is empty."""
    for path in cache.files(this.core + this.extra, *suffixes):
        inside = path.relative_to(cache.trees).as_posix()
        found = re.search(pattern, inside)
        if found:
            yield document(read_text(path), found[1] or "en", path=inside)


@corpus(
    tags="text ci code",
    licence="BSD-3-Clause",
    terms="free",
    download_mb=18,
    minimum_records=8_000,
    core="golang-1.19-src|golang-1.24-src",
)
def code_go(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Go toolchain sources"""
    return _documents(cache, this, (".go",), "go")


@corpus(
    tags="text ci code",
    licence="BSD-3-Clause (SymPy, scikits), PSF-2.0 (standard library)",
    terms="free",
    download_mb=29,
    minimum_records=1_300,
    core="python3-sympy",
    extra="libpython3.11-stdlib|libpython3.13-stdlib python3-skimage python3-sklearn",
)
def code_python(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Python sources: SymPy, standard library, scikits"""
    return _documents(cache, this, (".py",), "python")


@corpus(
    tags="text code",
    licence="MIT or Apache-2.0, vendored crates vary",
    terms="local",
    download_mb=18,
    minimum_records=10_000,
    core="rust-src",
)
def code_rust(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Rust sources; the library/ part is free"""
    return _documents(cache, this, (".rs",), "rust")


@corpus(
    tags="text prose",
    licence="PSF-2.0",
    terms="free",
    download_mb=13,
    minimum_records=450,
    core="python3.11-doc|python3.13-doc",
)
def pydoc_rst(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Python documentation, reStructuredText"""
    return _documents(cache, this, (".rst.txt",), "en")


@corpus(
    tags="text prose",
    licence="Artistic or GPL-1+",
    terms="share-alike",
    download_mb=8,
    minimum_records=180,
    core="perl-doc",
)
def perl_pod(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Perl manual, POD"""
    return _documents(cache, this, (".pod",), "en")


@corpus(
    tags="text prose multilingual",
    licence="GPL-2",
    terms="share-alike",
    download_mb=37,
    minimum_records=4_500,
    core="linux-doc-6.1|linux-doc-6.12",
)
def linux_doc_rst(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Linux kernel documentation, 6 languages"""
    return _documents_by_path(cache, this, (".rst.gz", ".txt.gz"), r"/Documentation/(?:translations/(\w+)/)?")


@corpus(
    tags="text ci prose multilingual long",
    licence="GPL-2+",
    terms="share-alike",
    download_mb=18,
    minimum_records=2,
    core="debian-reference-en debian-reference-ja",
    extra=" ".join(f"debian-reference-{x}" for x in ["de", "es", "fr", "id", "it", "pt", "zh-cn", "zh-tw"]),
)
def debian_reference_books(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """Debian Reference: 10 languages, a book of about 1 MB each"""
    return _documents_by_path(cache, this, (".txt.gz",), r"/debian-reference\.([\w-]+)\.")


@corpus(
    tags="text prose multilingual",
    licence="mixed free, per file",
    terms="local",
    download_mb=26,
    minimum_records=500,
    core="manpages",
    extra=" ".join(f"manpages-{x}" for x in ["dev", "ja", "ja-dev", "de", "fr", "es", "ru", "zh", "pl", "tr", "uk"]),
)
def manpages_roff(cache: PackageCache, this: Corpus) -> Iterator[Record]:
    """manual pages as roff source, 11 languages"""
    return _documents_by_path(cache, this, (".gz",), r"/share/man/(?:([a-z]{2}(?:_[A-Z]+)?)[./].*)?man\d")
