"""The families of byte-level BPE as their published files have them, and the released libraries that read them.

Pattern and vocabulary do not depend on each other, so a family whose vocabulary is not at hand is made of its own
pattern and rules and the tokens of cl100k (or r50k).
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers
from tokenizers import pre_tokenizers

import widestream as ws

ROOT = Path(__file__).resolve().parents[2]
END = "<|endoftext|>"

# As in tiktoken 0.14.0 (tiktoken_ext/openai_public.py).
GPT2_TIKTOKEN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K_TIKTOKEN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
# As published for GPT-2, and what ByteLevel does by itself.
GPT2_PLAIN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# CL100K_TIKTOKEN for the engine of tokenizers.
CL100K_PLAIN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s+\z|\s*[\r\n]|\s+(?!\S)|\s"
)
# As published tokenizer.json files have it (Llama 3), which is cl100k without \s++$.
CL100K_JSON = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How tiktoken wrote it before it added \s++$.
CL100K_JSON_OLD = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = CL100K_JSON.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r'[!"#$%&'
    r"'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]

FAMILIES = ("r50k", "p50k", "cl100k", "o200k", "llama3", "qwen3", "deepseek3")

Ranks = dict[bytes, int]
Ids = npt.NDArray[Any]
# texts -> ids of all, number of ids of each
Encoder = Callable[[list[str]], tuple[Ids, Ids]]


def find_vocabulary(name: str) -> Path | None:
    """The file of a vocabulary, in $WIDESTREAM_TOKENIZERS or in the repository."""
    folders = [ROOT / "tests" / "data" / "tokenizers", ROOT / "examples" / "quickstart" / "tokenizers"]
    if "WIDESTREAM_TOKENIZERS" in os.environ:
        given = Path(os.environ["WIDESTREAM_TOKENIZERS"])
        folders = [given, given / "openai", *folders]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def vocabulary_path(name: str) -> Path:
    path = find_vocabulary(name)
    if path is None:
        raise FileNotFoundError(f"{name} is not in the repository; set WIDESTREAM_TOKENIZERS to a folder that has it")
    return path


def read_ranks(path: Path) -> Ranks:
    lines = path.read_bytes().splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}


def p50k_ranks(r50k: Ranks) -> Ranks:
    """p50k_base.tiktoken is r50k_base.tiktoken and runs of 2 to 25 spaces: its published SHA-256 says so."""
    return r50k | {b" " * run: 50257 + i for i, run in enumerate(range(2, 26))}


def write_ranks(ranks: Ranks, path: Path) -> None:
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))


def byte_alphabet() -> dict[int, str]:
    """The printable character that tokenizer.json files draw for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(rest)}


def merges_of(ranks: Ranks) -> list[tuple[bytes, bytes]]:
    """The pair that makes each token of a rank vocabulary, best first: what its bytes merge to before it."""
    merges = []
    for token, own_rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            pairs = [ranks.get(a + b, own_rank) for a, b in itertools.pairwise(parts)]
            best = min(range(len(pairs)), key=pairs.__getitem__)
            assert pairs[best] < own_rank
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def tokenizer_json(ranks: Ranks, regexes: list[str], *, nfc: bool = False, ignore_merges: bool = False) -> str:
    """A tokenizer.json; without regexes ByteLevel has its own, that of GPT-2."""
    alphabet = byte_alphabet()

    def drawn(token: bytes) -> str:
        return "".join(alphabet[b] for b in token)

    own = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not regexes}
    splits = [{"type": "Split", "pattern": {"Regex": r}, "behavior": "Isolated", "invert": False} for r in regexes]
    vocab = {drawn(token): rank for token, rank in ranks.items()}
    # Where the ranks leave a gap (p50k), it is there, and the file lists it among the tokens too, as that of GPT-2.
    gaps = set(range(len(vocab))) - set(vocab.values())
    end = {"id": min(gaps, default=len(vocab)), "content": END, "special": True}
    vocab |= dict.fromkeys([END], min(gaps)) if gaps else {}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": ignore_merges,
        "vocab": vocab,
        "merges": [[drawn(a), drawn(b)] for a, b in merges_of(ranks)],
    }
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | flags],
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, own]} if splits else own,
        "post_processor": None,
        "decoder": own,
        "model": model,
    }
    return json.dumps(document)


def with_tiktoken(ranks: Ranks, pattern: str) -> Encoder:
    encoding = tiktoken.Encoding("any", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})

    def encode(texts: list[str]) -> tuple[Ids, Ids]:
        parts = encoding.encode_ordinary_batch(texts, num_threads=os.cpu_count() or 1)
        return flat(parts)

    return encode


