"""A small in-memory loader with the trainer's protocol; its documents have a structure to learn."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

VOCABULARY = 50


@dataclasses.dataclass
class FakeMicrobatch:
    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    bytes: int = 0


@dataclasses.dataclass
class FakeBatch:
    step: int
    supervised_tokens: int
    microbatches: list[FakeMicrobatch]
    tokens_by_source: dict[str, int]
    wanted_by_source: dict[str, float]


def document(generator: torch.Generator, length: int, strides: int = 3) -> Tensor:
    """Ids that count upwards by a stride of 1 to `strides` that the document's first id gives."""
    start = int(torch.randint(0, VOCABULARY, (1,), generator=generator))
    stride = 1 + start % strides
    return (start + stride * torch.arange(length)) % VOCABULARY


def pack(documents: list[Tensor], rows: int, length: int) -> FakeMicrobatch:
    """Fills rows greedily; every row's tail is a padding piece."""
    shape = (rows, length)
    tokens, labels, positions = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    mask = torch.zeros(shape, dtype=torch.bool)
    borders, row, at = [0], 0, 0
    for ids in documents:
        if at + len(ids) > length:
            if at < length:
                borders.append((row + 1) * length)
            row, at = row + 1, 0
        assert row < rows, "the documents do not fit"
        end = at + len(ids)
        tokens[row, at:end] = ids
        labels[row, at : end - 1] = ids[1:]
        mask[row, at : end - 1] = True
        positions[row, at:end] = torch.arange(len(ids))
        at = end
        borders.append(row * length + at)
    while borders[-1] < rows * length:
        borders.append((borders[-1] // length + 1) * length)
    cu = torch.tensor(borders, dtype=torch.int32)
    return FakeMicrobatch(tokens, labels, mask, positions, cu, int(cu.diff().max()), int(mask.sum()))


class FakeLoader:
    """Step k is a pure function of k; the state is the next step."""

    def __init__(
        self, microbatches: int = 2, rows: int = 2, length: int = 24, validation: int = 2, strides: int = 3
    ) -> None:
        self.strides = strides
        self.shape = (microbatches, rows, length)
        self.validation = validation
        self.next_step = 0
        self.delivered: list[int] = []
        self.committed = 0

    def _microbatch(self, seed: int) -> FakeMicrobatch:
        _, rows, length = self.shape
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(2, length // 2 + 1, (rows,), generator=generator).tolist()
        return pack([document(generator, size, self.strides) for size in lengths for _ in range(2)], rows * 2, length)

    def batch(self, step: int) -> FakeBatch:
        microbatches = [self._microbatch(1000 * step + i) for i in range(self.shape[0])]
        supervised = sum(int(mb.loss_mask.sum()) for mb in microbatches)
        by_source = {"a": supervised - supervised // 4, "b": supervised // 4}
        return FakeBatch(step, supervised, microbatches, by_source, {"a": 3.0, "b": 1.0})

    def __iter__(self):
        while True:
            step = self.next_step
            self.next_step += 1
            self.delivered.append(step)
            yield self.batch(step)

    def state_dict(self):
        return {"next_step": self.next_step}

    def load_state_dict(self, state):
        self.next_step = state["next_step"]

    def commit(self):
        self.committed = self.next_step

    def validation_batches(self):
        return [self._microbatch(10_000_000 + i) for i in range(self.validation)]
