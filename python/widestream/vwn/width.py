"""Entrance and exit of the wide state: over-width embedding, reduce, and the input of the multi-token head.

Shape suffixes: T tokens (or any leading sizes), D backbone width, W = rD wide width, n slots, d slot width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from widestream.vwn import operators
from widestream.vwn.config import VWNConfig


class OverWidthEmbedding(nn.Module):
    """Token ids to the wide embedding [..., rD]; slot k is columns k d to (k+1) d.

    "table": a V x rD table. "linear": a V x D table and W_expand, whose first D rows start as the identity so
    that the first m slots start as the table's row. "repeat": slot j is segment j mod m of the table's row.
    """

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.kind = "table" if config.plain else config.embedding
        columns = config.wide_width if self.kind == "table" else config.d_model
        self.repeats = config.n // config.m if self.kind == "repeat" else 1
        self.table = nn.Embedding(config.vocabulary_size, columns)
        nn.init.normal_(self.table.weight, std=config.embedding_init_std)
        if self.kind == "linear":
            self.expand = nn.Linear(config.d_model, config.wide_width, bias=False)
            with torch.no_grad():
                nn.init.normal_(self.expand.weight, std=config.d_model**-0.5)
                self.expand.weight[: config.d_model] = torch.eye(config.d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """Wide embeddings [..., rD] of int64 ids [...]."""
        base: Tensor = self.table(tokens)
        if self.kind == "linear":
            expanded: Tensor = self.expand(base)
            return expanded
        return base.repeat((1,) * tokens.dim() + (self.repeats,)) if self.repeats > 1 else base


class GroupedNorm(nn.Module):
    """RMSNorm, or LayerNorm without bias, of each group of `group` neighbouring channels; one gain a channel."""

    def __init__(self, channels: int, group: int, eps: float, *, subtract_mean: bool = False) -> None:
        super().__init__()
        if channels % group:
            raise ValueError(f"GroupedNorm: {channels} channels are no multiple of the group size {group}")
        self.channels, self.group, self.eps, self.subtract_mean = channels, group, eps, subtract_mean
        self.weight = nn.Parameter(torch.ones(channels))
        operators.load()

    def forward(self, x: Tensor) -> Tensor:
        """Normalised x, same shape [..., channels] and dtype."""
        if not self.subtract_mean and self.weight.dtype != torch.float64 and operators.serves(x):
            return operators.group_norm(x, self.weight, self.group, self.eps)
        grouped = x.reshape(*x.shape[:-1], self.channels // self.group, self.group)
        if self.subtract_mean:
            normed = nn.functional.layer_norm(grouped, (self.group,), None, None, self.eps)
        else:
            normed = nn.functional.rms_norm(grouped, (self.group,), None, self.eps)
        return normed.reshape(x.shape).to(x.dtype) * self.weight.to(x.dtype)


class SlotReduce(nn.Module):
    """n slots to m segments, [..., rD] -> [..., D]: an n x m matrix, or the sum of slots j, j + m, ..."""

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.m, self.n, self.slot_width = config.m, config.n, config.slot_width
        if config.reduce == "sum":
            self.register_parameter("matrix", None)
        elif config.reduce_init == "identity":
            self.matrix = nn.Parameter(torch.eye(config.n, config.m))
        else:
            self.matrix = nn.Parameter(torch.randn(config.n, config.m) * config.n**-0.5)

    def forward(self, h_TW: Tensor) -> Tensor:
        """[..., rD] -> [..., D], in the dtype of the state."""
        h = h_TW.reshape(*h_TW.shape[:-1], self.n, self.slot_width)
        if self.matrix is None:
            matrix = torch.eye(self.m, device=h.device).repeat(-(-self.n // self.m), 1)[: self.n]
        else:
            matrix = self.matrix
        with torch.autocast(h.device.type, enabled=False):
            return torch.einsum("ik,...id->...kd", matrix.to(h.dtype), h).flatten(-2)


class Reduce(nn.Module):
    """The wide state to the backbone width before the LM head: W_reduce GroupedNorm(h), [..., rD] -> [..., D].

    The groups are D wide, so there is a norm only where r is an integer (`reduce_norm: auto`). `reduce` chooses
    a D x rD matrix ("linear"), an n x m matrix over the slots ("slot") or the sum of the slots ("sum").
    """

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        wide, d_model = config.wide_width, config.d_model
        self.norm: nn.Module = (
            GroupedNorm(wide, d_model, config.norm_eps, subtract_mean=config.reduce_norm == "layer")
            if config.groups_reduce_norm
            else nn.Identity()
        )
        if config.reduce != "linear":
            self.linear: nn.Module = SlotReduce(config)
            return
        linear = nn.Linear(wide, d_model, bias=False)
        with torch.no_grad():
            if config.reduce_init == "identity":
                linear.weight.copy_(torch.eye(d_model, wide))
            else:
                nn.init.normal_(linear.weight, std=wide**-0.5)
        self.linear = linear

    def forward(self, h_TW: Tensor) -> Tensor:
        """[..., rD] -> [..., D], in the dtype of the state (autocast or not)."""
        reduced: Tensor = self.linear(self.norm(h_TW))
        return reduced.to(h_TW.dtype)


class SegmentMix(nn.Module):
    """Input of a multi-token depth: g_i = W [a_i ; b_i] for each of n segments, one d x 2d matrix for all.

    a is the normalised wide state of the depth before, b the normalised wide embedding of the next token. A
    dense 2rD -> rD matrix would cost n^2 times as much.
    """

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.n, self.slot_width = config.n, config.slot_width
        self.state_norm = nn.RMSNorm(config.wide_width, eps=config.norm_eps)
        self.embedding_norm = nn.RMSNorm(config.wide_width, eps=config.norm_eps)
        self.linear = nn.Linear(2 * self.slot_width, self.slot_width, bias=False)
        nn.init.normal_(self.linear.weight, std=(2 * self.slot_width) ** -0.5)

    def forward(self, h_TW: Tensor, e_TW: Tensor) -> Tensor:
        """Mixed wide state [T, rD] of the state and the embedding, both [T, rD]."""
        if operators.serves(h_TW) and operators.serves(e_TW) and self.state_norm.weight.dtype != torch.float64:
            a_TW = _whole_norm(self.state_norm, h_TW)
            b_TW = _whole_norm(self.embedding_norm, e_TW).to(a_TW.dtype)
            fused = operators.segment_mix(a_TW, b_TW, self.linear.weight)
            return fused.view(h_TW.shape).to(h_TW.dtype)
        slots = (*h_TW.shape[:-1], self.n, self.slot_width)
        a = self.state_norm(h_TW).view(slots)
        b = self.embedding_norm(e_TW).view(slots)
        mixed: Tensor = self.linear(torch.cat((a, b.to(a.dtype)), dim=-1))
        return mixed.view(h_TW.shape).to(h_TW.dtype)


def _whole_norm(norm: nn.RMSNorm, x_TW: Tensor) -> Tensor:
    return operators.group_norm(x_TW, norm.weight, x_TW.shape[-1], norm.eps or 0.0)
