"""Token ids are equal to those of the released tiktoken and tokenizers, whatever the text.

Each case is a pair: our tokenizer and an oracle that gives ids for a str. Text that is not UTF-8 has no
oracle in those libraries, so its words come from the regex of the pattern, run over a text in which each bad
byte is a private-use character (class "other", as documented), and tiktoken merges the bytes of each word.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, trainers

from tests.tokenizer.families import (
    CL100K_JSON,
    CL100K_JSON_OLD,
    CL100K_PLAIN,
    CL100K_TIKTOKEN,
    DEEPSEEK3,
    END,
    GPT2_PLAIN,
    GPT2_TIKTOKEN,
    O200K,
    QWEN2,
    byte_alphabet,
    merges_of,
    p50k_ranks,
    read_ranks,
    vocabulary_path,
    write_ranks,
)
from widestream import errors
from widestream._core import Tokenizer

TRAINING_TEXT = """It is a truth universally acknowledged, that a single man in possession of a good fortune,
must be in want of a wife. However little known the feelings or views of such a man may be on his first
entering a neighbourhood, this truth is so well fixed in the minds of the surrounding families, that he is
considered the rightful property of some one or other of their daughters.
\u00c9tude \u4e2d\u6587 12345 67890 def f(x):\n\treturn x + 1\n"""

# Pieces that the patterns treat specially; random texts are made of them and of any code points.
HARD_PIECES = [
    *("'s", "'S", "'\u017f", "'ll", "'LL", "'lL", "'Ve", "'re", "'RE", "'d", "'T", "'M", "''", "'", "'l"),
    *(" ", "  ", "   ", "\t", "\n", "\r\n", "\r", " \n ", "\n\n", "\x0b", "\x0c", "\x1c", "\x1f"),
    *("\x00", "\x7f", "\xdf", "\u01c5", "\u02b0", "\xaa", "\u4e2d\u6587", "\u30ab\u30fb", "\u30a0", "\u3099", "\u309b"),
    *("\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u202f", "\u3000", "\u200b", "\u180e", "\ufeff"),
    *("a", "Z", "the", " hello", "World", "I", "\xe9", "e\u0301"),
    *("1", "12", "1234", "\xb2", "\xbd", "\u0663", "\u2167", "\u0967\u0968", "\U0001d7d8"),
    *("!", "...", '"', "-", "_", "$", "\u2014"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"),
    # Letters and numbers new in Unicode 15, 16 and 17; unassigned; private use; the last code point.
    *("\u1c89", "\ua7cb", "\ua7ce", "\U00010d40", "\U0001ccf0", "\U00011de0", "\U00011db0", "\U000143fa"),
    *("\u0378", "\U000e0001", "\ue000", "\U0010ffff"),
]


def byte_level(model: models.BPE, regex: str | None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    split = [] if regex is None else [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, own]) if split else own
    tokenizer.add_special_tokens([END])
    return tokenizer


@dataclass(frozen=True)
class Case:
    ours: Tokenizer
    oracle: Callable[[str], list[int]]
    merge_word: Callable[[bytes], list[int]] | None = None
    split: pre_tokenizers.Split | None = None
    normalize: Callable[[str], str] | None = None

    def check(self, text: str) -> None:
        found = self.ours.encode(text)
        assert found.dtype == np.uint32
        expected = self.oracle(text)
        if found.tolist() != expected:
            pytest.fail(f"ids of {text[:2000]!r}: found {found.tolist()[:500]}, expected {expected[:500]}")
        normalized = self.normalize(text) if self.normalize is not None else text
        assert self.ours.decode(found) == normalized.encode()


def tiktoken_case(
    file: str, tiktoken_pattern: str, plain_pattern: str, pattern: str = "", folder: Path | None = None
) -> Case:
    """`pattern` and `folder`: of another pattern than the file's own, for a copy without its last token."""
    path = vocabulary_path(file)
    if folder is not None:
        lines = path.read_bytes().splitlines(keepends=True)[:-1]
        path = folder / f"{pattern}-{file}"
        path.write_bytes(b"".join(lines))
    encoding = tiktoken.Encoding(
        file, pat_str=tiktoken_pattern, mergeable_ranks=read_ranks(path), special_tokens={END: 100300}
    )
    return Case(
        Tokenizer.from_file(str(path), pattern=pattern),
        encoding.encode_ordinary,
        encoding._encode_single_piece,
        pre_tokenizers.Split(tokenizers.Regex(plain_pattern), "isolated"),
    )


def json_case(tokenizer: tokenizers.Tokenizer, folder: Path, name: str) -> Case:
    path = folder / f"{name}.json"
    tokenizer.save(str(path))
    ours = Tokenizer.from_file(str(path))
    normalizer = tokenizer.normalizer
    return Case(
        ours,
        lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
        normalize=None if normalizer is None else normalizer.normalize_str,
    )


