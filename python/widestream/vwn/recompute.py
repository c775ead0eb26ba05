"""Block recompute: backward rebuilds the wide states instead of keeping them.

Of a block of sub-layers only the first wide state (rD numbers a token) and each sub-layer's output z (D) are
kept; every further wide state, and the sub-layers' inputs x, are computed again from them, by GHC's formulas
alone: no attention and no feed-forward runs twice. `optimal_block_length` balances the two.

Shape suffixes: T tokens, n slots, d slot width, D backbone width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from widestream.vwn.ghc import GHC, GHCMixer


def optimal_block_length(width_factor: float, sub_layers: int) -> int:
    """Sub-layers of a block that keep the least memory: sqrt(r L / (r + 2)), at least 1."""
    return max(1, round(math.sqrt(width_factor * sub_layers / (width_factor + 2))))


class _Block:
    """The first wide state and the outputs z of a block; `state(i)` gives the wide state before sub-layer i."""

    def __init__(self, first_Tnd: Tensor, mixers: Sequence[GHCMixer]) -> None:
        self.first_Tnd, self.mixers = first_Tnd, mixers
        self.outputs: list[Tensor] = []
        self._rebuilt: dict[int, Tensor] = {}

    def state(self, index: int) -> Tensor:
        """Rebuilds all states up to `index` at once: backward asks for the last one first."""
        if index == 0:
            return self.first_Tnd
        if index not in self._rebuilt:
            h_Tnd = self.first_Tnd
            with torch.no_grad():
                for i in range(index):
                    h_Tnd = self.mixers[i].write(h_Tnd, self.outputs[i], self.mixers[i].coefficients(h_Tnd))
                    self._rebuilt[i + 1] = h_Tnd
        return self._rebuilt[index]

    def forget(self, index: int) -> None:
        """The state before sub-layer `index` is done with."""
        self._rebuilt.pop(index, None)


class _Read(torch.autograd.Function):
    """x of a sub-layer; keeps nothing."""

    @staticmethod
    def forward(ctx: Any, h_Tnd: Tensor, block: _Block, index: int, *parameters: Tensor) -> Tensor:
        ctx.block, ctx.index, ctx.parameters = block, index, parameters
        mixer = block.mixers[index]
        return mixer.read(h_Tnd, mixer.coefficients(h_Tnd))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        mixer = ctx.block.mixers[ctx.index]
        with torch.enable_grad():
            h_Tnd = ctx.block.state(ctx.index).detach().requires_grad_()
            x_TD = mixer.read(h_Tnd, mixer.coefficients(h_Tnd))
        found = _gradients(x_TD, (h_Tnd, *ctx.parameters), gradients[0])
        ctx.block.forget(ctx.index)
        return (found[0], None, None, *found[1:])


class _Write(torch.autograd.Function):
    """The next wide state; the block keeps z."""

    @staticmethod
    def forward(ctx: Any, h_Tnd: Tensor, z_TD: Tensor, block: _Block, index: int, *parameters: Tensor) -> Tensor:
        block.outputs.append(z_TD.detach())
        ctx.block, ctx.index, ctx.parameters = block, index, parameters
        mixer = block.mixers[index]
        return mixer.write(h_Tnd, z_TD, mixer.coefficients(h_Tnd))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        mixer = ctx.block.mixers[ctx.index]
        with torch.enable_grad():
            h_Tnd = ctx.block.state(ctx.index).detach().requires_grad_()
            z_TD = ctx.block.outputs[ctx.index].detach().requires_grad_()
            new_Tnd = mixer.write(h_Tnd, z_TD, mixer.coefficients(h_Tnd))
        found = _gradients(new_Tnd, (h_Tnd, z_TD, *ctx.parameters), gradients[0])
        return (found[0], found[1], None, None, *found[2:])


def _gradients(output: Tensor, inputs: tuple[Tensor, ...], gradient: Tensor) -> tuple[Tensor | None, ...]:
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
    return tuple(next(found) if x.requires_grad else None for x in inputs)


def run_block(h_Tnd: Tensor, sub_layers: Sequence[tuple[GHC, tuple[Any, ...]]]) -> Tensor:
    """The wide state behind the block's sub-layers; equal to calling them in turn, values and gradients.

    Args:
        h_Tnd: the wide state.
        sub_layers: each GHC and the further arguments of its block.

    Raises:
        RuntimeError: FSDP2 shards the GHC: its parameters are gathered by hooks, which a rebuild goes around.
    """
    if any(hasattr(ghc.mixer, "unshard") for ghc, _ in sub_layers):
        raise RuntimeError("block recompute does not go together with FSDP2; use set_recompute('layer')")
    block = _Block(h_Tnd.detach(), [ghc.mixer for ghc, _ in sub_layers])
    for index, (ghc, arguments) in enumerate(sub_layers):
        parameters = tuple(ghc.mixer.parameters())
        x_TD = cast(Tensor, _Read.apply(h_Tnd, block, index, *parameters))  # type: ignore[no-untyped-call]
        with _input_rebuilt(x_TD, block, index):
            z_TD = ghc.block(x_TD, *arguments)
        h_Tnd = cast(Tensor, _Write.apply(h_Tnd, z_TD, block, index, *parameters))  # type: ignore[no-untyped-call]
    return h_Tnd


def _input_rebuilt(x_TD: Tensor, block: _Block, index: int) -> torch.autograd.graph.saved_tensors_hooks:
    """Inside it, a sub-layer that saves its input for backward saves nothing: it is read again."""
    pointer, shape, dtype = x_TD.data_ptr(), x_TD.shape, x_TD.dtype

    def pack(tensor: Tensor) -> Tensor | None:
        same = tensor.data_ptr() == pointer and tensor.shape == shape and tensor.dtype == dtype
        return None if same and tensor.is_contiguous() and tensor.numel() else tensor

    def unpack(packed: Tensor | None) -> Tensor:
        if packed is not None:
            return packed
        mixer, h_Tnd = block.mixers[index], block.state(index)
        with torch.no_grad():
            return mixer.read(h_Tnd, mixer.coefficients(h_Tnd)).view(shape)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
