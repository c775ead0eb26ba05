"""Many tensors in one buffer: one copy, one message, one transfer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_ALIGNMENT_BYTES = 64


def pack(
    groups: Sequence[Mapping[str, Tensor]], allocate: Callable[[int], Tensor] | None = None
) -> tuple[list[dict[str, Any]], Tensor]:
    """Tensors as one uint8 buffer [size], and JSON values that say where each lies. Copies every byte once.

    Each tensor begins at a multiple of 64 bytes; what lies between is not set. `allocate` gives the buffer, on the CPU.
    """
    import torch

    layout: list[dict[str, Any]] = []
    parts: list[tuple[int, Tensor]] = []
    size = 0
    for group in groups:
        entries: dict[str, Any] = {}
        for name, tensor in group.items():
            entries[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), size]
            parts.append((size, tensor))
            size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        layout.append(entries)
    buffer = allocate(size) if allocate else torch.zeros(size, dtype=torch.uint8)
    for offset, tensor in parts:
        _view(buffer, offset, tensor.dtype, tensor.shape).copy_(tensor)
    return layout, buffer


def unpack(layout: Sequence[Mapping[str, Any]], buffer: Tensor) -> list[dict[str, Tensor]]:
    """The tensors of `pack`, as views of the buffer."""
    import torch

    return [
        {name: _view(buffer, offset, getattr(torch, dtype), shape) for name, (dtype, shape, offset) in entries.items()}
        for entries in layout
    ]


def _view(buffer: Tensor, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    return buffer[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
