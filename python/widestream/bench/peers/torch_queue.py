"""The peer of delivery bandwidth: a torch DataLoader whose one worker sends the same tensor again and again."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

_PAGE_WORDS = 4096 // 8


class Constant(IterableDataset[torch.Tensor]):
    """One tensor, filled once in the worker."""

    def __init__(self, size_bytes: int, batches: int) -> None:
        self._size_bytes, self._batches = size_bytes, batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        # torch's collate function copies it into shared memory, from where the queue sends a handle.
        tensor = torch.full((self._size_bytes // 8,), 0x0101010101010101, dtype=torch.int64)
        for _ in range(self._batches):
            yield tensor


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    batches = arguments["warm_up"] + arguments["batches"]
    loader = iter(DataLoader(Constant(arguments["size_bytes"], batches), batch_size=1, num_workers=1))
    total, begin = 0, 0.0
    for number in range(batches):
        if number == arguments["warm_up"]:
            begin, total = time.perf_counter(), 0
        batch = next(loader)
        total += int(batch.numpy()[0, ::_PAGE_WORDS].sum())
    seconds = time.perf_counter() - begin
    return {"bytes_per_second": arguments["batches"] * arguments["size_bytes"] / seconds, "sum": total}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
