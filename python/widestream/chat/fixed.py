"""Conversations in fixed formats, rendered and encoded in C++."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from widestream.errors import InvalidArgumentError
from widestream.tokenizer import Tokenizer

Message = Mapping[str, Any]


class EncodedChat(NamedTuple):
    """A conversation."""

    ids: npt.NDArray[Any]
    """[T], of the tokenizer's dtype."""
    loss_mask: npt.NDArray[np.bool_]
    """[T], true where the id is the assistant's: to be learned."""


class EncodedChats(NamedTuple):
    """N conversations, one after the other; number i is at ``[offsets[i]:offsets[i + 1]]``."""

    ids: npt.NDArray[Any]
    """[T], of the tokenizer's dtype."""
    loss_mask: npt.NDArray[np.bool_]
    """[T]."""
    offsets: npt.NDArray[np.int64]
    """[N + 1]."""


class FixedChat:
    """One of the formats "chatml", "llama3" and "plain". Immutable; usable from any number of threads.

    Learned are the assistant's contents and the special token that ends them; never roles, the line ends of the format,
    or what others say. Special tokens spelled in a content stay text.
    """

    def __init__(self, tokenizer: Tokenizer, format: Literal["chatml", "llama3", "plain"]) -> None:
        """Raises InvalidArgumentError for an unknown format, special tokens that the tokenizer lacks, or a tokenizer
        of the package backend."""
        from widestream.loader.engine import core

        self._dtype = tokenizer.dtype
        self._renderer = core().ChatRenderer(native(tokenizer), format)

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> EncodedChat:
        """Ids and loss mask of a conversation: messages with the keys ``role`` and ``content``, both str.

        ``add_generation_prompt`` ends with what comes before the assistant's next words. Raises InvalidArgumentError
        for no message, an unknown role, and what is no text.
        """
        ids, mask, _ = self._renderer.encode_batch([_pairs(messages, "")], add_generation_prompt)
        return EncodedChat(ids.astype(self._dtype, copy=False), mask)

    def encode_batch(
        self, conversations: Sequence[Sequence[Message]], *, add_generation_prompt: bool = False
    ) -> EncodedChats:
        """Ids and loss masks of many conversations. Raises like ``encode``, naming the conversation by its index."""
        pairs = [_pairs(messages, f"conversation {i}: ") for i, messages in enumerate(conversations)]
        ids, mask, offsets = self._renderer.encode_batch(pairs, add_generation_prompt)
        return EncodedChats(ids.astype(self._dtype, copy=False), mask, offsets)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
        """The conversation as text, for people: it does not tell special tokens from text that spells them."""
        text: bytes = self._renderer.render(_pairs(messages, ""), add_generation_prompt)
        return text.decode()


def native(tokenizer: Tokenizer) -> Any:
    """The engine's own tokenizer, which keeps special tokens and text apart."""
    if tokenizer.backend != "native":
        raise InvalidArgumentError(
            f"{tokenizer.path} goes through the tokenizers package, which cannot keep special tokens apart from text that "
            "spells them; conversations need a byte-level BPE tokenizer"
        )
    return tokenizer._engine


def _pairs(messages: Sequence[Message], where: str) -> list[tuple[str, str]]:
    pairs = []
    if isinstance(messages, str | bytes | Mapping):
        raise InvalidArgumentError(f"{where}a conversation is a list of messages, not {type(messages).__name__}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise InvalidArgumentError(f"{where}message {index} is {type(message).__name__}, not a mapping")
        for key in ("role", "content"):
            value = message.get(key)
            if not isinstance(value, str):
                found = "is missing" if value is None else f"is {type(value).__name__}"
                raise InvalidArgumentError(f"{where}the {key} of message {index} {found}; it must be str")
        pairs.append((message["role"], message["content"]))
    return pairs
