"""Fetching: packages through a stand-in for apt, conversion, verification, and what goes wrong."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.corpora.packages_support import FakeApt
from widestream.corpora import CorporaError, FetchProgress, catalogue, fetch
from widestream.corpora.catalogue import Corpus
from widestream.corpora.packages import PackageCache

FILES = {"a.txt": "one", "b.txt": "two", "c.txt": "one", "d.txt": " \n", "e.txt": "trois \u00e9"}


def _convert(cache: PackageCache, this: Corpus) -> Iterator[dict[str, Any]]:
    for path in cache.files(this.core + this.extra, ".txt"):
        yield {"lang": "en", "text": path.read_text(encoding="utf-8")}


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeApt:
    """A package manager that offers "words", and the corpora "tiny" (of it) and "absent" (of none)."""
    catalogue.corpora()
    tiny = Corpus("tiny", "words", ("text", "ci"), "CC0", "free", 1, 3, ("old-words|words",), ("more",), _convert)
    absent = dataclasses.replace(tiny, name="absent", core=("nowhere",), extra=())
    monkeypatch.setattr(catalogue, "_CORPORA", {"tiny": tiny, "absent": absent})
    apt = FakeApt(tmp_path, monkeypatch)
    apt.offer("words", FILES)
    apt.offer("more", {"f.txt": "four"})
    return apt


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_fetch_downloads_converts_and_verifies(apt: FakeApt, tmp_path: Path) -> None:
    events: list[FetchProgress] = []
    (got,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out", events.append)
    assert records_of(got.path) == [
        {"id": "tiny-0000000", "source": "tiny", "bytes": 3, "lang": "en", "text": "one"},
        {"id": "tiny-0000001", "source": "tiny", "bytes": 3, "lang": "en", "text": "two"},
        {"id": "tiny-0000002", "source": "tiny", "bytes": 8, "lang": "en", "text": "trois \u00e9"},
        {"id": "tiny-0000003", "source": "tiny", "bytes": 4, "lang": "en", "text": "four"},
    ]
    assert (got.records, got.text_bytes, got.duplicates, got.languages) == (4, 18, 1, {"en": 4})
    assert got.packages == {"words": "1.0", "more": "1.0"}
    assert got.sha256 == hashlib.sha256(got.path.read_bytes()).hexdigest()
    assert {event.phase for event in events} == {"packages", "corpora"}
    assert all(1 <= event.done <= event.total for event in events)
    leftovers = [p for p in tmp_path.rglob("*") if "partial" in p.name]
    assert leftovers == []


def test_the_tag_ci_takes_core_packages_alone(apt: FakeApt, tmp_path: Path) -> None:
    apt.cut_network()
    with pytest.raises(CorporaError):
        fetch(["ci"], tmp_path / "cache", tmp_path / "out")
    assert apt.downloads == ["words"]


def test_the_same_packages_give_the_same_bytes(apt: FakeApt, tmp_path: Path) -> None:
    (first,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    (second,) = fetch(["tiny"], tmp_path / "cache2", tmp_path / "out2")
    assert first.path.read_bytes() == second.path.read_bytes()


def test_what_is_there_is_not_made_again(apt: FakeApt, tmp_path: Path) -> None:
    (first,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    inode = first.path.stat().st_ino
    (again,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    assert again == first
    assert again.path.stat().st_ino == inode
    assert apt.downloads == ["words", "more"]
    (forced,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out", force=True)
    assert forced == first
    assert forced.path.stat().st_ino != inode


@pytest.mark.parametrize("damage", ["cut", "gone", "manifest"])
def test_a_damaged_corpus_is_made_again(apt: FakeApt, tmp_path: Path, damage: str) -> None:
    (first,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    if damage == "cut":
        first.path.write_bytes(first.path.read_bytes()[:-5])
    elif damage == "gone":
        first.path.unlink()
    else:
        first.path.with_name("tiny.json").write_text('{"name": 5')
    (again,) = fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    assert again == first
    assert len(records_of(again.path)) == 4


def test_too_few_records_are_an_error_and_leave_nothing(apt: FakeApt, tmp_path: Path) -> None:
    apt.offer("old-words", {"a.txt": "only one"})
    with pytest.raises(CorporaError, match=r"corpus tiny: only 2 records .* expected at least 3"):
        fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_one_failure_does_not_keep_the_others_back(apt: FakeApt, tmp_path: Path) -> None:
    with pytest.raises(CorporaError, match=r"apt offers no package nowhere: run `apt-get update`") as caught:
        fetch(["absent", "tiny"], tmp_path / "cache", tmp_path / "out")
    assert len(caught.value.failures) == 1
    assert len(records_of(tmp_path / "out" / "tiny.jsonl.gz")) == 4


def test_no_network_says_so(apt: FakeApt, tmp_path: Path) -> None:
    apt.cut_network()
    with pytest.raises(CorporaError, match=r"Temporary failure resolving mirror; is there a network"):
        fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def test_a_changed_download_is_refused(apt: FakeApt, tmp_path: Path) -> None:
    fetch(["tiny"], tmp_path / "cache", tmp_path / "out")
    (deb,) = (tmp_path / "cache" / "debs").glob("words_*.deb")
    deb.write_bytes(deb.read_bytes()[:-1] + b"x")
    for path in sorted((tmp_path / "cache" / "tree").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    with pytest.raises(CorporaError, match=r"words_1.0_all.deb changed since it was downloaded; delete it"):
        fetch(["tiny"], tmp_path / "cache", tmp_path / "out")


def test_without_debian_it_says_what_to_do(apt: FakeApt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(CorporaError, match=r"need a Debian-based system; not found: apt-get, dpkg-deb\. The data"):
        fetch(["tiny"], tmp_path / "cache", tmp_path / "out")


def test_a_file_in_the_place_of_a_folder(apt: FakeApt, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(CorporaError, match="cannot make the folders"):
        fetch(["tiny"], tmp_path / "cache", tmp_path / "out")


@pytest.mark.corpora
def test_the_smallest_real_package(tmp_path: Path) -> None:
    (got,) = fetch(["maxima_qa"], tmp_path / "cache", tmp_path / "out")
    records = records_of(got.path)
    assert len(records) == got.records >= 11_500
    assert all(record["text"] == f"Q: {record['prompt']}\nA: {record['answer']}" for record in records)
