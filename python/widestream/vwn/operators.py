"""The fused operators `torch.ops.widestream.*`: loading, shapes without data, derivatives, and their choice.

`_ops.so` is an optional part of the package, loaded when the first wide state asks for it. Where it is not
there, and for devices and dtypes that it does not serve, the modules of `widestream.vwn` compute the same with
PyTorch's own operators. `docs/operators.md` describes each operator.

Shape suffixes: T tokens, n slots, m segments, d slot width, D backbone width, c coefficient columns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from widestream.vwn.config import Carry

CARRY_NUMBERS: dict[Carry, int] = {"ghc": 0, "identity": 1, "sinkhorn": 2, "perm": 3}
_STATE_DTYPES = (torch.float32, torch.bfloat16)
# Read by compiled code, so that it is set when a module is made; None before that.
_loaded: bool | None = None

Parameters = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]


def library_path() -> Path | None:
    """Where the operators' library is, or None: the package was built without torch."""
    import widestream

    for folder in widestream.__path__:
        path = Path(folder) / "_ops.so"
        if path.is_file():
            return path
    return None


def load() -> bool:
    """Loads the operators once; false where there are none, or where WIDESTREAM_OPERATORS=off asks for none.

    Raises:
        OSError: the library is there and torch cannot load it (built for another machine).
    """
    global _loaded
    if _loaded is None:
        path = None if os.environ.get("WIDESTREAM_OPERATORS") == "off" else library_path()
        if path is not None:
            torch.ops.load_library(str(path))
            _register()
        _loaded = path is not None
    return _loaded


def serves(h: Tensor) -> bool:
    """Whether the fused operators take this wide state: on the CPU, float32 or bfloat16, operators loaded."""
    return h.device.type == "cpu" and h.dtype in _STATE_DTYPES and load()


def instructions() -> str:
    """The instruction set that the kernels use here: "avx512", "avx2" or "baseline"; "" without operators."""
    return str(torch.ops.widestream.cpu_instructions()) if load() else ""


# ---- One connection, forward and backward ---------------------------------------------------------


