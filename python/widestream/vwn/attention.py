"""Causal attention inside documents, at the cost of the sum of L_i^2 over documents.

`DocumentLayout` plans once per microbatch, for all layers: documents of similar length are stacked into one
padded [documents, L] batch for one call of SDPA. Padding stands behind a document's last token, so the causal
mask alone keeps it out of every real token's result: no mask tensor, no T x T work, and no document sees
another.

Shape suffixes: T tokens, P tokens with padding, N documents of a group, L padded length, H query heads, K
key/value heads, h head width, D backbone width.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from widestream.vwn.config import VWNConfig

# Query-key pairs that may be wasted on padding before another SDPA call is cheaper (a call's fixed cost on a
# CPU, forward and backward, is about that of a document of 64 tokens).
GROUP_WASTE_PAIRS = 64 * 64


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentGroup:
    """`documents` documents stacked at `padded_length` tokens each."""

    documents: int
    padded_length: int


@dataclasses.dataclass(frozen=True, slots=True)
class DocumentLayout:
    """How the T tokens of a microbatch are grouped for attention; immutable, made by `from_cu_seqlens`.

    Attributes:
        groups: the SDPA calls, in order.
        padded_index: for each padded position the token it holds (position 0's token for padding), int64;
            None where the tokens already lie as one unpadded group.
        token_index: for each token its padded position, int64; None in the same case.
        document_end: for each token the index one past its document's last token, int64.
    """

    groups: tuple[DocumentGroup, ...]
    padded_index: Tensor | None
    token_index: Tensor | None
    document_end: Tensor

    @property
    def pairs(self) -> int:
        """Query-key pairs computed, padding included (before the causal half)."""
        return sum(group.documents * group.padded_length**2 for group in self.groups)

    @classmethod
    def from_cu_seqlens(
        cls,
        cu_seqlens: Tensor,
        tokens: int,
        waste_pairs: int = GROUP_WASTE_PAIRS,
        *,
        device: torch.device | None = None,
    ) -> DocumentLayout:
        """Plans the groups.

        Args:
            cu_seqlens: int32 or int64 [documents + 1], from 0 to `tokens`, not decreasing.
            tokens: T.
            waste_pairs: padding a group may hold, in query-key pairs.
            device: of the layout's tensors. Default: that of `cu_seqlens`.

        Raises:
            ValueError: cu_seqlens does not describe `tokens` tokens.
        """
        if cu_seqlens.dim() != 1 or cu_seqlens.numel() < 1 or cu_seqlens.is_floating_point():
            raise ValueError(f"cu_seqlens must be a list of whole numbers; got {list(cu_seqlens.shape)}")
        bounds = cu_seqlens.to(device="cpu", dtype=torch.int64)
        lengths = bounds.diff()
        if int(bounds[0]) != 0 or int(bounds[-1]) != tokens or bool((lengths < 0).any()):
            raise ValueError(
                f"cu_seqlens must rise from 0 to the number of tokens, {tokens}; it goes from "
                f"{int(bounds[0])} to {int(bounds[-1])}"
                + (" and falls in between" if bool((lengths < 0).any()) else "")
            )
        device = device or cu_seqlens.device
        keep = lengths > 0
        starts, lengths = bounds[:-1][keep], lengths[keep]
        document_end_T = (starts + lengths).repeat_interleave(lengths).to(device)
        sorted_lengths, order = torch.sort(lengths, descending=True, stable=True)
        groups = _group(sorted_lengths.tolist(), waste_pairs)
        if sum(group.documents * group.padded_length for group in groups) == tokens and len(groups) <= 1:
            return cls(groups, None, None, document_end_T)
        padded_lengths = torch.tensor([group.padded_length for group in groups]).repeat_interleave(
            torch.tensor([group.documents for group in groups], dtype=torch.int64)
        )
        padded_starts = padded_lengths.cumsum(0) - padded_lengths
        # Offset of every token in its document, in the order of the sorted documents.
        within = torch.arange(tokens) - (sorted_lengths.cumsum(0) - sorted_lengths).repeat_interleave(sorted_lengths)
        source = starts[order].repeat_interleave(sorted_lengths) + within
        target = padded_starts.repeat_interleave(sorted_lengths) + within
        token_index_T = torch.empty(tokens, dtype=torch.int64).index_copy_(0, source, target)
        padded_index_P = torch.zeros(int(padded_lengths.sum()), dtype=torch.int64)
        padded_index_P.index_copy_(0, target, source)
        return cls(groups, padded_index_P.to(device), token_index_T.to(device), document_end_T)


def _group(descending_lengths: list[int], waste_pairs: int) -> tuple[DocumentGroup, ...]:
    """Neighbours in length share a group until its padding would exceed `waste_pairs`."""
    groups: list[DocumentGroup] = []
    padded_length, documents, waste = 0, 0, 0
    for length in descending_lengths:
        more = padded_length**2 - length**2
        if documents and waste + more > waste_pairs:
            groups.append(DocumentGroup(documents, padded_length))
            documents = 0
        if documents == 0:
            padded_length, waste, more = length, 0, 0
        documents += 1
        waste += more
    if documents:
        groups.append(DocumentGroup(documents, padded_length))
    return tuple(groups)


class _Stack(torch.autograd.Function):
    """Tokens to padded positions. Backward is a gather too: padding's gradient is zero, and dropped."""

    @staticmethod
    def forward(ctx: Any, x_TC: Tensor, padded_index_P: Tensor, token_index_T: Tensor) -> Tensor:
        ctx.save_for_backward(token_index_T)
        return x_TC.index_select(0, padded_index_P)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (token_index_T,) = ctx.saved_tensors
        return gradients[0].index_select(0, token_index_T), None, None


class _Unstack(torch.autograd.Function):
    """Padded positions to tokens; the gradient of padding is zero."""

    @staticmethod
    def forward(ctx: Any, x_PC: Tensor, token_index_T: Tensor) -> Tensor:
        ctx.save_for_backward(token_index_T)
        ctx.padded_tokens = x_PC.shape[0]
        return x_PC.index_select(0, token_index_T)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        (token_index_T,) = ctx.saved_tensors
        gradient_TC = gradients[0]
        gradient_PC = gradient_TC.new_zeros((ctx.padded_tokens, gradient_TC.shape[1]))
        gradient_PC[token_index_T] = gradient_TC
        return gradient_PC, None


def document_attention(q_THh: Tensor, k_TKh: Tensor, v_TKh: Tensor, layout: DocumentLayout) -> Tensor:
    """Causal attention of every token to its own document. Returns [T, H, h].

    Args:
        q_THh, k_TKh, v_TKh: queries, keys and values after the position encoding; K divides H.
        layout: the documents.
    """
    tokens, heads, width = q_THh.shape
    kv_heads = k_TKh.shape[1]
    fused_TC = torch.cat((q_THh.flatten(1), k_TKh.flatten(1), v_TKh.flatten(1)), dim=1)
    if layout.padded_index is not None:
        fused_TC = cast(
            Tensor,
            _Stack.apply(fused_TC, layout.padded_index, layout.token_index),  # type: ignore[no-untyped-call]
        )
    results: list[Tensor] = []
    start = 0
    for group in layout.groups:
        end = start + group.documents * group.padded_length
        stacked = fused_TC[start:end].view(group.documents, group.padded_length, heads + 2 * kv_heads, width)
        start = end
        q_NHLh, k_NKLh, v_NKLh = (
            part.transpose(1, 2)
            for part in (stacked[:, :, :heads], stacked[:, :, heads:-kv_heads], stacked[:, :, -kv_heads:])
        )
        out_NHLh = functional.scaled_dot_product_attention(
            q_NHLh, k_NKLh, v_NKLh, is_causal=True, enable_gqa=heads != kv_heads
        )
        results.append(out_NHLh.transpose(1, 2).flatten(2).flatten(0, 1))
    if not results:
        return q_THh
    out_PC = results[0] if len(results) == 1 else torch.cat(results)
    if layout.token_index is not None:
        out_PC = cast(Tensor, _Unstack.apply(out_PC, layout.token_index))  # type: ignore[no-untyped-call]
    return out_PC.view(tokens, heads, width)


class KeyValueCache:
    """Keys and values of one growing sequence, for decoding. D wide whatever the virtual width; not thread-safe.

    Pass it to `VWNTransformer.decode`. `length` is the number of tokens held.
    """

    def __init__(self) -> None:
        self.length = 0
        self._held: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: nn.Module, q_THh: Tensor, k_TKh: Tensor, v_TKh: Tensor) -> Tensor:
        """Adds the new tokens; they attend to all before them and themselves. Returns [T, H, h]."""
        if layer in self._held:
            k_TKh, v_TKh = (torch.cat(pair) for pair in zip(self._held[layer], (k_TKh, v_TKh), strict=True))
        self._held[layer] = (k_TKh, v_TKh)
        new, total = q_THh.shape[0], k_TKh.shape[0]
        mask = torch.ones(new, total, dtype=torch.bool, device=q_THh.device).tril(total - new)
        q_HTh, k_KTh, v_KTh = (x.transpose(0, 1).unsqueeze(0) for x in (q_THh, k_TKh, v_TKh))
        grouped = q_THh.shape[1] != k_TKh.shape[1]
        out = functional.scaled_dot_product_attention(q_HTh, k_KTh, v_KTh, attn_mask=mask, enable_gqa=grouped)
        return out.squeeze(0).transpose(0, 1)

    def truncate(self, length: int) -> None:
        """Forgets the tokens from `length` on, in every layer."""
        self._held = {layer: (k[:length], v[:length]) for layer, (k, v) in self._held.items()}
        self.length = length

    def copy(self) -> KeyValueCache:
        """Another cache with the same tokens; the two grow apart without copying what they share."""
        other = KeyValueCache()
        other.length, other._held = self.length, dict(self._held)
        return other


