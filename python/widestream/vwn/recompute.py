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

from widestream.vwn import operators
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

    def rebuilt_input(self, index: int) -> Tensor:
        """x of a sub-layer."""
        mixer, h_Tnd = self.mixers[index], self.state(index)
        with torch.no_grad():
            return mixer.read(h_Tnd, mixer.coefficients(h_Tnd))

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


class _FusedBlock:
    """As `_Block`, by the fused operators; besides, what one sub-layer's backward functions share."""

    def __init__(self, first_Tnd: Tensor, mixers: Sequence[GHCMixer]) -> None:
        self.first_Tnd, self.mixers = first_Tnd, mixers
        self.parameters = [mixer.operator_parameters() for mixer in mixers]
        first = mixers[0]
        self.sizes = first.m, operators.CARRY_NUMBERS[first.carry]
        self.outputs: list[Tensor] = []
        self._rebuilt: dict[int, Tensor] = {}
        self._entered: dict[int, tuple[Tensor, ...]] = {}

    def state(self, index: int) -> Tensor:
        """The wide state before sub-layer `index`, bit for bit; all up to it are rebuilt at once."""
        if index == 0:
            return self.first_Tnd
        if index not in self._rebuilt:
            first = self.mixers[0]
            outputs, parameters = self.outputs[:index], self.parameters[:index]
            states = operators.rebuild(self.first_Tnd, outputs, parameters, first.m, first.carry, first.eps)
            self._rebuilt.update(enumerate(states, start=1))
        return self._rebuilt[index]

    def enter(self, index: int, h_Tnd: Tensor | None = None) -> tuple[Tensor, ...]:
        """(x, coefficients, angle, rho) of a sub-layer, computed once and held until `forget`."""
        if index not in self._entered:
            state = self.state(index) if h_Tnd is None else h_Tnd
            self._entered[index] = torch.ops.widestream.ghc_pre(
                state, *self.parameters[index], *self.sizes, self.mixers[0].eps
            )
        return self._entered[index]

    def rebuilt_input(self, index: int) -> Tensor:
        """x of a sub-layer."""
        return self.enter(index)[0]

    def forget(self, index: int, *, state: bool = True) -> None:
        """What was computed of the sub-layer is done with; its state too, or not."""
        self._entered.pop(index, None)
        if state:
            self._rebuilt.pop(index, None)


class _FusedRead(torch.autograd.Function):
    """x of a sub-layer, and a link whose gradient is that of the new state."""

    @staticmethod
    def forward(ctx: Any, h_Tnd: Tensor, block: _FusedBlock, index: int, *parameters: Tensor | None) -> Any:
        ctx.block, ctx.index = block, index
        ctx.set_materialize_grads(False)
        return block.enter(index, h_Tnd)[0], h_Tnd.new_empty(()).expand(h_Tnd.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        block, index = ctx.block, ctx.index
        gradient_x, gradient_new = gradients
        h_Tnd, (_, _, angle, rho) = block.state(index), block.enter(index)
        z_TD = None if gradient_new is None else block.outputs[index]
        parameters = block.parameters[index]
        found = torch.ops.widestream.ghc_backward(
            gradient_x, gradient_new, None, h_Tnd, z_TD, angle, rho, *parameters, *block.sizes
        )
        block.forget(index)
        return found[0], None, None, *(None if p is None else g for p, g in zip(parameters, found[1:], strict=True))


class _FusedWrite(torch.autograd.Function):
    """The next wide state; the block keeps z."""

    @staticmethod
    def forward(ctx: Any, h_Tnd: Tensor, z_TD: Tensor, link_Tnd: Tensor, block: _FusedBlock, index: int) -> Any:
        block.outputs.append(z_TD.detach())
        ctx.block, ctx.index = block, index
        coefficients = block.enter(index)[1]
        block.forget(index, state=False)
        return torch.ops.widestream.ghc_post(h_Tnd, z_TD, coefficients, *block.sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        block, index = ctx.block, ctx.index
        gradient_z = None
        if ctx.needs_input_grad[1]:
            gradient_z = torch.ops.widestream.ghc_post_gradient_z(
                gradients[0], block.enter(index)[1], *block.sizes, block.outputs[index].dtype
            )
        return None, gradient_z, gradients[0], None, None


def _fused(h_Tnd: Tensor, mixers: Sequence[GHCMixer]) -> bool:
    kinds = {(mixer.m, mixer.carry, mixer.eps, mixer.dynamic) for mixer in mixers}
    return len(kinds) == 1 and all(mixer.fused(h_Tnd) for mixer in mixers)


def _run_fused(h_Tnd: Tensor, sub_layers: Sequence[tuple[GHC, tuple[Any, ...]]], mixers: Sequence[GHCMixer]) -> Tensor:
    block = _FusedBlock(h_Tnd.detach(), mixers)
    for index, (ghc, arguments) in enumerate(sub_layers):
        x_TD, link_Tnd = cast(
            "tuple[Tensor, Tensor]",
            _FusedRead.apply(h_Tnd, block, index, *block.parameters[index]),  # type: ignore[no-untyped-call]
        )
        with _input_rebuilt(x_TD, block, index):
            z_TD = ghc.block(x_TD, *arguments)
        if z_TD.dtype not in (torch.float32, torch.bfloat16):
            z_TD = z_TD.to(h_Tnd.dtype)
        h_Tnd = cast(Tensor, _FusedWrite.apply(h_Tnd, z_TD, link_Tnd, block, index))  # type: ignore[no-untyped-call]
    return h_Tnd


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
    mixers = [ghc.mixer for ghc, _ in sub_layers]
    if _fused(h_Tnd, mixers):
        return _run_fused(h_Tnd, sub_layers, mixers)
    block = _Block(h_Tnd.detach(), mixers)
    for index, (ghc, arguments) in enumerate(sub_layers):
        parameters = tuple(ghc.mixer.parameters())
        x_TD = cast(Tensor, _Read.apply(h_Tnd, block, index, *parameters))  # type: ignore[no-untyped-call]
        with _input_rebuilt(x_TD, block, index):
            z_TD = ghc.block(x_TD, *arguments)
        h_Tnd = cast(Tensor, _Write.apply(h_Tnd, z_TD, block, index, *parameters))  # type: ignore[no-untyped-call]
    return h_Tnd


def _input_rebuilt(x_TD: Tensor, block: _Block | _FusedBlock, index: int) -> torch.autograd.graph.saved_tensors_hooks:
    """Inside it, a sub-layer that saves its input for backward saves nothing: it is read again."""
    pointer, shape, dtype = x_TD.data_ptr(), x_TD.shape, x_TD.dtype

    def pack(tensor: Tensor) -> Tensor | None:
        same = tensor.data_ptr() == pointer and tensor.shape == shape and tensor.dtype == dtype
        return None if same and tensor.is_contiguous() and tensor.numel() else tensor

    def unpack(packed: Tensor | None) -> Tensor:
        return block.rebuilt_input(index).view(shape) if packed is None else packed

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
