"""One process of ``bench ghc``: the fused operators, the composite path and its compiled form, cell by cell.

Forward and backward of one connection with the sub-layer's output given: gradients of the state, of that output
and of all parameters. The three take turns; what they compute is compared with float64 first.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from widestream.errors import InternalError
from widestream.vwn import GHCMixer, operators

_CHECKED_TOKENS = 130
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _mixer(d_model: int, m: int, n: int) -> GHCMixer:
    torch.manual_seed(1)
    mixer = GHCMixer(d_model, m, n)
    with torch.no_grad():
        mixer.weight.normal_()
        mixer.static.add_(torch.randn_like(mixer.static) * 0.1)
    return mixer


def _fused(mixer: GHCMixer) -> Step:
    def step(h_Tnd: Tensor, z_TD: Tensor) -> tuple[Tensor, Tensor]:
        x_TD, held = mixer.enter(h_Tnd)
        return x_TD, mixer.leave(h_Tnd, z_TD, held)

    return step


def _composite(mixer: GHCMixer) -> Step:
    def step(h_Tnd: Tensor, z_TD: Tensor) -> tuple[Tensor, Tensor]:
        coefficients_Tnc = mixer.coefficients(h_Tnd)
        return mixer.read(h_Tnd, coefficients_Tnc), mixer.write(h_Tnd, z_TD, coefficients_Tnc)

    return step


def _inputs(mixer: GHCMixer, tokens: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """State and sub-layer output, both wanting gradients; gradients of x and of the new state."""
    torch.manual_seed(2)
    wide, narrow = (tokens, mixer.n, mixer.slot_width), (tokens, mixer.d_model)
    values = [torch.randn(shape).to(dtype).requires_grad_() for shape in (wide, narrow)]
    return values, [torch.randn(shape).to(dtype) for shape in (narrow, wide)]


def _run(step: Step, mixer: GHCMixer, values: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
    outputs = step(*values)
    return [*outputs, *torch.autograd.grad(outputs, [*values, *mixer.parameters()], gradients)]


def _check(mixer: GHCMixer, dtype: torch.dtype) -> float:
    """Largest error of any output or gradient of the fused path against float64, over the value's scale."""
    values, gradients = _inputs(mixer, _CHECKED_TOKENS, dtype)
    if not mixer.fused(values[0]):
        raise InternalError("bench ghc: the fused operators are not there; install torch and build the package again")
    found = _run(_fused(mixer), mixer, values, gradients)
    exact = GHCMixer(mixer.d_model, mixer.m, mixer.n, eps=mixer.eps).double()
    exact.load_state_dict(mixer.state_dict())
    doubles = [value.detach().double().requires_grad_() for value in values]
    expected = _run(_composite(exact), exact, doubles, [gradient.double() for gradient in gradients])
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        worst = max(worst, float((a.detach().double() - b.detach()).abs().max() / b.detach().abs().max().clamp_min(1)))
    if worst > _TOLERANCE[dtype]:
        raise InternalError(f"bench ghc: the fused operators differ from float64 by {worst:.2g}; void")
    return worst


def _milliseconds(function: Callable[[], object]) -> float:
    """With one thread the processor's time, which other programs disturb least; else the wall's."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    function()
    return (clock() - begin) * 1e3


def _step_milliseconds(step: Step, mixer: GHCMixer, values: list[Tensor], gradients: list[Tensor]) -> float:
    return _milliseconds(lambda: _run(step, mixer, values, gradients))


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy too large for any cache; the best of five."""
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    target.copy_(source)
    best = min(_milliseconds(lambda: target.copy_(source)) for _ in range(5))
    return 2 * source.numel() * 4 / (best * 1e-3)


def _post_pre(mixer: GHCMixer, values: list[Tensor]) -> Callable[[], object]:
    """The write of one sub-layer with the read of the next: (2r + 2) D elements a token is the least traffic."""
    h_Tnd, z_TD = (value.detach() for value in values)
    parameters = tuple(p if p is None else p.detach() for p in mixer.operator_parameters())
    coefficients_Tnc = torch.ops.widestream.ghc_pre(h_Tnd, *parameters, mixer.m, 0, mixer.eps)[1]
    return lambda: torch.ops.widestream.ghc_post_pre(h_Tnd, z_TD, coefficients_Tnc, *parameters, mixer.m, 0, mixer.eps)


def measure_cell(cell: dict[str, Any], bandwidth: float) -> dict[str, Any]:
    """Times of one cell in milliseconds: pairs of [fused, eager, each compiled mode], and the share of the floor."""
    dtype = torch.bfloat16 if cell["dtype"] == "bfloat16" else torch.float32
    mixer = _mixer(cell["d_model"], cell["m"], cell["n"])
    error = _check(mixer, dtype)
    values, gradients = _inputs(mixer, cell["tokens"], dtype)
    steps = [_fused(mixer), _composite(mixer)]
    for mode in cell["modes"]:
        torch._dynamo.reset()
        steps.append(torch.compile(_composite(mixer), fullgraph=True, mode=mode))
    for step in steps:
        _run(step, mixer, values, gradients)
    rounds = [[_step_milliseconds(step, mixer, values, gradients) for step in steps] for _ in range(cell["pairs"])]
    post_pre = _post_pre(mixer, values)
    post_pre()
    forward = min(_milliseconds(post_pre) for _ in range(max(3, cell["pairs"])))
    elements = (2 * cell["n"] / cell["m"] + 2) * cell["d_model"] * cell["tokens"]
    floor = elements * values[0].element_size() / bandwidth * 1e3
    return {**cell, "rounds": rounds, "error": error, "floor_share": floor / forward}


def measure(arguments: dict[str, Any]) -> dict[str, Any]:
    """All cells with one number of threads."""
    torch.set_num_threads(arguments["threads"])
    bandwidth = copy_bandwidth()
    cells = [measure_cell(cell, bandwidth) for cell in arguments["cells"]]
    return {
        "cells": cells,
        "bandwidth": bandwidth,
        "instructions": operators.instructions(),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
