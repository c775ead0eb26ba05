"""VWNTransformer: a pre-norm Transformer language model whose residual stream is r times wider than its
backbone.

Shape suffixes: B rows, S row length, T = B S tokens flattened, D backbone width, W = rD wide width, n slots,
d slot width, V vocabulary.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional

from widestream.vwn.attention import Attention, AttentionContext, DocumentLayout, KeyValueCache, rotary_table
from widestream.vwn.config import VWNConfig
from widestream.vwn.ghc import GHC
from widestream.vwn.width import OverWidthEmbedding, Reduce, SegmentMix


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
        self.feed_forward = _connect(FeedForward(config), config, 2 * index + 1)

    def forward(
        self, h_Tnd: Tensor, rotary: tuple[Tensor, Tensor], context: DocumentLayout | AttentionContext
    ) -> Tensor:
        """The next wide state."""
        h_Tnd = self.attention(h_Tnd, rotary, context)
        result: Tensor = self.feed_forward(h_Tnd)
        return result


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
    ) -> tuple[Tensor, Tensor]:
        """(the depth's wide state [T, rD], what the LM head reads [T, D])."""
        mixed_Tnd = self.mix(h_TW, e_TW).view(h_TW.shape[0], slots, -1)
        h_next_TW = self.layer(mixed_Tnd, rotary, context).flatten(1)
        return h_next_TW, self.exit(h_next_TW)


@dataclasses.dataclass(frozen=True, slots=True)
class VWNOutput:
    """What a forward pass gives.

    Attributes:
        hidden: [T, D] for the next token, then one for each multi-token depth; `VWNTransformer.logits` takes
            them.
        wide: the last wide state, [T, rD].
        document_end: for each token the index one past its document's last token.
    """

    hidden: tuple[Tensor, ...]
    wide: Tensor
    document_end: Tensor


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

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        *,
        mtp: bool = True,
    ) -> VWNOutput:
        """Hidden states for every prediction depth.

        Args:
            tokens: int64 ids, [B, S] or [1, T].
            position_ids: int64, same shape; positions inside the document. Default: 0 .. S-1 in every row.
            cu_seqlens: int32, document borders over the B S flattened tokens. Default: every row is one
                document.
            mtp: compute the multi-token depths too.

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
        return self._forward_flat(tokens.flatten(), position_ids.flatten(), layout, mtp)

    def _forward_flat(self, tokens_T: Tensor, position_ids_T: Tensor, layout: DocumentLayout, mtp: bool) -> VWNOutput:
        slots = self.config.n
        rotary = rotary_table(position_ids_T, self.config.head_width, self.config.rope_theta)
        e_TW = self.embedding(tokens_T)
        h_Tnd = e_TW.view(tokens_T.numel(), slots, -1)
        for layer in self.layers:
            h_Tnd = layer(h_Tnd, rotary, layout)
        h_TW = wide = h_Tnd.flatten(1)
        hidden = [self.exit(h_TW)]
        for depth, head in enumerate(self.mtp if mtp else (), start=1):
            h_TW, out_TD = head(h_TW, _ahead(e_TW, layout.document_end, depth), rotary, layout, slots)
            hidden.append(out_TD)
        return VWNOutput(tuple(hidden), wide, layout.document_end)

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