def with_tokenizers(file: Path) -> Encoder:
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.encode_special_tokens = True

    def encode(texts: list[str]) -> tuple[Ids, Ids]:
        # In parts, so that its objects do not fill the memory.
        parts: list[list[int]] = []
        for begin in range(0, len(texts), 1024):
            some = tokenizer.encode_batch_fast(texts[begin : begin + 1024], add_special_tokens=False)
            parts += [one.ids for one in some]
        return flat(parts)

    return encode


def with_fastokens(tokenizer: Any) -> Encoder:
    def encode(texts: list[str]) -> tuple[Ids, Ids]:
        ids, offsets = tokenizer.encode_batch_flat(texts, add_special_tokens=False, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64).astype(np.int64))

    return encode


def flat(parts: list[list[int]]) -> tuple[Ids, Ids]:
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ids = np.fromiter(itertools.chain.from_iterable(parts), np.uint32, int(lengths.sum()))
    return ids, lengths


@dataclass(frozen=True)
class Family:
    """Our tokenizer of a family, and the released ones by package and version.

    ``merge_word`` and ``split`` are tiktoken's merges and the regexes of tokenizers: texts that are not UTF-8 go through
    these, word by word.
    """

    name: str
    ours: ws.Tokenizer
    peers: dict[str, Encoder]
    merge_word: Callable[[bytes], list[int]]
    splits: list[Any]
    normalizes: bool = False
    # Not the published vocabulary, but another with the pattern of the family.
    substitute: bool = False


def make_family(name: str, folder: Path, *, small: bool) -> Family:
    """``small``: with the tokens of r50k where those of the family need a minute to be laid out."""
    r50k = read_ranks(vocabulary_path("r50k_base.tiktoken"))
    stand_in = r50k if small else read_ranks(vocabulary_path("cl100k_base.tiktoken"))
    regexes = {
        "r50k": [],
        "p50k": [],
        "cl100k": [CL100K_PLAIN],
        "o200k": [O200K],
        "llama3": [CL100K_JSON],
        "qwen3": [QWEN2],
        "deepseek3": DEEPSEEK3,
    }[name]
    ranks = {"r50k": r50k, "p50k": p50k_ranks(r50k)}.get(name, stand_in)
    substitute = name in ("o200k", "llama3", "qwen3", "deepseek3")
    pattern = {"r50k": "", "p50k": "", "cl100k": "cl100k", "o200k": "o200k"}.get(name, "")
    rank_file = folder / f"{name}.tiktoken"
    json_file = folder / f"{name}.json"
    if name == "o200k" and not small and (published := find_vocabulary("o200k_base.tiktoken")) is not None:
        ranks, substitute = read_ranks(published), False
    if name == "qwen3" and not small and (published := find_vocabulary("qwen3/tokenizer.json")) is not None:
        json_file, substitute = published, False
        alphabet = {c: b for b, c in byte_alphabet().items()}
        vocab = json.loads(published.read_text(encoding="utf-8"))["model"]["vocab"]
        ranks = {bytes(alphabet[c] for c in token): rank for token, rank in vocab.items()}
    elif name == "cl100k" and small:
        # Its own tokens, but no tokenizer.json, which would need all merges.
        ranks = read_ranks(vocabulary_path("cl100k_base.tiktoken"))
    if not json_file.is_file() and not (name == "cl100k" and small):
        made = tokenizer_json(ranks, regexes, nfc=name == "qwen3", ignore_merges=name == "llama3")
        json_file.write_text(made, encoding="utf-8")
    if pattern or name in ("r50k", "p50k"):
        # A known vocabulary has its own pattern; without its last token it is not known.
        if substitute:
            ranks = dict(list(ranks.items())[:-1])
            json_file.unlink()
            json_file.write_text(tokenizer_json(ranks, regexes), encoding="utf-8")
        write_ranks(ranks, rank_file)
        ours = ws.Tokenizer.from_file(rank_file, pattern=pattern if substitute else "")
    else:
        ours = ws.Tokenizer.from_file(json_file)

    peers: dict[str, Encoder] = {}
    tiktoken_pattern = {
        "r50k": GPT2_TIKTOKEN,
        "p50k": GPT2_TIKTOKEN,
        "cl100k": CL100K_TIKTOKEN,
        "o200k": O200K,
        "llama3": CL100K_JSON,  # as the reference code of Llama 3 has it
    }.get(name)
    if tiktoken_pattern is not None:
        peers[f"tiktoken {version('tiktoken')}"] = with_tiktoken(ranks, tiktoken_pattern)
    if json_file.is_file():
        peers[f"tokenizers {version('tokenizers')}"] = with_tokenizers(json_file)
    fastokens = fastokens_module()
    if fastokens is not None:
        preset = f"{name}_base" if name in ("cl100k", "o200k") else None
        if preset is not None:
            made_by = fastokens.Tokenizer.from_tiktoken(str(rank_file), encoding=preset, special_tokens={})
        else:
            made_by = fastokens.Tokenizer.from_file(str(json_file))
        peers[f"fastokens {version('fastokens')}"] = with_fastokens(made_by)
    merging = tiktoken.Encoding("any", pat_str=GPT2_TIKTOKEN, mergeable_ranks=ranks, special_tokens={})
    splits = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated") for regex in regexes or [GPT2_PLAIN]]
    return Family(name, ours, peers, merging._encode_single_piece, splits, name == "qwen3", substitute)


