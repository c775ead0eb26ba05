"""Vocabularies for the tests of this folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
R50K = ROOT / "tests" / "data" / "tokenizers" / "r50k_base.tiktoken"
CL100K = ROOT / "tests" / "data" / "tokenizers" / "cl100k_base.tiktoken"

TRAINING_TEXT = [
    "It is a truth universally acknowledged, that a single man in possession of a good fortune,",
    "must be in want of a wife. \u00c9tude \u4e2d\u6587 12345 def f(x): return x + 1",
] * 4


def unigram(folder: Path) -> Path:
    """A small SentencePiece-style Unigram tokenizer.json."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.Unigram())
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    made.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TRAINING_TEXT, trainer)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", made.token_to_id("</s>"))]
    )
    path = folder / "unigram.json"
    made.save(str(path))
    return path


def with_special_tokens(path: Path, folder: Path, names: list[str]) -> Path:
    """A byte-level tokenizer.json of the single bytes, some merges, and special tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=names,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(TRAINING_TEXT, trainer)
    target = folder / path
    made.save(str(target))
    return target


def as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
