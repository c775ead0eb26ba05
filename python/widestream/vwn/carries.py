"""Constrained carries: how coefficient columns become the n x n carry of a token, and how they start.

"sinkhorn" (mHC) makes the carry doubly stochastic by Sinkhorn's iterations; "perm" (mHC-lite) mixes the n!
permutation matrices with softmax weights, which is doubly stochastic exactly. With either, the product of the
carries of all layers keeps row and column sums of 1, so that no state can grow through it.

Shape suffixes: T tokens, n slots, c carry columns, p permutations.
"""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor

from widestream.vwn.config import Carry

SINKHORN_ITERATIONS = 20
# exp(-8) = 0.0003: a carry near the identity that still lets a gradient through to the other entries.
INITIAL_LOGIT = 8.0


def carry_columns(n: int, carry: Carry) -> int:
    """Coefficient columns that the carry takes."""
    return {"ghc": n, "identity": 0, "sinkhorn": n, "perm": math.factorial(n) if carry == "perm" else 0}[carry]


def initial_carry(n: int, carry: Carry) -> Tensor:
    """The carry's static columns at step 0, [n, c] float32: the identity, or logits that give nearly it."""
    if carry == "ghc":
        return torch.eye(n)
    if carry == "sinkhorn":
        return INITIAL_LOGIT * (torch.eye(n) - 1.0)
    columns = torch.zeros(n, carry_columns(n, carry))
    if carry == "perm":
        columns[:, 0] = (INITIAL_LOGIT + math.log(columns.shape[1])) / n  # summed over the slots; 0 is the identity
    return columns


def carry_matrix(columns_Tnc: Tensor, carry: Carry) -> Tensor:
    """The carry [T, n, n] (entry [i, j]: from slot i to slot j) of the coefficients' carry columns [T, n, c].

    Computes in the dtype of the columns, float32 or wider. The identity carry has no matrix to build.
    """
    if carry == "ghc":
        return columns_Tnc
    if carry == "sinkhorn":
        return sinkhorn(columns_Tnc)
    weights_Tp = columns_Tnc.sum(-2).softmax(-1)
    permutations_pnn = _permutations(columns_Tnc.shape[-2]).to(weights_Tp)
    return torch.einsum("...p,pij->...ij", weights_Tp, permutations_pnn)


def sinkhorn(logits_Tnn: Tensor, iterations: int = SINKHORN_ITERATIONS) -> Tensor:
    """Doubly stochastic matrices near exp(logits): columns sum to 1 exactly, rows to 1 in the limit."""
    log_matrix = logits_Tnn
    for _ in range(iterations):
        log_matrix = log_matrix - log_matrix.logsumexp(-1, keepdim=True)
        log_matrix = log_matrix - log_matrix.logsumexp(-2, keepdim=True)
    return log_matrix.exp()


@functools.cache
def _permutations(n: int) -> Tensor:
    return torch.stack([torch.eye(n)[list(order)] for order in itertools.permutations(range(n))])