CASES = [
    *("r50k", "cl100k", "r50k-json", "cl100k-json", "cl100k-json-old"),
    *("trained-json", "ignore-merges-json", "o200k", "o200k-json", "qwen2-json", "deepseek3-json"),
]


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("tokenizers")
    alphabet = byte_alphabet()

    def drawn(token: bytes) -> str:
        return "".join(alphabet[b] for b in token)

    # The pattern and the vocabulary are independent of each other, so the smaller vocabulary serves both.
    ranks = read_ranks(vocabulary_path("r50k_base.tiktoken"))
    vocab = {drawn(token): rank for token, rank in ranks.items()}
    model = models.BPE(vocab=vocab, merges=[(drawn(a), drawn(b)) for a, b in merges_of(ranks)])
    trained = byte_level(models.BPE(), None)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    trained.train_from_iterator([TRAINING_TEXT], trainer)
    # Some tokens that no merge reaches, which only ignore_merges may use.
    unreachable = json.loads(trained.to_str())
    size = len(unreachable["model"]["vocab"])
    more = ["XYZ", "\u0120neighbourhoods", "q" * 20]
    unreachable["model"]["vocab"] |= {token: size + i for i, token in enumerate(more)}
    unreachable["model"]["ignore_merges"] = True
    ignoring = tokenizers.Tokenizer.from_str(json.dumps(unreachable))
    qwen2 = byte_level(model, QWEN2)
    qwen2.normalizer = normalizers.NFC()
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    deepseek3 = byte_level(model, None)
    splits = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in DEEPSEEK3]
    deepseek3.pre_tokenizer = pre_tokenizers.Sequence([*splits, own])
    return {
        "o200k": tiktoken_case("r50k_base.tiktoken", O200K, O200K, "o200k", folder),
        "o200k-json": json_case(byte_level(model, O200K), folder, "o200k"),
        "qwen2-json": json_case(qwen2, folder, "qwen2"),
        "deepseek3-json": json_case(deepseek3, folder, "deepseek3"),
        "r50k": tiktoken_case("r50k_base.tiktoken", GPT2_TIKTOKEN, GPT2_PLAIN),
        "cl100k": tiktoken_case("cl100k_base.tiktoken", CL100K_TIKTOKEN, CL100K_PLAIN),
        "r50k-json": json_case(byte_level(model, None), folder, "r50k"),
        "cl100k-json": json_case(byte_level(model, CL100K_JSON), folder, "cl100k"),
        "cl100k-json-old": json_case(byte_level(model, CL100K_JSON_OLD), folder, "cl100k_old"),
        "trained-json": json_case(trained, folder, "trained"),
        "ignore-merges-json": json_case(ignoring, folder, "ignoring"),
    }


def random_text(rng: random.Random, pieces: int) -> str:
    def any_character() -> str:
        high = rng.choice([0x80, 0x800, 0x3000, 0x20000, 0x110000])
        code_point = rng.randrange(high)
        return chr(code_point if not 0xD800 <= code_point < 0xE000 else 0x20)

    return "".join(rng.choice(HARD_PIECES) if rng.random() < 0.85 else any_character() for _ in range(pieces))


FIXTURE_TEXTS = [
    "",
    TRAINING_TEXT,
    TRAINING_TEXT.replace("\n", "\r\n") + "  \n\t ",
    "XYZ neighbourhoods XYZA qqqqqqqqqqqqqqqqqqqq",
    "if (a == b) {\n    return `\\u0041`;\n}\n\n\n",
    "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 \u043c\u0438\u0440",
    "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c\uff01 12\u6708 \u30c6\u30b9\u30c8",
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947",
    "a" * 5000 + " " * 5000 + "1" * 5000 + "\n" * 3000 + "\u4e2d" * 1000 + "ab" * 1000 + "!" * 3000,
]


@pytest.mark.parametrize("name", CASES)
def test_fixture_texts_give_the_same_ids(cases: dict[str, Case], name: str) -> None:
    for text in FIXTURE_TEXTS:
        cases[name].check(text)


@pytest.mark.parametrize("name", CASES)
def test_random_texts_of_hard_pieces_give_the_same_ids(cases: dict[str, Case], name: str) -> None:
    rng = random.Random(20240601)
    for pieces in range(1500):
        cases[name].check(random_text(rng, pieces % 25))


@pytest.mark.parametrize("name", CASES)
def test_every_code_point_gives_the_same_ids(cases: dict[str, Case], name: str) -> None:
    # Between a letter and a digit its class shows. A stride that is no power of two keeps this fast.
    step = 1 if name == "r50k" else 23
    code_points = [c for c in range(0, 0x110000, step) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(code_points), 8192):
        cases[name].check("".join(f"a{chr(c)}1" for c in code_points[start : start + 8192]))


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_gives_the_same_ids(cases: dict[str, Case], text: str) -> None:
    for case in cases.values():
        case.check(text)


