"""Decoding ids as they come, in whole characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class StreamDecoder(Protocol):
    """Text of ids that come one after the other. One thread at a time.

    What ``push`` and ``finish`` give, joined, is the ``decode`` of all ids. A character whose bytes are split over
    tokens comes with its last byte.
    """

    def push(self, ids: int | Sequence[int] | Any) -> str:
        """The text that became whole by one id or an array of them. Raises InvalidArgumentError for an unknown id."""
        ...

    def finish(self) -> str:
        """What is left, for example U+FFFD for a character that never became whole; then starts anew."""
        ...


class ByteStreamDecoder:
    """StreamDecoder over a function from ids to bytes, for tokenizers whose tokens are bytes."""

    def __init__(self, decode_bytes: Callable[[Any], bytes], errors: str) -> None:
        self._decode_bytes = decode_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def push(self, ids: int | Sequence[int] | Any) -> str:
        return self._decoder.decode(self._decode_bytes([ids] if isinstance(ids, int) else ids))

    def finish(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class WholeStreamDecoder:
    """StreamDecoder for tokenizers whose decoder looks at several tokens: decodes what is held anew each time.

    Text is given up to the last place where the decoded text can no longer change: it holds back what ends in U+FFFD.
    """

    def __init__(self, decode: Callable[[Any], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._given = 0

    def push(self, ids: int | Sequence[int] | Any) -> str:
        added = [ids] if isinstance(ids, int) else [int(i) for i in ids]
        text = self._decode([*self._ids, *added])
        self._ids += added
        whole = text.rstrip("\ufffd")
        given = whole[self._given :]
        self._given = max(self._given, len(whole))
        return given

    def finish(self) -> str:
        rest = self._decode(self._ids)[self._given :]
        self._ids, self._given = [], 0
        return rest
