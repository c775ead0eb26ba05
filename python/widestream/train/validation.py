"""Validation on held-out documents, and the unigram baseline on the same targets."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from widestream.train.loss import Targets, loss_sums
from widestream.vwn.model import VWNTransformer

if TYPE_CHECKING:
    from widestream.train.protocol import ValidationMicrobatch


class Unigram:
    """Add-one unigram model of the supervised tokens delivered so far.

    `counts` is int64 [V]. Supervised tokens are all delivered tokens but the first of each document, the same
    population that validation asks about.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.counts = torch.zeros(vocabulary_size, dtype=torch.int64)

    def add(self, labels: Tensor) -> None:
        """Counts int64 ids."""
        self.counts += torch.bincount(labels.cpu(), minlength=self.counts.numel())

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


class Validator:
    """Evaluates a model on a fixed list of microbatches."""

    def __init__(self, microbatches: Sequence[ValidationMicrobatch], mtp_depth: int) -> None:
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
        model: VWNTransformer,
        unigram: Unigram,
        *,
        device: torch.device,
        autocast: Callable[[], contextlib.AbstractContextManager[None]],
        stop: Callable[[], bool],
    ) -> Validation | None:
        """The figures, or None where there is nothing to validate on or `stop` became true."""
        if not self.tokens:
            return None
        sums = [0.0] * len(self._counts)
        histogram = torch.zeros_like(unigram.counts)
        model.eval()
        try:
            for mb, targets in self._parts:
                if stop():
                    return None
                for depth, value in enumerate(self._losses(model, mb, targets.to(device), device, autocast)):
                    sums[depth] += value
                histogram += torch.bincount(targets.labels[0].cpu(), minlength=histogram.numel())
        finally:
            model.train()
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
        model: VWNTransformer,
        mb: ValidationMicrobatch,
        targets: Targets,
        device: torch.device,
        autocast: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> list[float]:
        with autocast():
            output = model(mb.tokens.to(device), mb.position_ids.to(device), mb.cu_seqlens)
            # Validation products stay float32: they are few, and the figure is compared across precisions.
            return [float(total) for total in loss_sums(model, output, targets)]