# What a released library gives other ids for; docs/tokenizer.md lists these too. By exact version, so that the next one
# is looked at again.
KNOWN_DIFFERENCES = [
    # An apostrophe and long s behind a word are a contraction, since the long s folds to s; there they are not.
    ("fastokens 0.3.5", ("o200k",), re.compile("'\u017f")),
    # No white space since Unicode 6.3; there it is.
    ("fastokens 0.3.5", ("deepseek3",), re.compile("\u180e")),
]


def is_known_difference(family: str, peer: str, text: str) -> bool:
    return any(
        peer == name and family in families and pattern.search(text) is not None
        for name, families, pattern in KNOWN_DIFFERENCES
    )


def batches(texts: Iterable[str], most_texts: int = 20_000, most_characters: int = 4_000_000) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == most_texts or characters >= most_characters:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def check_texts(family: Family, texts: Iterable[str]) -> tuple[int, int]:
    """Compares the ids of texts with every peer's, their number with count, and what they decode to with the texts.

    Returns the number of texts and of ids.
    """
    seen = total = 0
    for batch in batches(texts):
        found = family.ours.encode_batch(batch, threads=2)
        ids, lengths = found.ids, np.diff(found.offsets)
        seen, total = seen + len(batch), total + len(ids)
        for name, encode in family.peers.items():
            expected, expected_lengths = encode(batch)
            if np.array_equal(lengths, expected_lengths) and np.array_equal(ids, expected):
                continue
            begins = np.concatenate([[0], np.cumsum(expected_lengths)])
            for i, text in enumerate(batch):
                if is_known_difference(family.name, name, text):
                    continue
                own = ids[found.offsets[i] : found.offsets[i + 1]]
                check_equal(f"{family.name}, {name}", family.ours, text, own, expected[begins[i] : begins[i + 1]])
        assert np.array_equal(family.ours.count_batch(batch), lengths)
        decoded = family.ours.decode_batch(found)
        if not family.normalizes:
            assert decoded == batch
        else:  # what normalizing changed stays as it is
            again = family.ours.encode_batch(decoded, threads=2)
            assert np.array_equal(again.ids, ids) and np.array_equal(again.offsets, found.offsets)
    return seen, total


def check_equal(what: str, ours: ws.Tokenizer, text: str, found: Ids, expected: Ids) -> None:
    if np.array_equal(found, expected):
        return
    both = min(len(found), len(expected))
    differ = np.flatnonzero(found[:both] != expected[:both])
    first = int(differ[0]) if len(differ) else both
    begin = max(first - 8, 0)
    near = ours.decode_bytes(found[begin : first + 16])
    raise AssertionError(
        f"{what}: other ids from number {first} on, in {near!r} of {text[:300]!a}: "
        f"ours {found[begin : first + 16].tolist()}, expected {expected[begin : first + 16].tolist()}"
    )


def fastokens_module() -> Any | None:
    return importlib.import_module("fastokens") if importlib.util.find_spec("fastokens") is not None else None


def bring_fastokens() -> None:
    """Puts the pinned fastokens, which depends on nothing, into a folder of its own; a warning where that fails."""
    if importlib.util.find_spec("fastokens") is not None:
        return
    folder = ROOT / "build" / "peers"
    pins = (ROOT / "requirements" / "bench.txt").read_text(encoding="utf-8")
    pin = re.search(r"^fastokens==\S+", pins, re.MULTILINE)
    assert pin is not None
    if not (folder / pin.group()).exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), pin.group()]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            why = done.stderr.strip()[-500:]
            warnings.warn(f"compared without fastokens, which pip cannot install: {why}", stacklevel=1)
            return
        (folder / pin.group()).touch()
    sys.path.append(str(folder))
    importlib.invalidate_caches()
