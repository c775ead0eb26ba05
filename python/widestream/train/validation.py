"""Validation on held-out documents, and the unigram baseline on the same targets."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from widestream.loader.packed_tensors import pack, unpack
from widestream.train.loss import Targets
from widestream.train.ranks import Ranks

if TYPE_CHECKING:
    from widestream.train.protocol import ValidationMicrobatch


class Unigram:
    """Add-one unigram model of the supervised tokens delivered so far.

    `counts` is int64 [V]. Supervised tokens are all delivered tokens but the first of each document, the same
    population that validation asks about. What ranks have added is in `counts` once it is settled.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.counts = torch.zeros(vocabulary_size, dtype=torch.int64)
        self._new = torch.zeros_like(self.counts)

    def add(self, labels: Tensor) -> None:
        """Counts int64 ids of this rank."""
        self._new += torch.bincount(labels.cpu(), minlength=self._new.numel())

    def settle(self, ranks: Ranks) -> None:
        """Takes what all ranks have added into `counts`. A collective."""
        self.counts += ranks.sum(self._new)
        self._new.zero_()

    def nats(self, histogram: Tensor) -> float:
        """Summed cross-entropy, in nats, of the tokens that `histogram` (int64 [V]) counts."""
        total = int(self.counts.sum()) + self.counts.numel()
        log_probability = (self.counts + 1).double().log() - math.log(total)
        return -float((histogram.double() * log_probability).sum())


@dataclasses.dataclass(frozen=True, slots=True)
class Validation:
    """Figures of one validation.

    Attributes:
        loss: next-token cross-entropy, nats a token.
        mtp_losses: the same for every multi-token depth.
        unigram_cross_entropy: of the training unigram on the same targets, nats a token.
        bits_per_byte, unigram_bits_per_byte: both per byte of the text of these targets; None where the
            loader does not know the bytes.
        tokens: supervised tokens.
    """

    loss: float
    mtp_losses: tuple[float, ...]
    unigram_cross_entropy: float
    bits_per_byte: float | None
    unigram_bits_per_byte: float | None
    tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Held:
    """A held-out microbatch in memory of its own."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    bytes: int


_TENSORS = ("tokens", "labels", "loss_mask", "position_ids", "cu_seqlens")


def share_microbatches(ranks: Ranks, microbatches: Sequence[ValidationMicrobatch]) -> Sequence[ValidationMicrobatch]:
    """Rank 0's microbatches on every rank: they are built once. A collective; others may give any."""
    if not ranks.parallel:
        return microbatches
    tensors = [{name: getattr(mb, name) for name in _TENSORS} for mb in microbatches] if ranks.main else []
    layout, buffer = pack(tensors)
    sizes = [(mb.max_seqlen, mb.bytes) for mb in microbatches] if ranks.main else []
    document = ranks.share_json({"layout": layout, "size_bytes": buffer.numel(), "sizes": sizes})
    if not ranks.main:
        buffer = torch.empty(document["size_bytes"], dtype=torch.uint8)
    parts = unpack(document["layout"], ranks.share(buffer))
    return [
        _Held(**part, max_seqlen=sizes[0], bytes=sizes[1]) for part, sizes in zip(parts, document["sizes"], strict=True)
    ]


class Validator:
    """Evaluates a model on a fixed list of microbatches, each on one of the ranks.

    The figures are the same, to the last bit, on any number of ranks.
    """

    def __init__(
        self, microbatches: Sequence[ValidationMicrobatch], mtp_depth: int, ranks: Ranks | None = None
    ) -> None:
        """Args:
        microbatches: the same on every rank.
        mtp_depth: of the model.
        ranks: that share the work. Default: a world of one.
        """
        self._ranks = ranks or Ranks()
        self._parts = [(mb, Targets.of(mb, mtp_depth)) for mb in microbatches]
        self._bytes = sum(mb.bytes for mb in microbatches)
        counts = [targets.counts for _, targets in self._parts]
        self._counts = [sum(column) for column in zip(*counts, strict=True)]

    @property
    def tokens(self) -> int:
        """Supervised tokens."""
        return self._counts[0] if self._counts else 0

    def run(
        self,
        model: nn.Module,
        losses: Callable[..., tuple[Tensor, ...]],
        unigram: Unigram,
        *,
        device: torch.device,
        autocast: Callable[[], contextlib.AbstractContextManager[None]],
        stop: Callable[[], bool],
    ) -> Validation | None:
        """The figures, or None where there is nothing to validate on or `stop` became true. A collective.

        Args:
            model: put into evaluation mode meanwhile.
            losses: `LossSums.forward` of it.
            unigram: settled.
            device: of the model.
            autocast: for the forward pass.
            stop: asked before every microbatch; the same answer on every rank.
        """
        if not self.tokens:
            return None
        world, rank = self._ranks.world, self._ranks.rank
        mine: list[float] = []
        model.eval()
        try:
            for first in range(0, len(self._parts), world):
                if stop():
                    return None
                # Beyond the end a rank repeats the last one, uncounted: sharded models run on all ranks or none.
                mb, targets = self._parts[min(first + rank, len(self._parts) - 1)]
                mine += self._losses(losses, mb, targets.to(device), device, autocast)
        finally:
            model.train()
        depths = len(self._counts)
        rows = self._ranks.gather(mine)
        sums = [0.0] * depths
        histogram = torch.zeros_like(unigram.counts)
        for number, (_, targets) in enumerate(self._parts):
            at = number // world * depths
            for depth in range(depths):
                sums[depth] += rows[number % world][at + depth]
            histogram += torch.bincount(targets.labels[0].cpu(), minlength=histogram.numel())
        unigram_nats = unigram.nats(histogram)
        per_token = [total / max(count, 1) for total, count in zip(sums, self._counts, strict=True)]
        bits = self._bytes * math.log(2)
        return Validation(
            loss=per_token[0],
            mtp_losses=tuple(per_token[1:]),
            unigram_cross_entropy=unigram_nats / self.tokens,
            bits_per_byte=sums[0] / bits if bits else None,
            unigram_bits_per_byte=unigram_nats / bits if bits else None,
            tokens=self.tokens,
        )

    @staticmethod
    @torch.no_grad()
    def _losses(
        losses: Callable[..., tuple[Tensor, ...]],
        mb: ValidationMicrobatch,
        targets: Targets,
        device: torch.device,
        autocast: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> list[float]:
        with autocast():
            # Validation products stay float32: they are few, and the figure is compared across precisions.
            sums = losses(mb.tokens.to(device), mb.position_ids.to(device), mb.cu_seqlens, targets)
            return [float(total) for total in sums]