def expected_ids_of_bytes(case: Case, data: bytes) -> list[int]:
    """The documented policy: a byte outside well-formed UTF-8 is one character of class "other"."""
    assert case.merge_word is not None and case.split is not None
    text, placeholder = "", 0x10FF00  # private use, planes that the random bytes do not reach
    rest = data
    while rest:
        try:
            text += rest.decode()
            break
        except UnicodeDecodeError as error:
            text += rest[: error.start].decode() + chr(placeholder + rest[error.start])
            rest = rest[error.start + 1 :]
    ids: list[int] = []
    for word, _ in case.split.pre_tokenize_str(text):
        raw = b"".join(bytes([ord(c) - placeholder]) if ord(c) >= placeholder else c.encode() for c in word)
        ids += case.merge_word(raw)
    return ids


@pytest.mark.parametrize("name", ["r50k", "cl100k"])
def test_bytes_that_are_not_utf8_follow_the_documented_rule(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    rng = random.Random(7)
    good = [piece.encode() for piece in HARD_PIECES[:-1]]
    bad = [b"\x80", b"\xbf", b"\xc0\xaf", b"\xe2\x82", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80"]
    for _ in range(2000):
        parts = [rng.choice(bad if rng.random() < 0.3 else good) for _ in range(12)]
        data = b"".join(parts) if rng.random() < 0.7 else rng.randbytes(rng.randrange(30))
        if b"\xf4\x8f" in data:
            continue  # the placeholders' own plane
        found = case.ours.encode(data)
        assert found.tolist() == expected_ids_of_bytes(case, data), data
        assert case.ours.decode(found) == data


def test_special_tokens_have_ids_and_never_come_from_text(cases: dict[str, Case]) -> None:
    assert cases["r50k"].ours.special_token_id(END) == 50256
    assert cases["r50k"].ours.vocabulary_size == 50257
    cl100k = cases["cl100k"].ours
    names = [END, "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|endofprompt|>"]
    assert [cl100k.special_token_id(name) for name in names] == [100257, 100258, 100259, 100260, 100276]
    assert cl100k.special_token_id("<|nothing|>") is None
    assert cl100k.vocabulary_size == 100277
    assert 100257 not in cl100k.encode(END)
    assert cl100k.decode(np.array([100257], np.uint32)) == END.encode()
    with pytest.raises(errors.InvalidArgumentError, match="id 100256 at position 1"):
        cl100k.decode(np.array([5, 100256], np.uint32))
    with pytest.raises(TypeError):  # an id of 2**32 + 5 would become 5
        cl100k.decode(np.array([5], np.int64))


def test_a_batch_gives_the_ids_of_its_texts(cases: dict[str, Case]) -> None:
    ours = cases["cl100k"].ours
    texts: list[str | bytes] = ["Hello world", "", b"\xff bytes", TRAINING_TEXT]
    ids, offsets = ours.encode_batch(texts)
    assert offsets.tolist()[0] == 0 and len(offsets) == len(texts) + 1
    for i, text in enumerate(texts):
        assert ids[offsets[i] : offsets[i + 1]].tolist() == ours.encode(text).tolist()
    with pytest.raises(TypeError, match="str or bytes"):
        ours.encode_batch([3])  # type: ignore[list-item]
    with pytest.raises(UnicodeEncodeError):
        ours.encode("\ud800")


def test_errors_are_also_the_builtin_ones(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        Tokenizer.from_file(str(tmp_path / "none.tiktoken"))
    assert isinstance(missing.value, errors.NotFoundError)
    file = tmp_path / "small.tiktoken"
    file.write_bytes(b"".join(base64.b64encode(bytes([b])) + f" {b}\n".encode() for b in range(256)))
    with pytest.raises(ValueError, match=r'give the pattern .* "gpt2".* "cl100k"') as unknown:
        Tokenizer.from_file(str(file))
    assert isinstance(unknown.value, errors.WidestreamError)
    assert Tokenizer.from_file(file, pattern="gpt2").encode("az").tolist() == [97, 122]
    with pytest.raises(errors.InvalidArgumentError, match="r50k_base, whose pattern"):
        Tokenizer.from_file(str(vocabulary_path("r50k_base.tiktoken")), pattern="cl100k")


def test_p50k_is_known_by_its_content(tmp_path: Path) -> None:
    ranks = p50k_ranks(read_ranks(vocabulary_path("r50k_base.tiktoken")))
    file = tmp_path / "p50k_base.tiktoken"
    write_ranks(ranks, file)
    published = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"  # which tiktoken pins
    assert hashlib.sha256(file.read_bytes()).hexdigest() == published
    ours = Tokenizer.from_file(str(file))
    assert ours.vocabulary_size == 50281 and ours.special_token_id(END) == 50256
    assert ours.encode("x" + " " * 25 + "\n").tolist() == [87, 50280, 198]
    assert ours.decode(np.array([50256, 50280], ours.encode("").dtype)) == END.encode() + b" " * 25
    # The same gap in another file is damage.
    ranks[b" " * 26] = ranks.pop(b" " * 25)
    write_ranks(ranks, file)
    with pytest.raises(errors.InvalidArgumentError, match="no line has rank 50256 though line 50280 has rank 50280"):
        Tokenizer.from_file(str(file), pattern="gpt2")
