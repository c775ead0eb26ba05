"""Self-speculative decoding: the model's multi-token heads propose, its trunk checks, greedy text comes out faster.

One pass of the trunk takes in the newest token and up to `mtp_depth` proposals; those that equal the trunk's own
choice are kept, and the pass adds one choice of its own. The text is that of greedy decoding token by token.
Rounding may differ between a pass over several tokens and one over a single token, so a choice whose two best
logits nearly tie is made again by a pass over that token alone.

Depth j of the heads reads, at position t, the state of depth j - 1 at t and the embedding of token t + j. Its
cache keeps only positions for which that token was real, not a proposal.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from widestream.vwn.attention import KeyValueCache, rotary_table
from widestream.vwn.model import MTPHead, VWNTransformer

# Logits closer than this share of the largest are decided by the one-token pass: well above what the order of
# a sum changes (about 1e-6 in float32, 1e-2 in bfloat16).
_TIE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclasses.dataclass(frozen=True, slots=True)
class SpeculativeText:
    """What a decoding gave and what it took.

    Attributes:
        tokens: the new ids, without the stop id.
        proposed, accepted: proposals that the trunk checked, and those that it would have chosen itself.
        passes: forward passes of the trunk, the prompt's and those that settle near ties included.
        seconds: wall time, the prompt included.
    """

    tokens: list[int]
    proposed: int
    accepted: int
    passes: int
    seconds: float

    @property
    def acceptance_rate(self) -> float:
        """Share of the proposals that were accepted; 0 where there was none."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """New tokens for each pass of the trunk; 1 is what plain decoding gives."""
        return len(self.tokens) / self.passes if self.passes else 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens for each second."""
        return len(self.tokens) / self.seconds if self.seconds > 0 else 0.0


@torch.no_grad()
def speculative_decode(
    model: VWNTransformer, prompt: Sequence[int], *, max_new_tokens: int, stop_ids: Collection[int] = ()
) -> SpeculativeText:
    """Greedy decoding with the model's own multi-token heads.

    Args:
        model: in evaluation mode; `mtp_depth` 0 gives plain greedy decoding.
        prompt: at least one id.
        max_new_tokens: new ids at most.
        stop_ids: ids that end the text.

    Raises:
        ValueError: the prompt is empty or has an id outside the vocabulary, or max_new_tokens is negative.
    """
    vocabulary = model.config.vocabulary_size
    if not prompt or not all(0 <= token < vocabulary for token in prompt):
        raise ValueError(f"the prompt must have at least one id, all of 0 to {vocabulary - 1}")
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; it must not be negative")
    start = time.perf_counter()
    decoder = _Decoder(model, prompt)
    limit = len(prompt) + max_new_tokens
    stop = frozenset(stop_ids)
    while len(decoder.tokens) < limit:
        before = len(decoder.tokens)
        decoder.step(limit)
        ended = next((i for i in range(before, len(decoder.tokens)) if decoder.tokens[i] in stop), None)
        if ended is not None:
            del decoder.tokens[ended:]
            break
    return SpeculativeText(
        decoder.tokens[len(prompt) :], decoder.proposed, decoder.accepted, decoder.passes, time.perf_counter() - start
    )


class _Decoder:
    """One text: tokens so far, the trunk's cache, each depth's cache and the states that wait for its next input."""

    def __init__(self, model: VWNTransformer, prompt: Sequence[int]) -> None:
        self.model, self.tokens = model, list(prompt)
        self.heads: list[MTPHead] = [head for head in model.mtp if isinstance(head, MTPHead)]
        self.cache = KeyValueCache()
        self.caches = [KeyValueCache() for _ in self.heads]
        # For each depth the state of the depth below at the one position, if any, whose real input is not known yet.
        self.waiting: list[Tensor | None] = [None] * len(self.heads)
        self.proposals: list[int] = []
        self.proposed = self.accepted = self.passes = 0
        self.device = model.head.weight.device
        self.tie = _TIE.get(model.head.weight.dtype, 1e-4)

    def step(self, limit: int) -> None:
        """One pass of the trunk, and the proposals for the next; no more than `limit` tokens in all."""
        known = len(self.tokens)
        drafts = self.proposals[: max(0, limit - known - 1)]
        fed = self.tokens[self.cache.length :] + drafts
        wide_TW = self._trunk(fed)
        # Rows from that of the newest known token on: each chooses the token behind it.
        logits_RV = self.model.logits(self.model.exit(wide_TW[-(len(drafts) + 1) :]))
        chosen, kept = self._choose(logits_RV[0], known - 1, bool(drafts)), 0
        self.tokens.append(chosen)
        while kept < len(drafts) and drafts[kept] == chosen:
            kept += 1
            chosen = self._choose(logits_RV[kept], known - 1 + kept, True)
            self.tokens.append(chosen)
        self.proposed += len(drafts)
        self.accepted += kept
        self.cache.truncate(known + kept)
        if self.heads and len(self.tokens) < limit:
            self._propose(wide_TW[: wide_TW.shape[0] - (len(drafts) - kept)])

    def _trunk(self, tokens: list[int]) -> Tensor:
        self.passes += 1
        return self.model.advance(torch.tensor(tokens, device=self.device), self.cache)

    def _choose(self, logits_V: Tensor, position: int, with_proposals: bool) -> int:
        """The greedy token behind `position`; where proposals shared its pass, near ties get a pass of their own."""
        best = logits_V.topk(min(2, logits_V.numel())).values
        if with_proposals and float(best[0] - best[-1]) <= self.tie * float(logits_V.abs().amax()):
            alone = self.cache.copy()
            alone.truncate(position)
            self.passes += 1
            logits_V = self.model.decode(torch.tensor([self.tokens[position]], device=self.device), alone)
        return int(logits_V.argmax())

    def _propose(self, state_TW: Tensor) -> None:
        """Proposals behind the newest token, from the trunk's states of the positions that it took in last."""
        config, total = self.model.config, self.cache.length
        sequence, self.proposals = list(self.tokens), []
        real_below = total
        for index, (head, cache) in enumerate(zip(self.heads, self.caches, strict=True)):
            depth, first, waiting = index + 1, cache.length, self.waiting[index]
            rows_TW = state_TW if waiting is None else torch.cat((waiting, state_TW))
            ahead_T = torch.tensor(sequence[first + depth : total + depth], device=self.device)
            position_T = torch.arange(first, total, device=self.device)
            rotary = rotary_table(position_T, config.head_width, config.rope_theta)
            state_TW, hidden_TD = head(rows_TW, self.model.embedding(ahead_T), rotary, cache, config.n)
            self.proposals.append(int(self.model.logits(hidden_TD[-1:])[0].argmax()))
            sequence.append(self.proposals[-1])
            # Token t + depth is a proposal for the last depth - 1 positions: those are done again next time.
            real = max(0, total - index)
            cache.truncate(real)
            self.waiting[index] = rows_TW[real - first : real_below - first]
            real_below = real
