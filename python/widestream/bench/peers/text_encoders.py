"""Released tokenizers as functions from texts to ids, each by its fastest call: the peers of ``bench tokenizer``."""

from __future__ import annotations

import base64
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
    import fastokens

    return _flat(fastokens.Tokenizer.from_tiktoken(file, pattern=PATTERNS[family], special_tokens={}))


def _fastokens_json(family: str, file: str) -> Encoder:
    import fastokens

    return _flat(fastokens.Tokenizer.from_file(file))


def _flat(tokenizer: Any) -> Encoder:
    def encode(texts: list[str]) -> tuple[Any, list[int]]:
        ids, offsets = tokenizer.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64)).tolist()

    return encode
