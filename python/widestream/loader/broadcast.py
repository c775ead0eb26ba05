"""Batches for ranks that do not fetch: a leader's batch, broadcast over the trainer's own process groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_ALIGNMENT_BYTES = 64


def pack(groups: Sequence[Mapping[str, Tensor]]) -> tuple[list[dict[str, Any]], Tensor]:
    """Tensors as one uint8 buffer [size], and JSON values that say where each lies.

    The buffer is on the CPU, and each tensor begins at a multiple of 64 bytes.
    """
    import torch

    layout: list[dict[str, Any]] = []
    parts: list[tuple[int, Tensor]] = []
    size = 0
    for group in groups:
        entries: dict[str, Any] = {}
        for name, tensor in group.items():
            flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            entries[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size]
            parts.append((size, flat))
            size += -(-flat.numel() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        layout.append(entries)
    buffer = torch.zeros(size, dtype=torch.uint8)
    for offset, flat in parts:
        buffer[offset : offset + flat.numel()] = flat
    return layout, buffer


def unpack(layout: Sequence[Mapping[str, Any]], buffer: Tensor) -> list[dict[str, Tensor]]:
    """The tensors of `pack`, as views of the buffer."""
    import math

    import torch

    groups = []
    for entries in layout:
        group = {}
        for name, (dtype_name, shape, offset) in entries.items():
            dtype: torch.dtype = getattr(torch, dtype_name)
            size = math.prod(shape) * dtype.itemsize
            group[name] = buffer[offset : offset + size].view(dtype).view(shape)
        groups.append(group)
    return groups
