"""The slow path: a ``tokenizer.json`` through the ``tokenizers`` package, with the methods of ``_core.Tokenizer``."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from widestream.errors import InvalidArgumentError, IoError, NotFoundError, ResourceExhaustedError

_LARGEST_FILE_BYTES = 64 << 20
_BATCH_TEXTS = 256


@dataclass(frozen=True)
class PackageOptions:
    """EncodeOptions of this path."""

    allowed: bool = False
    disallowed: tuple[str, ...] | None = ()  # None: all
    add_special_tokens: bool = False
    max_tokens: int | None = None

    @staticmethod
    def of(
        allowed: Iterable[str] | str, disallowed: Iterable[str] | str, add_special_tokens: bool, max_tokens: int | None
    ) -> PackageOptions:
        if allowed and allowed != "all":
            raise InvalidArgumentError(
                'the tokenizers package allows all special tokens or none; give allowed_special="all" or leave it out'
            )
        names = None if disallowed == "all" else tuple(disallowed)
        return PackageOptions(bool(allowed), names, add_special_tokens, max_tokens)


_DEFAULT = PackageOptions()


class PackageTokenizer:
    """One ``tokenizers.Tokenizer`` for text with special tokens as text, one where they are special. Thread-safe."""

    pattern = ""

    def __init__(self, path: str) -> None:
        content = _read(path)
        try:
            import tokenizers
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{path} needs the Python package tokenizers; pip install tokenizers", name="tokenizers"
            ) from error
        self._path = path
        self._make = tokenizers.Tokenizer
        self._json = content.decode("utf-8")
        self._plain = self._load()
        self._plain.encode_special_tokens = True
        self._special = self._load()
        added = self._plain.get_added_tokens_decoder()
        self.special_tokens: dict[str, int] = {token.content: id for id, token in added.items() if token.special}
        vocabulary = self._plain.get_vocab(with_added_tokens=True)
        self.vocabulary_size: int = max(vocabulary.values(), default=-1) + 1
        self.fits_uint16: bool = self.vocabulary_size <= 65536
        self._dtype = np.uint16 if self.fits_uint16 else np.uint32
        self.digest = hashlib.sha256(content).hexdigest()[:32]
        self._ids = set(vocabulary.values())
        self._lock = threading.Lock()
        self._truncating: tuple[tuple[bool, int], Any] | None = None

    def encode(self, text: str | bytes, options: PackageOptions | None = None, narrow: bool = True) -> Any:
        chosen = options or _DEFAULT
        plain = _text(text, None)
        return self._array(plain, self._encode(plain, chosen), chosen, "")

    def encode_with_offsets(
        self, text: str | bytes, options: PackageOptions | None = None, narrow: bool = True, characters: bool = False
    ) -> tuple[Any, Any, Any]:
        chosen = options or _DEFAULT
        plain = _text(text, None)
        found = self._encode(plain, chosen)
        ids = self._array(plain, found, chosen, "")
        spans = np.array(found.offsets, dtype=np.int64).reshape(-1, 2)[: len(ids)]
        if not characters:
            lengths = np.array([len(character.encode()) for character in plain], dtype=np.int64)
            spans = np.concatenate(([0], np.cumsum(lengths)))[spans]
        return ids, spans[:, 0].astype(np.uint64), spans[:, 1].astype(np.uint64)

    def encode_batch(
        self, texts: Any, options: PackageOptions | None = None, narrow: bool = True, threads: int = 1
    ) -> tuple[Any, npt.NDArray[np.int64]]:
        chosen = options or _DEFAULT
        parts: list[Any] = []
        plain = _texts(texts)
        for begin in range(0, len(plain), _BATCH_TEXTS):
            some = plain[begin : begin + _BATCH_TEXTS]
            for index, text in enumerate(some):
                self._check(text, chosen, f"text {begin + index}: ")
            encoder = self._encoder(chosen)
            found = encoder.encode_batch(some, add_special_tokens=chosen.add_special_tokens)
            for index, (text, one) in enumerate(zip(some, found, strict=True), begin):
                parts.append(self._array(text, one, chosen, f"text {index}: "))
        offsets = np.zeros(len(parts) + 1, dtype=np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return np.concatenate(parts) if parts else np.empty(0, dtype=self._dtype), offsets

    def count(self, text: str | bytes, options: PackageOptions | None = None) -> int:
        return len(self.encode(text, options))

    def count_batch(self, texts: Any, options: PackageOptions | None = None, threads: int = 1) -> npt.NDArray[np.int64]:
        return np.diff(self.encode_batch(texts, options, True, threads)[1])

    def decode(self, ids: Any) -> bytes:
        listed = ids.tolist()
        for position, id in enumerate(listed):
            if id not in self._ids:
                raise InvalidArgumentError(f"id {id} at position {position} is not in the vocabulary")
        text: str = self._special.decode(listed, skip_special_tokens=False)
        return text.encode()

    def decode_batch(self, ids: Any, offsets: npt.NDArray[np.int64]) -> tuple[bytes, npt.NDArray[np.int64]]:
        cuts = offsets.tolist()
        if not cuts or cuts[0] != 0 or cuts[-1] > len(ids) or cuts != sorted(cuts):
            raise InvalidArgumentError("the offsets of a batch begin with 0, ascend, and stay inside of the ids")
        texts = [self.decode(ids[begin:end]) for begin, end in zip(cuts, cuts[1:], strict=False)]
        ends = np.zeros(len(cuts), dtype=np.int64)
        np.cumsum([len(text) for text in texts], out=ends[1:])
        return b"".join(texts), ends

    def token_id(self, token: str | bytes) -> int | None:
        name = token.decode("utf-8", "replace") if isinstance(token, bytes) else token
        found: int | None = self._plain.token_to_id(name)
        return found

    def special_token_id(self, name: str) -> int | None:
        return self.special_tokens.get(name)

    def token_bytes(self, id: int) -> bytes | None:
        piece: str | None = self._plain.id_to_token(id) if id >= 0 else None
        return None if piece is None else piece.encode()

    def _load(self) -> Any:
        try:
            loaded = self._make.from_str(self._json)
        except Exception as error:  # the package raises plain Exception
            raise InvalidArgumentError(f"{self._path}: the tokenizers package refuses it: {error}") from error
        loaded.no_truncation()
        loaded.no_padding()
        return loaded

    def _encoder(self, options: PackageOptions) -> Any:
        if options.max_tokens is None or not options.add_special_tokens:
            return self._special if options.allowed else self._plain
        # The package truncates before it adds tokens, by a setting of the object.
        key = (options.allowed, options.max_tokens)
        with self._lock:
            if self._truncating is None or self._truncating[0] != key:
                encoder = self._load()
                encoder.encode_special_tokens = not options.allowed
                encoder.enable_truncation(max_length=max(options.max_tokens, 1))
                self._truncating = (key, encoder)
            return self._truncating[1]

    def _encode(self, text: str, options: PackageOptions) -> Any:
        self._check(text, options, "")
        return self._encoder(options).encode(text, add_special_tokens=options.add_special_tokens)

    def _array(self, text: str, found: Any, options: PackageOptions, where: str) -> Any:
        if not options.allowed:
            # A Unigram model may have the name of a special token among its pieces, and find it in the text.
            spelled = {id: name for name, id in self.special_tokens.items() if name in text}
            for id, added in zip(found.ids, found.special_tokens_mask, strict=True) if spelled else ():
                if id in spelled and not added:
                    raise InvalidArgumentError(
                        f"{where}the text spells the special token {spelled[id]!r}, which this tokenizer cannot keep "
                        "apart from text; allow it, or change the text"
                    )
        return np.array(found.ids[: options.max_tokens], dtype=self._dtype)

    def _check(self, text: str, options: PackageOptions, where: str) -> None:
        if options.allowed or options.disallowed == ():
            return
        for name in self.special_tokens if options.disallowed is None else options.disallowed:
            if name not in self.special_tokens:
                raise InvalidArgumentError(f"the tokenizer has no special token {name!r}")
            if name in text:
                raise InvalidArgumentError(
                    f"{where}the text has the special token {name!r}; allow it, or do not disallow it"
                )


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {path}") from error
    except OSError as error:
        raise IoError(error.errno, f"cannot read {path}: {error.strerror}") from error
    if len(content) > _LARGEST_FILE_BYTES:
        raise ResourceExhaustedError(f"{path} is larger than 64 MiB")
    if not content.lstrip().startswith(b"{"):
        raise InvalidArgumentError(f"{path} is no tokenizer.json, the only kind that the tokenizers package reads")
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not UTF-8: {error}") from error
    return content


def _text(text: str | bytes, index: int | None) -> str:
    where = "the text" if index is None else f"text {index}"
    if isinstance(text, bytes):
        try:
            return text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{where} is not UTF-8, which the tokenizers package needs: {error}") from error
    if not isinstance(text, str):
        raise TypeError(f"a text must be str or bytes, not {type(text).__name__}")
    text.encode("utf-8")  # raises for lone surrogates, as the native path does
    return text


def _texts(texts: Any) -> list[str]:
    if not isinstance(texts, list | tuple):
        if not hasattr(texts, "to_pylist"):
            raise TypeError(f"texts must be a list or tuple, or an Arrow array, not {type(texts).__name__}")
        texts = texts.to_pylist()
    return [_text(text, index) for index, text in enumerate(texts)]
