"""torch DataLoader + tiktoken: the peer of ``bench text``. python -m widestream.bench.peers.torch_text JSON."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import tiktoken
import torch

from widestream.bench.text_run import counts_hash

_PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
_END_OF_TEXT = 50256
_ROWS, _LENGTH = 8, 4096


def encoding(path: str) -> tiktoken.Encoding:
    ranks = {}
    for line in Path(path).read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding(
        "r50k", pat_str=_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": _END_OF_TEXT}
    )


class ParquetText(torch.utils.data.IterableDataset[torch.Tensor]):
    """Rows of 4,096 ids, documents concatenated with the end-of-text token between them."""

    def __init__(self, files: list[str], encoder: tiktoken.Encoding) -> None:
        self.files = files
        self.encoder = encoder

    def __iter__(self) -> Iterator[torch.Tensor]:
        parts: list[Any] = []
        held = 0
        for file in self.files:
            for batch in pq.ParquetFile(file).iter_batches(batch_size=256, columns=["text"], use_threads=False):
                for text in batch.column(0).to_pylist():
                    ids = np.append(self.encoder.encode_to_numpy(text, disallowed_special=()), np.uint32(_END_OF_TEXT))
                    parts.append(ids)
                    held += len(ids)
                    if held >= _LENGTH:
                        joined = np.concatenate(parts)
                        full = held // _LENGTH * _LENGTH
                        yield from torch.from_numpy(joined[:full].astype(np.int64)).view(-1, _LENGTH)
                        parts, held = [joined[full:]], held - full
        if held:
            yield torch.from_numpy(np.concatenate(parts).astype(np.int64))


def collate(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows) if all(len(row) == _LENGTH for row in rows) else torch.cat(rows)


def main(arguments: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    encoder = encoding(arguments["tokenizer"])
    kept: list[Any] = []
    begin = time.perf_counter()
    tokens = 0
    dataset = ParquetText(arguments["files"], encoder)
    for batch in torch.utils.data.DataLoader(dataset, batch_size=_ROWS, num_workers=0, collate_fn=collate):
        tokens += batch.numel()
        kept.append(batch.numpy().ravel().astype(np.uint16))
    seconds = time.perf_counter() - begin
    return {
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "counts_hash": counts_hash(kept),
        "seconds": seconds,
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
