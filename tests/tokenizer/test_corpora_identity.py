"""Ids of real corpora are those of released tiktoken (r50k, cl100k, o200k) and tokenizers (Llama 3, Qwen 3).

They lie in $WIDESTREAM_CORPORA, as ``widestream fetch`` leaves them. 60 MB a family out of what is there take about two
minutes on two cores for all families; the full set, of all corpora, a quarter of an hour.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tokenizer.families import Family, bring_fastokens, check_texts, make_family

MEGABYTES = 60
NAMES = ["r50k", "cl100k", "o200k", "llama3", "qwen3"]

pytestmark = [
    pytest.mark.corpora,
    pytest.mark.skipif("WIDESTREAM_CORPORA" not in os.environ, reason="WIDESTREAM_CORPORA is not set"),
]


def make(name: str, folder: Path) -> Family:
    """With those released tokenizers that take minutes, not an hour."""
    made = make_family(name, folder, small=False)
    slower = "tiktoken" if name in ("llama3", "qwen3") else "tokenizers"
    peers = {peer: encode for peer, encode in made.peers.items() if not peer.startswith(slower)}
    assert peers
    return dataclasses.replace(made, peers=peers)


def sizes() -> dict[Path, int]:
    """Bytes of text of each corpus, the smallest first."""
    folder = Path(os.environ["WIDESTREAM_CORPORA"])
    found = {}
    for manifest in folder.glob("*.json"):
        facts = json.loads(manifest.read_text(encoding="utf-8"))
        found[folder / f"{manifest.stem}.jsonl.gz"] = int(facts["text_bytes"])
    assert found, f"no corpora in {folder}: widestream fetch ci --out {folder}"
    return dict(sorted(found.items(), key=lambda item: item[1]))


def texts_of(path: Path, most_bytes: int) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            text = json.loads(line)["text"]
            most_bytes -= len(text.encode())
            yield text
            if most_bytes <= 0:
                return


def shares(total_bytes: int) -> dict[Path, int]:
    """Of each corpus as many bytes as of any other, or all it has."""
    result = {}
    left = total_bytes
    found = sizes()
    for done, (path, size) in enumerate(found.items()):
        result[path] = min(size, left // (len(found) - done))
        left -= result[path]
    return result


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_sixty_megabytes_give_the_ids_of_released_tokenizers(name: str, tmp_path: Path) -> None:
    family = make(name, tmp_path)
    asked = shares(MEGABYTES * 1_000_000)
    assert sum(asked.values()) >= 0.99 * MEGABYTES * 1_000_000, "widestream fetch ci brings more than that"
    for path, share in asked.items():
        texts, ids = check_texts(family, texts_of(path, share))
        assert texts > 0 and ids > share // 20


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", NAMES)
def test_all_corpora_give_the_ids_of_released_tokenizers(name: str, tmp_path: Path) -> None:
    bring_fastokens()
    family = make(name, tmp_path)
    for path, size in sizes().items():
        texts, ids = check_texts(family, texts_of(path, size + 1))
        print(f"{family.name}, {path.stem}: {texts} texts, {size / 1e6:.1f} MB, {ids} ids, {', '.join(family.peers)}")
        assert texts > 0 and ids > size // 20
