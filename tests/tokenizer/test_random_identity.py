"""Ids of random texts are those of released tiktoken, tokenizers and fastokens, for every family.

The full set is 1,000,000 texts a family: it takes about ten minutes on two cores, and brings fastokens into a folder of
its own where the environment has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tokenizers.normalizers import NFC

from tests.tokenizer.families import FAMILIES, Family, bring_fastokens, check_texts, make_family
from tests.tokenizer.random_text import BAD_BYTES, CLASSES, random_bytes, random_texts

FEW = 3000
FEW_BYTES = 1500
MANY = 1_000_000
MANY_BYTES = 100_000


# Private use, of class "other" like a byte that is not UTF-8; random_bytes has none of them.
PLACEHOLDER = 0x10F000


def words_of(family: Family, data: bytes) -> Iterator[bytes]:
    """The words of bytes, normalized where the family does: each bad byte is one character of no class, as documented."""
    text, rest = "", data
    while rest:
        try:
            text += rest.decode()
            break
        except UnicodeDecodeError as error:
            text += rest[: error.start].decode() + chr(PLACEHOLDER + rest[error.start])
            rest = rest[error.start + 1 :]
    pieces = [NFC().normalize_str(text) if family.normalizes else text]
    for split in family.splits:
        pieces = [word for piece in pieces for word, _ in split.pre_tokenize_str(piece)]
    for word in pieces:
        yield b"".join(
            bytes([ord(c) - PLACEHOLDER]) if PLACEHOLDER <= ord(c) < PLACEHOLDER + 256 else c.encode() for c in word
        )


def check_bytes(family: Family, texts: Iterable[bytes]) -> int:
    known: dict[bytes, list[int]] = {}
    seen = 0
    for data in texts:
        if any(PLACEHOLDER <= ord(c) < PLACEHOLDER + 256 for c in data.decode(errors="ignore")):
            continue
        seen += 1
        expected: list[int] = []
        words = list(words_of(family, data))
        for word in words:
            if word not in known:
                known[word] = family.merge_word(word)
            expected += known[word]
        found = family.ours.encode(data)
        assert found.tolist() == expected, f"{family.name}: ids of {data!r}"
        assert family.ours.decode_bytes(found) == b"".join(words) and family.ours.count(data) == len(expected)
    return seen


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return make_family(request.param, tmp_path_factory.mktemp("family"), small=True)


def test_texts_are_the_same_for_a_seed_and_of_every_class() -> None:
    texts = list(random_texts(3, 5000))
    assert texts == list(random_texts(3, 5000)) and texts != list(random_texts(4, 5000))
    joined = "".join(texts)
    for part in ("\r\n", "'\u017f", "\u200d", "\U0001f1e6", "\ue000", "\u0378", "\ufe0f\u20e3", "\t", "\u0301"):
        assert part in joined or len(part) == 1
    assert sum(0xE000 <= ord(c) < 0xF900 for c in joined) > 100 and len(CLASSES) == 13
    data = b"".join(random_bytes(3, 2000))
    assert all(bad in data for bad in BAD_BYTES)


def test_random_texts_give_the_ids_of_released_tokenizers(family: Family) -> None:
    assert family.peers
    assert check_texts(family, random_texts(FAMILIES.index(family.name), FEW))[0] == FEW


def test_random_bytes_give_the_ids_of_the_documented_rule(family: Family) -> None:
    texts = random_bytes(FAMILIES.index(family.name), FEW_BYTES)
    assert check_bytes(family, texts) > FEW_BYTES // 2


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_million_random_texts_give_the_ids_of_released_tokenizers(name: str, tmp_path: Path) -> None:
    bring_fastokens()
    family = make_family(name, tmp_path, small=False)
    print(f"{name}: {', '.join(family.peers)}{', another vocabulary' if family.substitute else ''}")
    assert check_texts(family, random_texts(100 + FAMILIES.index(name), MANY))[0] == MANY
    texts = random_bytes(100 + FAMILIES.index(name), MANY_BYTES)
    assert check_bytes(family, texts) > MANY_BYTES // 2
