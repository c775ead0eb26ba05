"""VWNTransformer: a pre-norm Transformer language model whose residual stream is r times wider than its
backbone.

Shape suffixes: B rows, S row length, T = B S tokens flattened, D backbone width, W = rD wide width, n slots,
d slot width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from widestream.vwn.attention import Attention, AttentionContext, DocumentLayout, KeyValueCache, rotary_table
from widestream.vwn.config import VWNConfig
from widestream.vwn.ghc import GHC
from widestream.vwn.moe import MixtureOfExperts, RouterRecord
from widestream.vwn.recompute import optimal_block_length, run_block
from widestream.vwn.width import OverWidthEmbedding, Reduce, SegmentMix

Recompute = Literal["none", "layer", "block"]


class FeedForward(nn.Module):
    """The SwiGLU sub-layer with its pre-norm, [T, D] -> [T, D]."""

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        self.gate_up = nn.Linear(config.d_model, 2 * config.ffn_width, bias=False)
        self.down = nn.Linear(config.ffn_width, config.d_model, bias=False)
        nn.init.normal_(self.gate_up.weight, std=config.init_std)
        nn.init.normal_(self.down.weight, std=config.init_std / (2 * config.layers) ** 0.5)

    def forward(self, x_TD: Tensor) -> Tensor:
        """The sub-layer's output without the residual."""
        gate, up = self.gate_up(self.norm(x_TD)).chunk(2, dim=-1)
        result: Tensor = self.down(functional.silu(gate) * up)
        return result


class Residual(nn.Module):
    """x + block(x): the connection of a plain model; like `GHC`, with one slot of D numbers."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, h_T1D: Tensor, *args: object) -> Tensor:
        """The next state, [T, 1, D]."""
        result: Tensor = h_T1D + self.block(h_T1D.squeeze(1), *args).unsqueeze(1)
        return result


class VWNLayer(nn.Module):
    """Attention and feed-forward, each behind its own GHC; the wide state in and out, [T, n, d]."""

    def __init__(self, config: VWNConfig, index: int = 0) -> None:
        super().__init__()
        self.attention = _connect(Attention(config), config, 2 * index)
        feed_forward = MixtureOfExperts(config) if config.experts else FeedForward(config)
        self.feed_forward = _connect(feed_forward, config, 2 * index + 1)
        self.routed = config.experts > 0

    def forward(
        self,
        h_Tnd: Tensor,
        rotary: tuple[Tensor, Tensor],
        context: DocumentLayout | AttentionContext,
        record: RouterRecord | None = None,
    ) -> Tensor:
        """The next wide state."""
        for connection, arguments in self.sub_layers(rotary, context, record):
            h_Tnd = connection(h_Tnd, *arguments)
        return h_Tnd

    def sub_layers(
        self,
        rotary: tuple[Tensor, Tensor],
        context: DocumentLayout | AttentionContext,
        record: RouterRecord | None = None,
    ) -> list[tuple[nn.Module, tuple[Any, ...]]]:
        """The two connections, each with what its sub-layer is called with besides its input."""
        return [(self.attention, (rotary, context)), (self.feed_forward, (record,) if self.routed else ())]


def _connect(block: nn.Module, config: VWNConfig, sub_layer: int) -> nn.Module:
    if config.plain:
        return Residual(block)
    return GHC(
        block,
        d_model=config.d_model,
        m=config.m,
        n=config.n,
        dynamic=config.dynamic,
        carry=config.carry,
        dyn_scale_init=config.dyn_scale_init,
        eps=config.norm_eps,
        read_offset=sub_layer * config.m % config.n if config.read_init == "rotate" else 0,
    )


class Exit(nn.Module):
    """The wide state [T, rD] to what the LM head reads, [T, D]: reduce (unless plain) and the final norm."""

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.reduce: nn.Module = nn.Identity() if config.plain else Reduce(config)
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)

    def forward(self, h_TW: Tensor) -> Tensor:
        """[T, rD] -> [T, D]."""
        result: Tensor = self.norm(self.reduce(h_TW))
        return result


class MTPHead(nn.Module):
    """One further prediction depth: segment mix of state and next embedding, one VWN layer, its own exit.

    Depth k reads the state of depth k-1 at position t and the embedding of token t+k, and predicts token
    t+k+1. The LM head is the model's.
    """

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.mix = SegmentMix(config)
        self.layer = VWNLayer(config)
        self.exit = Exit(config)

    def forward(
        self,
        h_TW: Tensor,
        e_TW: Tensor,
        rotary: tuple[Tensor, Tensor],
        context: DocumentLayout | AttentionContext,
        slots: int,
        record: RouterRecord | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(the depth's wide state [T, rD], what the LM head reads [T, D])."""
        mixed_Tnd = self.mix(h_TW, e_TW).view(h_TW.shape[0], slots, -1)
        h_next_TW = self.layer(mixed_Tnd, rotary, context, record).flatten(1)
        return h_next_TW, self.exit(h_next_TW)


