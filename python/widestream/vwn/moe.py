"""Mixture of experts: a feed-forward sub-layer of which each token uses the k experts that a router chooses.

Shape suffixes: T tokens, D backbone width, E experts, k experts of a token, F width of an expert.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from widestream.vwn.config import VWNConfig


@dataclasses.dataclass(slots=True)
class RouterRecord:
    """What the routers of one forward pass leave behind, and which tokens they must not count.

    Attributes:
        real: bool [T], false for padding, which no expert sees and no statistic counts; None where all are real.
        losses: load-balance loss of each layer.
        shares: each layer's share of assignments by expert, [E], without gradient.
    """

    real: Tensor | None = None
    losses: list[Tensor] = dataclasses.field(default_factory=list)
    shares: list[Tensor] = dataclasses.field(default_factory=list)


class MixtureOfExperts(nn.Module):
    """SwiGLU experts behind a pre-norm and a softmax router, [T, D] -> [T, D].

    A token's k weights add up to 1. The router computes in float32 or wider, autocast or not. No expert has a
    capacity: no token is dropped, so that decoding gives what training saw.
    """

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.experts, self.experts_per_token = config.experts, config.experts_per_token
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.router = nn.Linear(config.d_model, config.experts, bias=False)
        self.gate_up = nn.Parameter(torch.empty(config.experts, 2 * config.ffn_width, config.d_model))
        self.down = nn.Parameter(torch.empty(config.experts, config.d_model, config.ffn_width))
        nn.init.normal_(self.router.weight, std=config.init_std)
        nn.init.normal_(self.gate_up, std=config.init_std)
        nn.init.normal_(self.down, std=config.init_std / (2 * config.layers) ** 0.5)

    def forward(self, x_TD: Tensor, record: RouterRecord | None = None) -> Tensor:
        """The sub-layer's output without the residual; zero for padding. Adds to `record`."""
        normed_TD = self.norm(x_TD)
        with torch.autocast(x_TD.device.type, enabled=False):
            dtype = torch.promote_types(normed_TD.dtype, torch.float32)
            scores_TE = functional.linear(normed_TD.to(dtype), self.router.weight.to(dtype)).softmax(-1)
        weight_Tk, expert_Tk = scores_TE.topk(self.experts_per_token, dim=-1)
        weight_Tk = weight_Tk / weight_Tk.sum(-1, keepdim=True)
        real_T = None if record is None else record.real
        if record is not None:
            self._record(record, scores_TE, expert_Tk)
        out_TD = torch.zeros_like(x_TD)
        for expert in range(self.experts):
            chosen_Tk = expert_Tk == expert
            if real_T is not None:
                chosen_Tk = chosen_Tk & real_T.unsqueeze(1)
            token, slot = chosen_Tk.nonzero(as_tuple=True)
            gate, up = functional.linear(normed_TD[token], self.gate_up[expert]).chunk(2, dim=-1)
            result = functional.linear(functional.silu(gate) * up, self.down[expert])
            weighted = result.to(out_TD.dtype) * weight_Tk[token, slot].unsqueeze(1).to(out_TD.dtype)
            out_TD = out_TD.index_add(0, token, weighted)
        return out_TD

    def _record(self, record: RouterRecord, scores_TE: Tensor, expert_Tk: Tensor) -> None:
        """E times the sum over experts of (share of assignments) (mean score): 1 where the load is even."""
        if record.real is not None:
            scores_TE, expert_Tk = scores_TE[record.real], expert_Tk[record.real]
        counts_E = torch.bincount(expert_Tk.flatten(), minlength=self.experts).to(scores_TE.dtype)
        share_E = counts_E / max(1, expert_Tk.numel())
        mean_E = scores_TE.sum(0) / max(1, scores_TE.shape[0])
        record.losses.append(self.experts * (share_E * mean_E).sum())
        record.shares.append(share_E)
