"""Batches on a GPU: at most one copy from the slab to pinned memory, and one asynchronous copy to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from widestream.errors import InvalidArgumentError
from widestream.loader.batch import Microbatch
from widestream.loader.packed_tensors import pack, unpack

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Allocate = Callable[[int], "Tensor"]


class Mover:
    """Brings the microbatches of a loader to pinned memory or to a device. One thread; one of it a loader.

    All tensors of a step travel as one block: one copy out of the slab, and one transfer on a stream of its own, so
    that it overlaps what the device computes meanwhile. The device's current stream waits for the transfer; the host
    does not. Tensors used on another stream need the usual `record_stream`. The slab is free when the batch is
    dropped; moved tensors may live on.

    Attributes:
        device: where batches arrive.
        host_bytes: copied from slabs so far.
        device_bytes: transferred so far.
    """

    def __init__(self, device: torch.device | str = "cpu", *, pin_memory: bool = False) -> None:
        """Args:
        device: "cpu" leaves batches where they are.
        pin_memory: with "cpu": batches in pinned memory. A CUDA device has its transfers from pinned memory anyway.

        Raises:
            InvalidArgumentError: torch is missing, or this machine has no such device, or none to pin memory for.
        """
        from widestream.loader.batch import torch_installed

        if not torch_installed():
            raise InvalidArgumentError(
                f"device={str(device)!r}, pin_memory={pin_memory} need torch, which is not installed"
            )
        import torch

        self.device = torch.device(device)
        if self.device.type not in ("cpu", "cuda"):
            raise InvalidArgumentError(f"device is {self.device}; batches go to 'cpu' or 'cuda' (or 'cuda:N')")
        if (pin_memory or self.device.type == "cuda") and not torch.cuda.is_available():
            what = f"device {self.device}" if self.device.type == "cuda" else "pin_memory=True"
            raise InvalidArgumentError(
                f"{what} needs an accelerator, but torch sees no CUDA device here; leave it out on this machine"
            )
        self.host_bytes = self.device_bytes = 0
        self._pins = pin_memory or self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None

    @property
    def moves(self) -> bool:
        """Whether batches are copied at all."""
        return self._pins

    def move(self, microbatches: Sequence[Microbatch]) -> list[Microbatch]:
        """The same microbatches where they belong; the given ones themselves if they are there."""
        if not self.moves:
            return list(microbatches)
        layout, host = pack([microbatch.tensors() for microbatch in microbatches], self._allocate())
        self.host_bytes += host.numel()
        buffer = host if self._stream is None else self._transfer(host, self._stream)
        out = []
        for microbatch, tensors in zip(microbatches, unpack(layout, buffer), strict=True):
            sizes = {
                "max_seqlen": microbatch.max_seqlen,
                "real_tokens": microbatch.real_tokens,
                "shape": microbatch.shape,
            }
            moved = Microbatch({**tensors, **sizes}, as_torch=False)
            moved.bytes = microbatch.bytes
            out.append(moved)
        return out

    def _allocate(self) -> Allocate:
        import torch

        return lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def _transfer(self, host: Tensor, stream: torch.cuda.Stream) -> Tensor:
        import torch

        with torch.cuda.stream(stream):
            # torch's allocator of pinned memory keeps `host` until this transfer is done.
            buffer = host.to(self.device, non_blocking=True)
        self.device_bytes += host.numel()
        current = torch.cuda.current_stream(self.device)
        current.wait_stream(stream)
        # Allocated on one stream, used on another: the block is not handed out again before that one is through.
        buffer.record_stream(current)
        return buffer


def move_batch(batch: Any, mover: Mover) -> Any:
    """The batch with its microbatches moved, in place; the tensors on the slab are dropped."""
    if mover.moves:
        batch.microbatches = mover.move(batch.microbatches)
    return batch
