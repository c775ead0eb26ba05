"""Batch: one step of one rank, as tensors that share the engine's memory."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from widestream.loader.data_loader import DataLoader

_ARRAYS = ("tokens", "labels", "loss_mask", "position_ids", "segment_ids", "cu_seqlens", "cu_seqlens_padded")


@functools.cache
def torch_installed() -> bool:
    return importlib.util.find_spec("torch") is not None


@dataclass(frozen=True, slots=True)
class Span:
    """Where a piece of a batch comes from: ``tokens[start:stop]`` of a record of a shard of a source."""

    source: str
    shard: str
    record: int
    start: int
    stop: int
    epoch: int
    row: int | None
    microbatch: int | None


class Microbatch:
    """Tensors of one forward pass, zero-copy views of the engine's memory: torch if installed and wanted, else numpy.

    ``tokens, labels, position_ids`` int64, ``loss_mask`` bool, ``segment_ids`` int32: [B, S] (``rows``, ``padded``) or
    [1, T] (``thd``). ``cu_seqlens`` int32 [segments + 1] over the flattened batch, a row's padding its own segment.
    ``labels`` is -100 where there is no target. ``max_seqlen`` is the longest segment in tokens. ``shape`` is that of
    tokens, also where this rank gets none (None: a tensor that its pipeline stage does not need). ``peers``: of a rank
    that fetches for others along cp, their slices as ``tokens@1``, ...
    """

    tokens: Any
    labels: Any
    loss_mask: Any
    position_ids: Any
    segment_ids: Any
    cu_seqlens: Any
    cu_seqlens_padded: Any

    # Validation only: bytes of the text of the supervised tokens.
    bytes: int = 0

    def __init__(self, arrays: dict[str, Any], as_torch: bool) -> None:
        self.max_seqlen: int = arrays["max_seqlen"]
        self.shape: tuple[int, ...] = tuple(arrays["shape"])
        self.real_tokens: int = arrays["real_tokens"]
        convert: Callable[[Any], Any] = _identity
        if as_torch:
            import torch

            convert = torch.from_numpy
        for name in _ARRAYS:
            setattr(self, name, convert(arrays[name]) if name in arrays else None)
        self.peers: dict[str, Any] = {name: convert(value) for name, value in arrays.items() if "@" in name}

    def copy(self) -> Microbatch:
        """The same values in memory of their own, so that the engine's can be used again."""
        out = Microbatch.__new__(Microbatch)
        out.max_seqlen, out.real_tokens, out.bytes = self.max_seqlen, self.real_tokens, self.bytes
        out.shape = self.shape
        for name in _ARRAYS:
            value = getattr(self, name)
            setattr(out, name, value if value is None else _copied(value))
        out.peers = {name: _copied(value) for name, value in self.peers.items()}
        return out

    def tensors(self) -> dict[str, Any]:
        """All tensors by name."""
        own = {name: getattr(self, name) for name in _ARRAYS if getattr(self, name) is not None}
        return {**own, **self.peers}


def _identity(value: Any) -> Any:
    return value


def _copied(value: Any) -> Any:
    return value.clone() if hasattr(value, "clone") else value.copy()


class Batch:
    """One step of the stream for one rank. The memory is given back when the last tensor on it is dropped."""

    def __init__(self, core_batch: Any, loader: DataLoader) -> None:
        self._core = core_batch
        self._loader = loader
        self.step: int = core_batch.step
        self.rank: int = loader.rank
        self.dp_rank: int = core_batch.dp_rank
        self.supervised_tokens: int = core_batch.supervised_tokens
        self.real_tokens: int = core_batch.real_tokens
        self.digest: str = core_batch.digest

    @functools.cached_property
    def microbatches(self) -> list[Microbatch]:
        return [Microbatch(arrays, self._loader.as_torch) for arrays in self._core.microbatches()]

    def to(self, device: Any, *, pin_memory: bool = False) -> Batch:
        """This batch with its tensors on ``device``, in place; ``"cpu"`` copies nothing. See :mod:`.device`.

        Each call makes a stream of its own; a loader with ``device=`` keeps one.
        """
        from widestream.loader.device import Mover, move_batch

        moved: Batch = move_batch(self, Mover(device, pin_memory=pin_memory))
        return moved

    @functools.cached_property
    def pieces(self) -> dict[str, np.ndarray[Any, Any]]:
        """The step's membership over all ranks, in draw order, as columns.

        source, epoch, position, start, length, draw, shard, record, ids_hash, last: 1-D arrays of equal length.
        """
        columns: dict[str, np.ndarray[Any, Any]] = self._core.pieces()
        return columns

    @functools.cached_property
    def layout(self) -> list[list[list[list[int]]]]:
        """For every data-parallel rank, microbatch and row the indices of its pieces."""
        layout: list[list[list[list[int]]]] = self._core.layout()
        return layout

    @property
    def tokens_by_source(self) -> dict[str, int]:
        """Real tokens of the whole step by source."""
        return dict(zip(self._loader.source_names, self._core.tokens_by_source, strict=True))

    @property
    def costs(self) -> list[float]:
        """What the planner balanced: the cost of each data-parallel rank's part of the step."""
        costs: list[float] = self._core.costs
        return costs

    @property
    def size_bytes(self) -> int:
        """Of this rank's tensors."""
        size: int = self._core.size_bytes
        return size

    @property
    def wanted_by_source(self) -> dict[str, float]:
        """The mixture asked for at the step's first draw: shares by source, summing to 1."""
        return {name: w / 2**32 for name, w in zip(self._loader.source_names, self._core.weights, strict=True)}

    def sources(self, dp_rank: int | None = None) -> list[Span]:
        """Provenance of this (or another) data-parallel rank's tokens, in the order in which they stand in its
        microbatches."""
        pieces = self.pieces
        spans = []
        for microbatch, rows in enumerate(self.layout[self.dp_rank if dp_rank is None else dp_rank]):
            for row, indices in enumerate(rows):
                for index in indices:
                    source = int(pieces["source"][index])
                    start = int(pieces["start"][index])
                    spans.append(
                        Span(
                            source=self._loader.source_names[source],
                            shard=self._loader.shard_path(source, int(pieces["shard"][index])),
                            record=int(pieces["record"][index]),
                            start=start,
                            stop=start + int(pieces["length"][index]),
                            epoch=int(pieces["epoch"][index]),
                            row=row,
                            microbatch=microbatch,
                        )
                    )
        return spans
