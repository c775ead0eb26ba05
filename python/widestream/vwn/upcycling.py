"""Function-preserving up-cycling: a trained model of width D becomes one of virtual width rD with equal logits.

Slots 0..m-1 start as the old residual stream; the further slots are written from the first step on and read as
soon as training moves the read coefficients.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from widestream.vwn.config import VWNConfig, slots_for_width
from widestream.vwn.model import VWNTransformer

if TYPE_CHECKING:
    from widestream.vwn.config import Carry, Embedding


def widen(
    model: nn.Module,
    r: float = 2.0,
    *,
    m: int = 0,
    embedding: Embedding = "linear",
    carry: Carry = "ghc",
    dynamic: bool = True,
) -> nn.Module:
    """A wide model that computes what `model` computes, to rounding, and can learn more.

    Args:
        model: a plain `VWNTransformer` (`VWNConfig.plain`), or a Hugging Face `LlamaForCausalLM`,
            `MistralForCausalLM`, `Qwen2ForCausalLM` or `Qwen3ForCausalLM`. It is not changed; memory for both is
            needed for a moment.
        r: virtual width factor, at least 1.
        m: segments of a backbone vector. Default: `slots_for_width(r)` chooses.
        embedding: "linear" adds an expansion D -> rD behind the table (its first D rows the identity, the rest
            normal); "table" widens the table itself, with new columns of the table's standard deviation;
            "repeat" copies the row into all slots.
        carry: "ghc" or "identity": the constrained carries only start *near* the identity, so that they are
            refused here.
        dynamic: coefficients that depend on the token.

    Returns:
        A `VWNTransformer`, or the Hugging Face class `VWN...ForCausalLM` of `widestream.vwn.hugging_face`; same
        dtype and device. Multi-token heads of a plain VWNTransformer keep their sub-layers, and their segment
        mix, which has another shape, begins anew.

    Raises:
        ValueError: the model is of another class, is wide already, or r and m do not fit its sizes.
    """
    if carry not in ("ghc", "identity"):
        raise ValueError(f"widen keeps the function exactly, which carry {carry!r} cannot; use 'ghc' or 'identity'")
    if m:
        n = round(r * m)
        if n < m or abs(n - r * m) > 1e-9 * n:
            raise ValueError(f"widen: r m = {r} * {m} must be a whole number of slots, at least m")
    else:
        m, n = slots_for_width(r)
    options: dict[str, Any] = {"m": m, "n": n, "embedding": embedding, "carry": carry, "dynamic": dynamic}
    if isinstance(model, VWNTransformer):
        return _widen_transformer(model, options)
    if any(base.__module__.startswith("transformers.") for base in type(model).__mro__):
        from widestream.vwn.hugging_face import widen_hugging_face

        wide: nn.Module = widen_hugging_face(model, **options)
        return wide
    raise ValueError(
        f"widen takes a plain VWNTransformer or a Hugging Face Llama, Mistral, Qwen2 or Qwen3 model for causal "
        f"language modelling, not {type(model).__name__}; for other models put GHC around each sub-layer"
    )


def _widen_transformer(model: VWNTransformer, options: dict[str, Any]) -> VWNTransformer:
    if not model.config.plain:
        raise ValueError(
            f"widen: the model is wide already (m = {model.config.m}, n = {model.config.n}); it takes a plain one"
        )
    config: VWNConfig = dataclasses.replace(
        model.config, plain=False, reduce="linear", reduce_norm="none", reduce_init="identity", **options
    )
    wide = VWNTransformer(config)
    target = wide.state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if ".mix." in name:
                continue  # a D x 2D matrix and norms of D: no segment mix computes the same
            if name == "embedding.table.weight":
                copy_embedding(target[name], value)
            else:
                target[name].copy_(value)
    reference = model.head.weight
    return wide.to(device=reference.device, dtype=reference.dtype).train(model.training)


def copy_embedding(wide: torch.Tensor, table: torch.Tensor) -> None:
    """Copies a V x D table into the first D columns; further ones become normal at the table's deviation."""
    width = table.shape[1]
    wide[:, :width].copy_(table)
    if wide.shape[1] > width:
        wide[:, width:].normal_(std=float(table.float().std()))
