"""P1a: text to packed batches on one core: our loader against a torch DataLoader that does the same work with tiktoken.

Both read the same Parquet files in file order, tokenize with r50k and the end-of-text token, and deliver int64 batches of
8 x 4096. Ours packs whole pieces (documents are split at 4,096 tokens, rows padded) and builds labels, masks, positions and
cu_seqlens too; the peer concatenates and cuts. The check: both deliver exactly the same ids the same number of times.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from widestream.bench.harness import Figure, commit, in_process, ratio_of_medians
from widestream.errors import InvalidArgumentError, NotFoundError

_ROWS, _LENGTH = 8, 4096


def run(*, quick: bool, data: str | None = None, tokenizer: str | None = None, pairs: int = 5) -> Iterator[Figure]:
    """``data``: a folder of Parquet files with a ``text`` column; ``tokenizer``: r50k_base.tiktoken."""
    if tokenizer is None:
        raise InvalidArgumentError("bench text needs --tokenizer PATH/r50k_base.tiktoken")
    if data is None:
        raise InvalidArgumentError("bench text needs --data FOLDER with Parquet files that have a column `text`")
    files = sorted(str(path.resolve()) for path in Path(data).glob("**/*.parquet"))
    if not files:
        raise NotFoundError(
            f"no .parquet file in {data}; widestream fetch writes JSON Lines, which bench converts itself"
        )
    with tempfile.TemporaryDirectory() as folder:
        if quick:
            files = [shutil.copy(files[0], folder)]
        arguments: dict[str, Any] = {"files": files, "tokenizer": str(Path(tokenizer).resolve()), "threads": 1}
        samples: list[list[float]] = []
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = {}
        for _ in range(1 if quick else pairs):
            ours = in_process("widestream.bench.text_run", arguments, {0})
            theirs = in_process("widestream.bench.peers.torch_text", arguments, {0})
            if ours["counts_hash"] != theirs["counts_hash"] or ours["tokens"] != theirs["tokens"]:
                raise InvalidArgumentError(
                    f"the loaders deliver different ids: {ours['tokens']} against {theirs['tokens']} tokens; the figure is void"
                )
            samples.append([ours["tokens_per_second"], theirs["tokens_per_second"]])
    goal = 2.0
    value = ratio_of_medians(samples)
    yield Figure(
        id="P1a",
        case=f"{ours['tokens']} tokens, {len(files)} Parquet files, r50k, {_ROWS} x {_LENGTH}, one core",
        value=value,
        unit="times the peer's tokens/s",
        better="higher",
        goal=goal,
        met=None if quick else value >= goal,
        against={
            "name": "torch DataLoader + tiktoken",
            "version": f"torch {metadata.version('torch')}, tiktoken {metadata.version('tiktoken')}",
            "settings": "IterableDataset, num_workers=0, encode_to_numpy a document, concatenate and cut",
            "value": samples[-1][1],
        },
        floor=None,
        checked="both delivered the same number of each id",
        pairs=samples,
        commit=commit(),
    )
