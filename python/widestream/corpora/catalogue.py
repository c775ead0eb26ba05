"""Which corpora there are: names, tags, packages, licences and the function that reads each."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from widestream.corpora.errors import CorporaError
from widestream.corpora.packages import PackageCache

Record = dict[str, Any]
Converter = Callable[[PackageCache, "Corpus"], Iterator[Record]]

_CONVERTER_MODULES = ("whole_files", "short_texts", "prose", "proofs")


@dataclass(frozen=True)
class Corpus:
    """One corpus and how to make it out of Debian packages.

    A package written `a|b` has two names in two Debian releases; the first one that apt offers is
    taken. `core` packages are needed, `extra` ones add records where they are there.
    """

    name: str
    summary: str
    tags: tuple[str, ...]
    licence: str
    # What may be done with samples of the text: "free" (redistribute with the notice), "share-alike"
    # (in a folder of its own under the same licence) or "local" (convert it, redistribute nothing).
    terms: str
    download_mb: int
    minimum_records: int
    core: tuple[str, ...]
    extra: tuple[str, ...]
    convert: Converter = field(repr=False, compare=False)


_CORPORA: dict[str, Corpus] = {}


def corpus(
    *,
    tags: str,
    licence: str,
    terms: str,
    download_mb: int,
    minimum_records: int,
    core: str,
    extra: str = "",
) -> Callable[[Converter], Converter]:
    """Register a converter under its function name, with its docstring as the summary.

    `minimum_records` is what the core packages must give at least: counts differ a little between
    Debian releases, and a layout that changed shows as a count that collapses.
    """

    def register(convert: Converter) -> Converter:
        name = convert.__name__
        if name in _CORPORA:
            raise ValueError(f"two corpora are named {name!r}")
        _CORPORA[name] = Corpus(
            name=name,
            summary=(convert.__doc__ or "").strip(),
            tags=tuple(tags.split()),
            licence=licence,
            terms=terms,
            download_mb=download_mb,
            minimum_records=minimum_records,
            core=tuple(core.split()),
            extra=tuple(extra.split()),
            convert=convert,
        )
        return convert

    return register


def corpora() -> dict[str, Corpus]:
    """All corpora by name, in the order of their modules."""
    for module in _CONVERTER_MODULES:
        importlib.import_module(f"widestream.corpora.{module}")
    return dict(_CORPORA)


@dataclass(frozen=True)
class Choice:
    """A corpus that was asked for, and which of its packages."""

    corpus: Corpus
    core_only: bool

    @property
    def packages(self) -> tuple[str, ...]:
        return self.corpus.core if self.core_only else self.corpus.core + self.corpus.extra


def select(names: Iterable[str]) -> list[Choice]:
    """The corpora that names, tags and "all" stand for, each once.

    The tag "ci" takes only the core packages of a corpus; its name or another tag takes all.
    Raises CorporaError for an unknown name, with the nearest known ones.
    """
    known = corpora()
    core_only: dict[str, bool] = {}
    for name in names:
        hits = [c.name for c in known.values() if name in (c.name, "all", *c.tags)]
        if not hits:
            choices = sorted({"all", *known, *(tag for c in known.values() for tag in c.tags)})
            near = difflib.get_close_matches(name, choices, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(choices)}"
            raise CorporaError(f"no corpus or tag is named {name!r}; {hint}")
        for hit in hits:
            core_only[hit] = core_only.get(hit, True) and name == "ci"
    return [Choice(known[name], core) for name, core in core_only.items()]
