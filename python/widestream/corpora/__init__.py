"""The demonstration corpora: real text out of ordinary Debian packages.

    for corpus in list_corpora(): ...                     # what there is, with licences
    fetch(["ci"], Path("cache"), Path("corpora"), print_progress)

A name is a corpus, a tag ("ci", "prose", "code", "qa", ...) or "all". `fetch` downloads packages with
`apt-get download`, unpacks them without installing anything, and writes one `NAME.jsonl.gz` a corpus
with a manifest beside it. Records hold id, source, lang, bytes and text, and by kind: prompt and answer,
key (the same in all translations of a passage), path. The same packages give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from widestream.corpora.catalogue import Corpus, select
from widestream.corpora.errors import CorporaError
from widestream.corpora.packages import PackageCache
from widestream.corpora.store import FetchedCorpus, verified, write_corpus

__all__ = ["CorporaError", "Corpus", "FetchProgress", "FetchedCorpus", "fetch", "list_corpora"]


@dataclass(frozen=True)
class FetchProgress:
    """One step of a fetch: package or corpus number `done` of `total` is worked on."""

    phase: str  # "packages" or "corpora"
    done: int
    total: int
    message: str


def list_corpora(names: Iterable[str] = ("all",)) -> list[Corpus]:
    """The corpora that names or tags stand for; raises CorporaError for an unknown one."""
    return [choice.corpus for choice in select(names)]


def fetch(
    names: Iterable[str],
    cache_dir: Path,
    out_dir: Path,
    progress: Callable[[FetchProgress], None] | None = None,
    *,
    force: bool = False,
) -> list[FetchedCorpus]:
    """Download, unpack and convert corpora; verify each and return them in the order of the catalogue.

    `cache_dir` keeps packages between calls, `out_dir` gets NAME.jsonl.gz and NAME.json. A corpus that is
    there, unchanged and made of the same packages, is not made again unless `force` is set.

    Raises CorporaError at once for an unknown name, and at the end, when everything that works is done,
    for what failed; its `failures` names each.
    """
    choices = select(names)
    report = progress or (lambda event: None)
    cache = PackageCache(cache_dir)
    try:
        cache.root.mkdir(parents=True, exist_ok=True)
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CorporaError(f"cannot make the folders {cache_dir} and {out_dir}: {error}") from error

    failed_packages: dict[str, str] = {}
    specs = list(dict.fromkeys(spec for choice in choices for spec in choice.packages))
    for i, spec in enumerate(specs, 1):

        def report_package(message: str, number: int = i) -> None:
            report(FetchProgress("packages", number, len(specs), message))

        try:
            package = cache.fetch(spec, report_package)
            report_package(f"{package} {cache.version(package)} is there")
        except CorporaError as error:
            failed_packages[spec] = str(error)
        except OSError as error:
            failed_packages[spec] = f"package {spec}: cannot be kept in {cache.root}: {error}"

    fetched: list[FetchedCorpus] = []
    failures = list(failed_packages.values())
    for i, choice in enumerate(choices, 1):

        def report_corpus(message: str, number: int = i) -> None:
            report(FetchProgress("corpora", number, len(choices), message))

        if any(spec in failed_packages for spec in choice.corpus.core):
            continue  # the package's message is already among the failures
        try:
            done = None if force else verified(choice, cache, out_dir)
            if done is None:
                done = write_corpus(choice, cache, out_dir, report_corpus)
            report_corpus(f"{done.name}: {done.records:,} records, {done.text_bytes / 1e6:.1f} MB of text")
            fetched.append(done)
        except CorporaError as error:
            failures.append(str(error))
        except OSError as error:
            failures.append(f"corpus {choice.corpus.name}: cannot be written to {out_dir}: {error}")
    if failures:
        unique = tuple(dict.fromkeys(failures))
        raise CorporaError(f"{len(unique)} of the downloads or conversions failed: " + "; ".join(unique), unique)
    return fetched
