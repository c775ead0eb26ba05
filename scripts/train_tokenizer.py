#!/usr/bin/env python3
"""Train the byte-level BPE of examples/quickstart on its data.

    python scripts/train_tokenizer.py [--data examples/quickstart/data] [--ids 4096] [--out FILE]

Writes a file in the layout of Hugging Face `tokenizer.json`. The same data and the same release of
`tokenizers` give the same bytes, whatever the number of threads. Ids: 0 is <|endoftext|>, 1 to 256 are
the single bytes, the rest are merges, best first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
END_OF_TEXT = "<|endoftext|>"


def texts(data: Path) -> Iterator[str]:
    """The text of every record under a folder, files in the order of their paths."""
    for path in sorted(data.rglob("*")):
        if path.suffix == ".parquet":
            yield from pq.read_table(path, columns=["text"]).column("text").to_pylist()
        elif ".jsonl" in path.suffixes:
            raw = path.read_bytes()
            if path.suffix == ".gz":
                raw = gzip.decompress(raw)
            elif path.suffix == ".zst":
                raw = zstandard.ZstdDecompressor().decompress(raw)
            yield from (json.loads(line)["text"] for line in raw.splitlines())


def train(data: Path, ids: int) -> Tokenizer:
    """A byte-level BPE with `ids` ids, GPT-2's pattern, and no normalisation."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ids,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(data), trainer)
    return tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=EXAMPLE / "data")
    parser.add_argument("--ids", type=int, default=4096, help="size of the vocabulary, at least 257")
    parser.add_argument("--out", type=Path, help="default: tokenizers/fixture_bpe_IDS.json of the example")
    args = parser.parse_args()
    tokenizer = train(args.data, args.ids)
    if tokenizer.get_vocab_size() != args.ids:
        print(f"the data gave only {tokenizer.get_vocab_size()} ids of {args.ids}", file=sys.stderr)
        return 1
    out = args.out or EXAMPLE / "tokenizers" / f"fixture_bpe_{args.ids}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(tokenizer.to_str(pretty=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