class _Enter(torch.autograd.Function):
    """x of a connection, its coefficients, and two links that carry no data forward.

    Backward of a connection needs the gradient of the new state and the sub-layer's output together with the
    gradient of x, so that the state and the new state's gradient are read once. Both come back as the
    gradients of the links, from `_Leave`.
    """

    @staticmethod
    def forward(ctx: Any, h_Tnd: Tensor, m: int, carry: int, eps: float, *parameters: Tensor | None) -> Any:
        x, coefficients, angle, rho = torch.ops.widestream.ghc_pre(h_Tnd, *parameters, m, carry, eps)
        ctx.save_for_backward(h_Tnd, angle, rho, *parameters)
        ctx.sizes = m, carry
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(coefficients)
        return x, coefficients, h_Tnd.new_empty(()).expand(h_Tnd.shape), x.new_empty(()).expand(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        h_Tnd, angle, rho, *parameters = ctx.saved_tensors
        gradient_x, _, gradient_new, z = gradients
        if gradient_new is None:
            z = None
        found = torch.ops.widestream.ghc_backward(
            gradient_x, gradient_new, None, h_Tnd, z, angle, rho, *parameters, *ctx.sizes
        )
        dynamic = parameters[1] is not None
        return found[0], None, None, None, found[1], *(g if dynamic else None for g in found[2:])


class _Leave(torch.autograd.Function):
    """The new state; backward computes the gradient of z alone and hands the rest to `_Enter`."""

    @staticmethod
    def forward(
        ctx: Any,
        h_Tnd: Tensor,
        z_TD: Tensor,
        coefficients: Tensor,
        link_h: Tensor,
        link_z: Tensor,
        m: int,
        carry: int,
    ) -> Any:
        ctx.save_for_backward(z_TD, coefficients)
        ctx.sizes = m, carry
        return torch.ops.widestream.ghc_post(h_Tnd, z_TD, coefficients, m, carry)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        z_TD, coefficients = ctx.saved_tensors
        gradient_z = None
        if ctx.needs_input_grad[1]:
            gradient_z = torch.ops.widestream.ghc_post_gradient_z(gradient, coefficients, *ctx.sizes, z_TD.dtype)
        return None, gradient_z, None, gradient, z_TD, None, None


def enter(h_Tnd: Tensor, parameters: Parameters, m: int, carry: Carry, eps: float) -> tuple[Tensor, ...]:
    """(x [T, D], what `leave` needs of this connection) of a wide state that `serves`.

    Args:
        h_Tnd: the wide state.
        parameters: statics [n, c], scale [n, c], weight [d, c], gain [d], float32; the last three None with
            static coefficients.
        m, carry, eps: of the connection.
    """
    found = _Enter.apply(h_Tnd, m, CARRY_NUMBERS[carry], eps, *parameters)  # type: ignore[no-untyped-call]
    return cast("tuple[Tensor, ...]", found)


def leave(h_Tnd: Tensor, z_TD: Tensor, held: Sequence[Tensor], m: int, carry: Carry) -> Tensor:
    """The next wide state. `held`: what `enter` gave besides x. z may be float32 or bfloat16."""
    found = _Leave.apply(h_Tnd, z_TD, *held, m, CARRY_NUMBERS[carry])  # type: ignore[no-untyped-call]
    return cast(Tensor, found)


def group_norm(x: Tensor, gain: Tensor, group: int, eps: float) -> Tensor:
    """RMSNorm of each group of `group` channels, times `gain` [channels]; x [..., channels] that `serves`."""
    y, _ = torch.ops.widestream.group_norm(x.reshape(-1, x.shape[-1]), gain.float(), group, eps)
    return cast(Tensor, y.view(x.shape))


def segment_mix(a_TW: Tensor, b_TW: Tensor, weight: Tensor) -> Tensor:
    """g_i = W [a_i ; b_i] for each segment of d numbers; `weight` [d, 2d]. Returns [segments, d].

    Two products of PyTorch's into one result: the pairs [a_i ; b_i] are never put together in memory.
    """
    width = weight.shape[0]
    of_a, of_b = weight[:, :width], weight[:, width:]
    first = a_TW.reshape(-1, width) @ of_a.T
    return torch.addmm(first, b_TW.reshape(-1, width), of_b.T)


def rebuild(
    h_Tnd: Tensor, z_TD: Sequence[Tensor], parameters: Sequence[Parameters], m: int, carry: Carry, eps: float
) -> list[Tensor]:
    """The states behind each of the sub-layers, from the first state and the sub-layers' outputs; no gradient.

    Bit for bit what `enter` and `leave` gave, one pass through the sub-layers for tokens that stay in cache.
    """
    statics, *dynamic = ([p[i] for p in parameters] for i in range(4))
    lists = [[] if None in values else values for values in dynamic]
    number = CARRY_NUMBERS[carry]
    return list(torch.ops.widestream.ghc_rebuild(h_Tnd, list(z_TD), statics, *lists, m, number, eps))


# ---- What torch must know about the operators -----------------------------------------------------


def _read_shapes(h: Tensor, statics: Tensor, scale: Tensor | None, m: int) -> tuple[Tensor, ...]:
    tokens, slots, width = h.shape
    columns = statics.shape[1]
    x = h.new_empty((tokens, m * width))
    if scale is None:
        return x, statics.new_empty((1, slots, columns)), statics.new_empty((0,)), statics.new_empty((0,))
    coefficients = statics.new_empty((tokens, slots, columns))
    return x, coefficients, torch.empty_like(coefficients), statics.new_empty((tokens, slots))


def _fake_pre(
    h: Tensor, statics: Tensor, scale: Any, weight: Any, gain: Any, m: int, carry: int, eps: float
) -> tuple[Tensor, ...]:
    return _read_shapes(h, statics, scale, m)


def _fake_post(h: Tensor, z: Tensor, coefficients: Tensor, m: int, carry: int) -> Tensor:
    return torch.empty_like(h, memory_format=torch.contiguous_format)


def _fake_post_pre(
    h: Tensor,
    z: Tensor,
    coefficients: Tensor,
    statics: Tensor,
    scale: Any,
    weight: Any,
    gain: Any,
    m: int,
    carry: int,
    eps: float,
) -> tuple[Tensor, ...]:
    return _contiguous_like(h), *_read_shapes(h, statics, scale, m)


def _contiguous_like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _fake_post_backward(
    gradient: Tensor, h: Tensor, z: Tensor, coefficients: Tensor, m: int, carry: int
) -> tuple[Tensor, ...]:
    return _contiguous_like(h), _contiguous_like(z), _contiguous_like(coefficients)


def _fake_gradient_z(gradient: Tensor, coefficients: Tensor, m: int, carry: int, dtype: torch.dtype) -> Tensor:
    return gradient.new_empty((gradient.shape[0], m * gradient.shape[2]), dtype=dtype)


def _fake_backward(
    gradient_x: Any,
    gradient_new: Any,
    gradient_coefficients: Any,
    h: Tensor,
    z: Any,
    angle: Tensor,
    rho: Tensor,
    statics: Tensor,
    scale: Any,
    weight: Any,
    gain: Any,
    m: int,
    carry: int,
) -> tuple[Tensor, ...]:
    others = (statics.new_empty((0,)) if p is None else _contiguous_like(p) for p in (scale, weight, gain))
    return _contiguous_like(h), _contiguous_like(statics), *others


def _fake_rebuild(
    h: Tensor,
    z: list[Tensor],
    statics: list[Tensor],
    scale: list[Tensor],
    weight: list[Tensor],
    gain: list[Tensor],
    m: int,
    carry: int,
    eps: float,
) -> list[Tensor]:
    return [_contiguous_like(h) for _ in z]


def _fake_group_norm(x: Tensor, gain: Tensor, group: int, eps: float) -> tuple[Tensor, Tensor]:
    return _contiguous_like(x), gain.new_empty((x.shape[0], x.shape[1] // group))


def _fake_group_norm_backward(gradient: Tensor, x: Tensor, gain: Tensor, rho: Tensor, group: int) -> tuple[Tensor, ...]:
    return _contiguous_like(x), _contiguous_like(gain)


def _pre_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, *parameters, m, carry, _ = inputs
    _, _, angle, rho = output
    ctx.save_for_backward(h, angle, rho, *parameters)
    ctx.sizes = m, carry
    ctx.mark_non_differentiable(angle, rho)
    ctx.set_materialize_grads(False)


def _parameter_gradients(parameters: Sequence[Tensor | None], found: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    return tuple(None if p is None else gradient for p, gradient in zip(parameters, found, strict=True))


def _pre_backward(ctx: Any, gradient_x: Any, gradient_coefficients: Any, *_: Any) -> tuple[Any, ...]:
    h, angle, rho, *parameters = ctx.saved_tensors
    found = torch.ops.widestream.ghc_backward(
        gradient_x, None, gradient_coefficients, h, None, angle, rho, *parameters, *ctx.sizes
    )
    return found[0], *_parameter_gradients(parameters, found[1:]), None, None, None


def _post_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, z, coefficients, m, carry = inputs
    ctx.save_for_backward(h, z, coefficients)
    ctx.sizes = m, carry


def _post_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    return *torch.ops.widestream.ghc_post_backward(gradient, *ctx.saved_tensors, *ctx.sizes), None, None


def _post_pre_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    h, z, coefficients, *parameters, m, carry, _ = inputs
    h_new, _, _, angle, rho = output
    ctx.save_for_backward(h, z, coefficients, h_new, angle, rho, *parameters)
    ctx.sizes = m, carry
    ctx.mark_non_differentiable(angle, rho)
    ctx.set_materialize_grads(False)


def _post_pre_backward(
    ctx: Any, gradient_new: Any, gradient_x: Any, gradient_coefficients: Any, *_: Any
) -> tuple[Any, ...]:
    h, z, coefficients, h_new, angle, rho, *parameters = ctx.saved_tensors
    found = torch.ops.widestream.ghc_backward(
        gradient_x, None, gradient_coefficients, h_new, None, angle, rho, *parameters, *ctx.sizes
    )
    gradient = found[0] if gradient_new is None else found[0] + gradient_new
    behind = torch.ops.widestream.ghc_post_backward(gradient, h, z, coefficients, *ctx.sizes)
    return *behind, *_parameter_gradients(parameters, found[1:]), None, None, None


def _norm_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, gain, group, _ = inputs
    ctx.save_for_backward(x, gain, output[1])
    ctx.group = group
    ctx.mark_non_differentiable(output[1])


def _norm_backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Any, ...]:
    return *torch.ops.widestream.group_norm_backward(gradient, *ctx.saved_tensors, ctx.group), None, None


def _register() -> None:
    """Fake kernels, derivatives, and clear refusals of what has none."""
    fakes: dict[str, Any] = {
        "ghc_pre": _fake_pre,
        "ghc_post": _fake_post,
        "ghc_post_pre": _fake_post_pre,
        "ghc_post_backward": _fake_post_backward,
        "ghc_post_gradient_z": _fake_gradient_z,
        "ghc_backward": _fake_backward,
        "ghc_rebuild": _fake_rebuild,
        "group_norm": _fake_group_norm,
        "group_norm_backward": _fake_group_norm_backward,
    }
    derivatives: dict[str, tuple[Any, Any]] = {
        "ghc_pre": (_pre_backward, _pre_context),
        "ghc_post": (_post_backward, _post_context),
        "ghc_post_pre": (_post_pre_backward, _post_pre_context),
        "group_norm": (_norm_backward, _norm_context),
    }
    for name, fake in fakes.items():
        qualified = f"widestream::{name}"
        torch.library.register_fake(qualified, fake)
        torch.library.register_vmap(qualified, _refusal(name, "vmap over it"))
        if name in derivatives:
            backward, context = derivatives[name]
        else:
            backward, context = _refusal(name, "a second derivative"), _no_context
        torch.library.register_autograd(qualified, backward, setup_context=context)


def _no_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Nothing to keep for a derivative that is refused."""


def _refusal(name: str, what: str) -> Any:
    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"widestream::{name}: {what} is not supported by the fused operators; set WIDESTREAM_OPERATORS=off in the "
            "environment before the first use, and PyTorch's own operators compute it"
        )

    return refuse
