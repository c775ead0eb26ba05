"""The data and the tokenizer of examples/quickstart are what their pages say."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "quickstart"
TOKENIZER = EXAMPLE / "tokenizers" / "fixture_bpe_4096.json"
SOURCES: dict[str, Any] = json.loads((EXAMPLE / "data" / "PROVENANCE.json").read_text(encoding="utf-8"))["sources"]


def script(name: str) -> ModuleType:
    """A recipe of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_six_sources_of_four_kinds_and_four_formats() -> None:
    kinds = {source["kind"] for source in SOURCES.values()}
    assert len(SOURCES) >= 6
    assert {"prose", "code", "question and answer", "proofs", "another language"} <= kinds
    names = [name for source in SOURCES.values() for name in source["files"]]
    assert {name.partition(".")[2] for name in names} == {"parquet", "jsonl", "jsonl.gz", "jsonl.zst"}


@pytest.mark.parametrize("name", SOURCES)
def test_files_are_those_of_the_provenance(name: str) -> None:
    folder, source = EXAMPLE / "data" / name, SOURCES[name]
    assert {path.name for path in folder.iterdir()} == {*source["files"], "NOTICE"}
    for file, facts in source["files"].items():
        data = (folder / file).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["bytes"], facts["sha256"])
    assert source["package"].split()[0] in (folder / "NOTICE").read_text(encoding="utf-8")


def test_texts_are_sound_and_in_one_source_only() -> None:
    texts = script("train_tokenizer").texts
    owner: dict[str, str] = {}
    for name, source in SOURCES.items():
        found = list(texts(EXAMPLE / "data" / name))
        assert len(found) == source["records"]
        assert sum(len(text.encode()) for text in found) == source["text_bytes"]
        for text in found:
            assert text.strip()
            assert owner.setdefault(text, name) == name
        assert len(set(found)) == len(found)


def test_the_job_names_these_sources_and_files() -> None:
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text(encoding="utf-8"))
    assert {source["name"] for source in job["sources"]} == set(SOURCES)
    for source in job["sources"]:
        found = {path.name for path in EXAMPLE.glob(source["path"])}
        assert found == set(SOURCES[source["name"]]["files"])
    for stage in job["mixture"]["stages"]:
        assert set(stage["weights"]) == set(SOURCES)
        assert sum(stage["weights"].values()) == pytest.approx(1.0)


def test_tokenizer_has_its_layout_and_gives_texts_back() -> None:
    layout = json.loads(TOKENIZER.read_text(encoding="utf-8"))
    assert layout["normalizer"] is None
    assert layout["pre_tokenizer"] == {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    assert [(t["content"], t["id"], t["special"]) for t in layout["added_tokens"]] == [("<|endoftext|>", 0, True)]
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    assert tokenizer.get_vocab_size() == 4096
    for text in (
        "It is a truth universally acknowledged",
        "func main() {\n\treturn\n}",
        "\u00bf\u6c34\U0001f40b\0",
    ):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_training_a_tokenizer_is_deterministic(tmp_path: Path) -> None:
    train = script("train_tokenizer").train
    first, second = (train(EXAMPLE / "data" / "questions", 600).to_str() for _ in range(2))
    assert first == second
    assert len(json.loads(first)["model"]["vocab"]) == 600


@pytest.mark.full
@pytest.mark.timeout(900)
def test_the_recipe_gives_the_committed_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, out = script("train_tokenizer"), tmp_path / "made.json"
    monkeypatch.setattr(sys, "argv", ["train_tokenizer.py", "--out", str(out)])
    assert module.main() == 0
    assert out.read_bytes() == TOKENIZER.read_bytes()


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.corpora
def test_the_recipe_gives_the_committed_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, out = script("make_fixture"), tmp_path / "data"
    arguments = ["make_fixture.py", "--cache", str(tmp_path / "cache"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert module.main() == 0
    made = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    kept = EXAMPLE / "data"
    assert made == {path.relative_to(kept): path.read_bytes() for path in kept.rglob("*") if path.is_file()}
