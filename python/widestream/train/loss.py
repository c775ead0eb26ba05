"""The training loss: sums of token cross-entropies over the step, divided by the step's global counts.

Shape suffixes: T tokens, P supervised tokens, D backbone width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from widestream.vwn.model import VWNOutput, VWNTransformer

if TYPE_CHECKING:
    from widestream.train.protocol import Microbatch

# Logits of one chunk stay in the cache of a CPU core and in a small workspace on a GPU.
CHUNK_LOGITS = 1 << 20


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of -log softmax(h W^T)[target]; gradients are formed chunk by chunk in the forward pass.

    The [T, V] logits never exist as a whole, and are computed once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        position_P: Tensor,
        target_P: Tensor,
        matmul: torch.dtype,
    ) -> Tensor:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        weight = weight_VD.to(matmul)
        grad_hidden = torch.zeros_like(hidden_TD) if needs_hidden else None
        grad_weight = torch.zeros_like(weight_VD) if needs_weight else None
        total = hidden_TD.new_zeros((), dtype=torch.promote_types(hidden_TD.dtype, torch.float32))
        chunk = max(1, CHUNK_LOGITS // weight.shape[0])
        for start in range(0, position_P.shape[0], chunk):
            position = position_P[start : start + chunk]
            target = target_P[start : start + chunk].unsqueeze(1)
            h = hidden_TD.index_select(0, position).to(matmul)
            logits = (h @ weight.T).to(total.dtype)
            logits -= logits.amax(1, keepdim=True)
            at_target = logits.gather(1, target)
            exponentials = logits.exp_()
            partition = exponentials.sum(1, keepdim=True)
            total += (partition.log() - at_target).sum()
            if not (needs_hidden or needs_weight):
                continue
            # d loss / d logits = softmax - one-hot, in the memory of the logits.
            difference = exponentials.div_(partition)
            difference.scatter_add_(1, target, torch.full_like(partition, -1.0))
            difference = difference.to(matmul)
            if grad_hidden is not None:
                grad_hidden.index_copy_(0, position, (difference @ weight).to(grad_hidden.dtype))
            if grad_weight is not None:
                grad_weight += (difference.T @ h).to(grad_weight.dtype)
        ctx.gradients = grad_hidden, grad_weight
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("linear_cross_entropy can be differentiated once only")
        scaled = tuple(None if g is None else g.mul_(gradients[0].to(g.dtype)) for g in ctx.gradients)
        ctx.gradients = None
        return (*scaled, None, None, None)


def linear_cross_entropy(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    position_P: Tensor,
    target_P: Tensor,
    *,
    matmul_dtype: torch.dtype | None = None,
) -> Tensor:
    """Sum over P of the cross-entropy of `hidden[position] @ weight.T` against `target`, in nats.

    Args:
        hidden_TD: what the LM head reads.
        weight_VD: the LM head's matrix.
        position_P: int64 supervised rows of `hidden_TD`, each at most once.
        target_P: int64 ids.
        matmul_dtype: dtype of the three products. Default: that of `weight_VD`.

    Returns:
        A float32 scalar (float64 for float64 input), differentiable once.
    """
    dtype = matmul_dtype or weight_VD.dtype
    total = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_TD, weight_VD, position_P, target_P, dtype
    )
    return cast(Tensor, total)


@dataclasses.dataclass(frozen=True, slots=True)
class Targets:
    """Supervised positions of a microbatch by prediction depth (0: the next token).

    Attributes:
        positions: for each depth int64 indices into the flattened tokens.
        labels: for each depth the int64 target at those positions.
    """

    positions: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Supervised positions by depth."""
        return tuple(labels.numel() for labels in self.labels)

    def to(self, device: torch.device) -> Targets:
        """The same on `device`."""
        move = [tuple(tensor.to(device) for tensor in group) for group in (self.positions, self.labels)]
        return Targets(move[0], move[1])

    @classmethod
    def of(cls, microbatch: Microbatch, depths: int) -> Targets:
        """Targets of the next token and `depths` further ones.

        Depth d at position t predicts the label of position t + d; the last d positions of a piece have none.
        """
        mask_T, labels_T = microbatch.loss_mask.flatten(), microbatch.labels.flatten()
        bounds = microbatch.cu_seqlens.to(torch.int64)
        end_T = bounds[1:].repeat_interleave(bounds.diff(), output_size=mask_T.numel())
        positions, labels = [], []
        for depth in range(depths + 1):
            # Position t + depth is supervised and lies in the piece of t.
            source = mask_T[depth:].nonzero().squeeze(1) + depth
            at = source - depth
            if depth:
                inside = source < end_T[at]
                source, at = source[inside], at[inside]
            positions.append(at)
            labels.append(labels_T[source])
        return cls(tuple(positions), tuple(labels))


def loss_sums(
    model: VWNTransformer, output: VWNOutput, targets: Targets, *, matmul_dtype: torch.dtype | None = None
) -> tuple[Tensor, ...]:
    """Summed cross-entropy of every depth of `targets`, in nats."""
    sums = []
    weight = model.head.weight
    for hidden_TD, positions, labels in zip(output.hidden, targets.positions, targets.labels, strict=True):
        sums.append(linear_cross_entropy(hidden_TD, weight, positions, labels, matmul_dtype=matmul_dtype))
    return tuple(sums)


def step_loss(sums: tuple[Tensor, ...], counts: tuple[int, ...], mtp_loss_weight: float) -> Tensor:
    """A microbatch's share of the step's loss: sums over the step's global counts.

    Args:
        sums: from `loss_sums`.
        counts: supervised positions of the whole step by depth, all microbatches and ranks.
        mtp_loss_weight: shared equally by the depths beyond the next token.
    """
    loss = sums[0] / max(counts[0], 1)
    for total, count in zip(sums[1:], counts[1:], strict=True):
        loss = loss + total * (mtp_loss_weight / (len(sums) - 1) / max(count, 1))
    return loss