class AttentionContext(Protocol):
    """Where an attention's keys and values come from and go to while decoding; `KeyValueCache` is one."""

    def attend(self, layer: nn.Module, q_THh: Tensor, k_TKh: Tensor, v_TKh: Tensor) -> Tensor:
        """Takes the new keys and values in; returns the attention's result [T, H, h]."""


def rotary_table(position_ids_T: Tensor, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary encoding, both [T, 1, h/2], float32; pairs are (i, i + h/2)."""
    exponent = torch.arange(0, head_width, 2, dtype=torch.float64, device=position_ids_T.device) / head_width
    angle = position_ids_T.to(torch.float64).unsqueeze(-1) * theta**-exponent
    return angle.cos().float().unsqueeze(1), angle.sin().float().unsqueeze(1)


def apply_rotary(x_THh: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates each head of x by the angles of its position; computes in float32 or wider, keeps the dtype."""
    dtype = torch.promote_types(x_THh.dtype, torch.float32)
    cos, sin = (table.to(dtype) for table in rotary)
    first, second = x_THh.to(dtype).chunk(2, dim=-1)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return rotated.to(x_THh.dtype)


class Attention(nn.Module):
    """The attention sub-layer, [T, D] -> [T, D]: pre-norm, GQA with RoPE, output projection."""

    def __init__(self, config: VWNConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, config.head_width
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        inner = (config.heads + 2 * config.kv_heads) * config.head_width
        self.qkv = nn.Linear(config.d_model, inner, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)
        nn.init.normal_(self.qkv.weight, std=config.init_std)
        nn.init.normal_(self.out.weight, std=config.init_std / (2 * config.layers) ** 0.5)

    def project(self, x_TD: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, h], keys [T, K, h] and values [T, K, h]; the first two rotated."""
        qkv = self.qkv(self.norm(x_TD)).view(x_TD.shape[0], self.heads + 2 * self.kv_heads, self.head_width)
        rotated = apply_rotary(qkv[:, : self.heads + self.kv_heads], rotary)
        return rotated[:, : self.heads], rotated[:, self.heads :], qkv[:, self.heads + self.kv_heads :]

    def forward(
        self, x_TD: Tensor, rotary: tuple[Tensor, Tensor], context: DocumentLayout | AttentionContext
    ) -> Tensor:
        """The sub-layer's output without the residual."""
        q_THh, k_TKh, v_TKh = self.project(x_TD, rotary)
        if isinstance(context, DocumentLayout):
            out_THh = document_attention(q_THh, k_TKh, v_TKh, context)
        else:
            out_THh = context.attend(self, q_THh, k_TKh, v_TKh)
        result: Tensor = self.out(out_THh.flatten(1))
        return result
