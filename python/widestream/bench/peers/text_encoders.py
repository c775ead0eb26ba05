"""Released tokenizers as functions from texts to ids, each by its fastest call: the peers of ``bench tokenizer``."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

# texts -> (ids of all, ids of each text)
Encoder = Callable[[list[str]], tuple[Any, list[int]]]

# As the packages publish them; possessive quantifiers and the like do not change matches.
PATTERNS = {
    "r50k": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": (
        r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
    ),
    "o200k": "|".join(
        [
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
            r"""\p{N}{1,3}""",
            r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""",
            r"""\s*[\r\n]+""",
            r"""\s+(?!\S)""",
            r"""\s+""",
        ]
    ),
}
_CALLED_TEXTS = 64


def peers(family: str, file: str) -> dict[str, Encoder]:
    """The released tokenizers that are installed and read this file, by name and version."""
    makers = (
        {"tiktoken": _tiktoken, "fastokens": _fastokens_ranks}
        if file.endswith(".tiktoken")
        else {"tokenizers": _tokenizers, "fastokens": _fastokens_json}
    )
    found = {}
    for package, make in makers.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
        found[f"{package} {version}"] = make(family, file)
    return found


def ranks(file: str) -> dict[bytes, int]:
    lines = Path(file).read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}


def _tiktoken(family: str, file: str) -> Encoder:
    import tiktoken

    encoding = tiktoken.Encoding(family, pat_str=PATTERNS[family], mergeable_ranks=ranks(file), special_tokens={})

    def encode(texts: list[str]) -> tuple[Any, list[int]]:
        parts = [encoding.encode_to_numpy(text, disallowed_special=()) for text in texts]
        return np.concatenate(parts), [len(part) for part in parts]

    return encode


def _tokenizers(family: str, file: str) -> Encoder:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.encode_special_tokens = True

    def encode(texts: list[str]) -> tuple[Any, list[int]]:
        parts: list[list[int]] = []
        for begin in range(0, len(texts), _CALLED_TEXTS):
            some = tokenizer.encode_batch_fast(texts[begin : begin + _CALLED_TEXTS], add_special_tokens=False)
            parts += [one.ids for one in some]
        return np.array([id for part in parts for id in part], dtype=np.uint32), [len(part) for part in parts]

    return encode


def _fastokens_ranks(family: str, file: str) -> Encoder:
    """By the preset where the package has one, r50k as the tokenizer.json of GPT-2: its own fast paths.

    The published patterns, given as text, take a slow path in it (three times slower for cl100k in 0.3.5).
    """
    import fastokens

    if family == "r50k":
        return _flat(fastokens.Tokenizer.from_json_str(_gpt2_json(ranks(file))))
    return _flat(fastokens.Tokenizer.from_tiktoken(file, encoding=f"{family}_base", special_tokens={}))


def _gpt2_json(known: dict[bytes, int]) -> str:
    """A tokenizer.json of a rank vocabulary: the pair that makes each token is what its bytes merge to before it."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(rest)}

    def drawn(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    merges = []
    for token, own_rank in sorted(known.items(), key=lambda item: item[1]):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [known.get(a + b, own_rank) for a, b in itertools.pairwise(parts)]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append([drawn(parts[0]), drawn(parts[1])])
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {drawn(token): rank for token, rank in known.items()},
        "merges": merges,
    }
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": model,
        }
    )


def _fastokens_json(family: str, file: str) -> Encoder:
    import fastokens

    return _flat(fastokens.Tokenizer.from_file(file))


def _flat(tokenizer: Any) -> Encoder:
    def encode(texts: list[str]) -> tuple[Any, list[int]]:
        ids, offsets = tokenizer.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64)).tolist()

    return encode
