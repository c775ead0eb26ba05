"""Writes seed inputs for tokenizer_file_fuzz and, into a second folder, for tokenizer_differential_fuzz.

python fuzz/make_tokenizer_corpus.py FILE_FOLDER DIFFERENTIAL_FOLDER
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

SEPARATOR = b"\xff\x00\xff"
TEXT = "Hello world's ab  12345 \u00e9\u4e2d!\r\n\t ab".encode() + b"\xff\xe2\x82"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def tiktoken_file() -> bytes:
    tokens = [bytes([b]) for b in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w", b"ab", b"123"]
    return b"".join(base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens))


def tokenizer_json(cl100k: bool, pairs: bool) -> bytes:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    drawn = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(rest)}
    merges = [["h", "e"], ["l", "l"], ["he", "ll"], ["\u0120", "w"], ["a", "b"], ["1", "2"]]
    tokens = [drawn[b] for b in range(256)] + [a + b for a, b in merges]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": not cl100k}
    split = {"type": "Split", "pattern": {"Regex": CL100K}, "behavior": "Isolated", "invert": False}
    document = {
        "version": "1.0",
        "added_tokens": [{"id": len(tokens), "content": "<|endoftext|>", "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]} if cl100k else byte_level,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "ignore_merges": cl100k,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": merges if pairs else [" ".join(merge) for merge in merges],
        },
    }
    return json.dumps(document).encode()


def write_differential(folder: Path) -> None:
    """For each of its 78 vocabularies text as it is, and text of its pieces."""
    folder.mkdir(parents=True, exist_ok=True)
    for vocabulary in range(78):
        pieces = bytes((vocabulary * 31 + 7 * i * i) % 256 for i in range(40))
        (folder / f"text_{vocabulary}").write_bytes(bytes([vocabulary, 0, 5, 9]) + TEXT)
        (folder / f"pieces_{vocabulary}").write_bytes(bytes([vocabulary, 1 + vocabulary % 8 * 2, 80, 30]) + pieces)


def main() -> None:
    write_differential(Path(sys.argv[2]))
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    seeds = {
        "tiktoken_gpt2": b"\x01" + tiktoken_file(),
        "tiktoken_cl100k": b"\x02" + tiktoken_file(),
        "json_gpt2": b"\x00" + tokenizer_json(cl100k=False, pairs=True),
        "json_gpt2_strings": b"\x01" + tokenizer_json(cl100k=False, pairs=False),
        "json_cl100k": b"\x00" + tokenizer_json(cl100k=True, pairs=True),
    }
    for name, seed in seeds.items():
        (folder / name).write_bytes(seed + SEPARATOR + TEXT)


if __name__ == "__main__":
    main()
