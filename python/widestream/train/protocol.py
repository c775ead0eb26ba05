"""What the trainer needs of a loader; `widestream.DataLoader` is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Microbatch(Protocol):
    """CPU tensors of one forward and backward pass. `rows` layout: [B, S]; `thd`: [1, T].

    Attributes:
        tokens: int64 ids.
        labels: int64, the next token inside the document; anything where `loss_mask` is false.
        loss_mask: bool, which positions are supervised.
        position_ids: int64, from 0 in every piece.
        cu_seqlens: int32 [pieces + 1], piece borders over the flattened tokens; a row's padding tail is one.
        max_seqlen: tokens of the longest piece.
    """

    @property
    def tokens(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def loss_mask(self) -> Tensor: ...
    @property
    def position_ids(self) -> Tensor: ...
    @property
    def cu_seqlens(self) -> Tensor: ...
    @property
    def max_seqlen(self) -> int: ...


class ValidationMicrobatch(Microbatch, Protocol):
    """A microbatch of held-out documents; `bytes` is the size of the text of its supervised tokens."""

    @property
    def bytes(self) -> int: ...


class Batch(Protocol):
    """Everything of one optimizer step.

    Attributes:
        step: number of this step, from 0.
        supervised_tokens: true entries of `loss_mask` over the whole step and all ranks: the loss's divisor.
        microbatches: this rank's.
        tokens_by_source: real tokens of this step by source name, all ranks.
        wanted_by_source: the mixture asked for at this step: weights by source name (any scale).
    """

    @property
    def step(self) -> int: ...
    @property
    def supervised_tokens(self) -> int: ...
    @property
    def microbatches(self) -> Sequence[Microbatch]: ...
    @property
    def tokens_by_source(self) -> Mapping[str, int]: ...
    @property
    def wanted_by_source(self) -> Mapping[str, float]: ...


class Loader(Protocol):
    """A resumable stream of batches."""

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the loader's position on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch handed out, as JSON values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a saved position; called before iteration starts."""
        ...

    def commit(self) -> None:
        """Makes everything durable that a checkpoint of the present position relies on."""
        ...

    def validation_batches(self) -> Sequence[ValidationMicrobatch]:
        """The held-out documents, always the same microbatches, in memory of their own."""
        ...