@dataclasses.dataclass(frozen=True, slots=True)
class VWNOutput:
    """What a forward pass gives.

    Attributes:
        hidden: [T, D] for the next token, then one for each multi-token depth; `VWNTransformer.logits` takes
            them.
        wide: the last wide state, [T, rD].
        document_end: for each token the index one past its document's last token.
        router_loss: mean load-balance loss of the layers with experts, 1 where the load is even; None without
            experts. Add `VWNConfig.load_balance_weight` times it to the loss.
        expert_shares: [layers with experts, E], share of assignments by expert; None without experts.
    """

    hidden: tuple[Tensor, ...]
    wide: Tensor
    document_end: Tensor
    router_loss: Tensor | None = None
    expert_shares: Tensor | None = None


class VWNTransformer(nn.Module):
    """The language model of a `VWNConfig`.

    `config.plain` gives the ordinary pre-norm Transformer of the same sub-layers. Parameters are float32; run
    it under `torch.autocast` for bfloat16 matrices (the wide state and GHC stay float32 then).
    """

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = OverWidthEmbedding(config)
        self.layers = nn.ModuleList(VWNLayer(config, index) for index in range(config.layers))
        self.exit = Exit(config)
        self.head = nn.Linear(config.d_model, config.vocabulary_size, bias=False)
        nn.init.normal_(self.head.weight, std=config.init_std)
        if config.tie_embeddings:
            self.head.weight = self.embedding.table.weight
        self.mtp = nn.ModuleList(MTPHead(config) for _ in range(config.mtp_depth))
        self._recompute: Recompute = "none"
        self._block_length = 1

    def set_recompute(self, kind: Recompute, block_length: int = 0) -> None:
        """What backward computes again, to keep less memory. Values and gradients stay the same.

        Args:
            kind: "none"; "layer": each layer wholly (activation checkpointing), which keeps one wide state a
                layer; "block": only the wide states inside blocks of sub-layers, without running a sub-layer twice.
            block_length: sub-layers of a block. Default: `optimal_block_length`.

        Raises:
            ValueError: "block" for a plain model, another kind, or a negative length.
        """
        if kind not in ("none", "layer", "block") or block_length < 0:
            raise ValueError(f"recompute is none, layer or block, with block_length >= 0; not {kind!r}, {block_length}")
        if kind == "block" and self.config.plain:
            raise ValueError("recompute 'block' rebuilds wide states, and a plain model has none; use 'layer'")
        self._recompute = kind
        self._block_length = block_length or optimal_block_length(
            float(self.config.width_factor), 2 * self.config.layers
        )

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        mtp: bool = True,
        padding: Tensor | None = None,
    ) -> VWNOutput:
        """Hidden states for every prediction depth.

        Args:
            tokens: int64 ids, [B, S] or [1, T].
            position_ids: int64, same shape; positions inside the document. Default: 0 .. S-1 in every row.
            cu_seqlens: int32, document borders over the B S flattened tokens. Default: every row is one
                document.
            mtp: compute the multi-token depths too.
            padding: bool, the shape of tokens: true for padding, which no expert sees and no router counts.

        Raises:
            ValueError: shapes do not fit each other.
        """
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be [rows, row length]; got {list(tokens.shape)}")
        rows, length = tokens.shape
        if position_ids is None:
            position_ids = torch.arange(length, device=tokens.device).expand(rows, length)
        if position_ids.shape != tokens.shape:
            raise ValueError(
                f"position_ids {list(position_ids.shape)} must have the shape of tokens {list(tokens.shape)}"
            )
        if cu_seqlens is None:
            cu_seqlens = torch.arange(rows + 1) * length
        layout = DocumentLayout.from_cu_seqlens(cu_seqlens, tokens.numel(), device=tokens.device)
        if padding is not None and (padding.shape != tokens.shape or padding.dtype != torch.bool):
            raise ValueError(f"padding must be bool {list(tokens.shape)}; it is {padding.dtype} {list(padding.shape)}")
        record = RouterRecord(None if padding is None else ~padding.flatten()) if self.config.experts else None
        return self._forward_flat(tokens.flatten(), position_ids.flatten(), layout, mtp, record)

    def _forward_flat(
        self,
        tokens_T: Tensor,
        position_ids_T: Tensor,
        layout: DocumentLayout,
        mtp: bool,
        record: RouterRecord | None,
    ) -> VWNOutput:
        slots = self.config.n
        rotary = rotary_table(position_ids_T, self.config.head_width, self.config.rope_theta)
        e_TW = self.embedding(tokens_T)
        h_Tnd = self._trunk(e_TW.view(tokens_T.numel(), slots, -1), rotary, layout, record)
        h_TW = wide = h_Tnd.flatten(1)
        hidden = [self.exit(h_TW)]
        for depth, head in enumerate(self.mtp if mtp else (), start=1):
            h_TW, out_TD = head(h_TW, _ahead(e_TW, layout.document_end, depth), rotary, layout, slots, record)
            hidden.append(out_TD)
        if record is None:
            return VWNOutput(tuple(hidden), wide, layout.document_end)
        losses, shares = torch.stack(record.losses), torch.stack(record.shares)
        return VWNOutput(tuple(hidden), wide, layout.document_end, losses.mean(), shares)

    def _trunk(
        self,
        h_Tnd: Tensor,
        rotary: tuple[Tensor, Tensor],
        layout: DocumentLayout,
        record: RouterRecord | None,
    ) -> Tensor:
        """All layers, with what backward computes again left out of memory."""
        if self._recompute == "none" or not torch.is_grad_enabled():
            for layer in self.layers:
                h_Tnd = layer(h_Tnd, rotary, layout, record)
            return h_Tnd
        if self._recompute == "layer":
            for layer in self.layers:
                h_Tnd = cast(Tensor, checkpoint(layer, h_Tnd, rotary, layout, record, use_reentrant=False))
            return h_Tnd
        connections = [
            cast("tuple[GHC, tuple[Any, ...]]", sub_layer)
            for layer in self.layers
            for sub_layer in cast(VWNLayer, layer).sub_layers(rotary, layout, record)
        ]
        for start in range(0, len(connections), self._block_length):
            h_Tnd = run_block(h_Tnd, connections[start : start + self._block_length])
        return h_Tnd

    @torch.no_grad()
    def decode(self, tokens_T: Tensor, cache: KeyValueCache) -> Tensor:
        """Next-token logits [V] after the tokens that the cache holds and these, which it takes in.

        Args:
            tokens_T: int64 ids, at least one.
            cache: of this model and one sequence; empty at first.
        """
        return self.logits(self.exit(self.advance(tokens_T, cache)[-1:]))[0]

    def advance(self, tokens_T: Tensor, cache: KeyValueCache) -> Tensor:
        """The last wide state [T, rD] of `tokens_T` behind what the cache holds; the cache takes them in."""
        position_T = torch.arange(tokens_T.numel(), device=tokens_T.device) + cache.length
        h_TW: Tensor = self.run_layers(tokens_T, position_T, cache)
        cache.length += tokens_T.numel()
        return h_TW

    def run_layers(
        self, tokens_T: Tensor, position_ids_T: Tensor, context: DocumentLayout | AttentionContext
    ) -> Tensor:
        """The last wide state [T, rD], with the keys and values of any context."""
        rotary = rotary_table(position_ids_T, self.config.head_width, self.config.rope_theta)
        h_Tnd = self.embedding(tokens_T).view(tokens_T.numel(), self.config.n, -1)
        for layer in self.layers:
            h_Tnd = layer(h_Tnd, rotary, context)
        result: Tensor = h_Tnd.flatten(1)
        return result

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Logits [T, V] of any of the hidden states."""
        result: Tensor = self.head(hidden_TD)
        return result


def _ahead(e_TW: Tensor, document_end_T: Tensor, depth: int) -> Tensor:
    """Row t is the embedding `depth` tokens later, or zero where the document ends before it."""
    if e_TW.shape[0] <= depth:
        return torch.zeros_like(e_TW)
    shifted_TW = functional.pad(e_TW[depth:], (0, 0, 0, depth))
    position_T = torch.arange(e_TW.shape[0], device=e_TW.device)
    return shifted_TW.masked_fill((position_T + depth >= document_end_T).unsqueeze(1), 0.0)
