"""``Tokenizer``: one face over the C++ tokenizer and, where that refuses a file, the ``tokenizers`` package."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from widestream.errors import InvalidArgumentError
from widestream.tokenizer.decoder import ByteStreamDecoder, StreamDecoder, WholeStreamDecoder

Ids = npt.NDArray[Any]  # uint16 where every id of the vocabulary fits 16 bits, else uint32
Backend = Literal["native", "tokenizers"]

_LARGEST_PEEKED_BYTES = 64 << 20


class EncodedBatch(NamedTuple):
    """The ids of N texts, one after the other: text i has ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: Ids
    """[T], uint16 or uint32."""
    offsets: npt.NDArray[np.int64]
    """[N + 1], from 0 to T."""


class EncodedText(NamedTuple):
    """Ids with the places that they come from: id i covers ``[begin[i], end[i])`` of the text."""

    ids: Ids
    """[T], uint16 or uint32."""
    begin: npt.NDArray[np.uint64]
    """[T], bytes of the UTF-8 text, or characters."""
    end: npt.NDArray[np.uint64]
    """[T]."""


class Tokenizer:
    """A tokenizer file, loaded. Immutable; usable from any number of threads.

    The C++ backend releases the GIL while it works. No method makes a Python object per token. Special tokens are plain
    text unless a call allows them; ``allowed_special`` and ``disallowed_special`` are collections of names, or "all".

    Pickling keeps path, pattern and digest, not the vocabulary: the other process loads the file again and refuses
    another content.
    """

    def __init__(self, engine: Any, path: str, pattern: str, backend: Backend) -> None:
        """Internal; use ``from_file``."""
        self._engine = engine
        self._path = path
        self._pattern = pattern
        self._backend: Backend = backend

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        pattern: str = "",
        backend: Literal["auto", "native", "tokenizers"] = "auto",
    ) -> Tokenizer:
        """Loads a ``.tiktoken`` file or a ``tokenizer.json``.

        Args:
            path: the file.
            pattern: "gpt2", "cl100k", "o200k", ...: only where the file does not say it.
            backend: "auto" takes the C++ engine, and the ``tokenizers`` package only for a SentencePiece-style BPE or
                Unigram ``tokenizer.json``; "tokenizers" takes that for any ``tokenizer.json``.

        Raises NotFoundError, IoError, ResourceExhaustedError (above 64 MiB), InvalidArgumentError (damaged, or needs
        what is not supported), and ModuleNotFoundError where the package is needed and not installed.
        """
        absolute = os.fspath(Path(path).expanduser().absolute())
        if backend not in ("auto", "native", "tokenizers"):
            raise InvalidArgumentError(f'backend is {backend!r}; it must be "auto", "native" or "tokenizers"')
        if backend == "tokenizers" or (backend == "auto" and _is_sentencepiece(absolute)):
            from widestream.tokenizer.package import PackageTokenizer

            if pattern:
                raise InvalidArgumentError(f"{absolute}: the tokenizers package takes no pattern; leave it out")
            return cls(PackageTokenizer(absolute), absolute, "", "tokenizers")
        from widestream.loader.engine import core

        return cls(core().Tokenizer.from_file(absolute, pattern), absolute, pattern, "native")

    # ---- encoding -------------------------------------------------------------------------------

    def encode(
        self,
        text: str | bytes,
        *,
        allowed_special: Iterable[str] | str = (),
        disallowed_special: Iterable[str] | str = (),
        add_special_tokens: bool = False,
        max_tokens: int | None = None,
    ) -> Ids:
        """The ids of a text: array [T], uint16 where every id of the vocabulary fits, else uint32.

        Args:
            text: str, or bytes, which need not be UTF-8.
            allowed_special: special tokens that become their id where the text spells them.
            disallowed_special: special tokens that the text must not spell; those also allowed are allowed.
            add_special_tokens: add what the file's post-processor adds (a begin-of-text token, say).
            max_tokens: keep this many ids, the added ones counted.

        Raises InvalidArgumentError (a disallowed token, an unknown name) and, for a str with lone surrogates, which
        has no UTF-8, UnicodeEncodeError: encode it first, ``text.encode("utf-8", "surrogatepass")`` or "replace".
        """
        options = self._options(allowed_special, disallowed_special, add_special_tokens, max_tokens)
        ids: Ids = self._engine.encode(text, options, True)
        return ids

    def encode_with_offsets(
        self,
        text: str | bytes,
        *,
        unit: Literal["bytes", "characters"] = "bytes",
        allowed_special: Iterable[str] | str = (),
        disallowed_special: Iterable[str] | str = (),
        add_special_tokens: bool = False,
        max_tokens: int | None = None,
    ) -> EncodedText:
        """The ids of a text and where each comes from, in bytes of its UTF-8 or in characters.

        An id inside a character covers, in characters, all of it. An added special token covers nothing. Otherwise like
        ``encode``.
        """
        if unit not in ("bytes", "characters"):
            raise InvalidArgumentError(f'unit is {unit!r}; it must be "bytes" or "characters"')
        options = self._options(allowed_special, disallowed_special, add_special_tokens, max_tokens)
        return EncodedText(*self._engine.encode_with_offsets(text, options, True, unit == "characters"))

    def encode_batch(
        self,
        texts: Any,
        *,
        threads: int = 1,
        allowed_special: Iterable[str] | str = (),
        disallowed_special: Iterable[str] | str = (),
        add_special_tokens: bool = False,
        max_tokens: int | None = None,
    ) -> EncodedBatch:
        """The ids of many texts in one array, and where each text's begin.

        Args:
            texts: a list or tuple of str and bytes; or an Arrow array, chunked array or column of strings or binary
                (pyarrow, polars and others), which is not copied.
            threads: how many work on it; 0: one per core. The result does not depend on it.
            max_tokens: of each text.

        Raises like ``encode``; the message, or a note of a UnicodeEncodeError, names the text by its index.
        """
        options = self._options(allowed_special, disallowed_special, add_special_tokens, max_tokens)
        return EncodedBatch(*self._engine.encode_batch(texts, options, True, _threads(threads)))

    def count(
        self,
        text: str | bytes,
        *,
        allowed_special: Iterable[str] | str = (),
        disallowed_special: Iterable[str] | str = (),
        add_special_tokens: bool = False,
    ) -> int:
        """``len(encode(text))``, without making the ids."""
        options = self._options(allowed_special, disallowed_special, add_special_tokens, None)
        return int(self._engine.count(text, options))

    def count_batch(
        self,
        texts: Any,
        *,
        threads: int = 1,
        allowed_special: Iterable[str] | str = (),
        disallowed_special: Iterable[str] | str = (),
        add_special_tokens: bool = False,
    ) -> npt.NDArray[np.int64]:
        """The number of ids of each text: int64 [N]. ``texts`` and ``threads`` as in ``encode_batch``."""
        options = self._options(allowed_special, disallowed_special, add_special_tokens, None)
        counts: npt.NDArray[np.int64] = self._engine.count_batch(texts, options, _threads(threads))
        return counts

    # ---- decoding -------------------------------------------------------------------------------

    def decode(self, ids: Sequence[int] | Any, *, errors: str = "replace") -> str:
        """The text of ids (an integer array or sequence); a special token gives its name.

        ``errors`` as in ``bytes.decode``: what becomes of bytes that are not UTF-8, as a cut character leaves them.
        Raises InvalidArgumentError for an id that is not in the vocabulary.
        """
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_bytes(self, ids: Sequence[int] | Any) -> bytes:
        """The bytes of ids: ``decode_bytes(encode(data)) == data`` for any bytes, unless the file normalizes text."""
        data: bytes = self._engine.decode(_as_ids(ids))
        return data

    def decode_batch(self, batch: EncodedBatch | tuple[Any, Any], *, errors: str = "replace") -> list[str]:
        """The texts of what ``encode_batch`` gave (ids and offsets)."""
        ids, offsets = batch
        data, ends = self._engine.decode_batch(_as_ids(ids), np.ascontiguousarray(offsets, dtype=np.int64))
        cuts = ends.tolist()
        return [data[begin:end].decode("utf-8", errors) for begin, end in zip(cuts, cuts[1:], strict=False)]

    def decode_stream(self, *, errors: str = "replace") -> StreamDecoder:
        """Decodes ids as they come (from a model, say), in whole characters."""
        if self._backend == "tokenizers":
            return WholeStreamDecoder(self.decode)
        return ByteStreamDecoder(self.decode_bytes, errors)

    # ---- the vocabulary -------------------------------------------------------------------------

    def id_of(self, token: str | bytes) -> int | None:
        """The id of a token by its text or bytes, special tokens by their name included; None where there is none."""
        if isinstance(token, str) and (special := self.special_token_id(token)) is not None:
            return special
        found: int | None = self._engine.token_id(token)
        return found

    def special_token_id(self, name: str) -> int | None:
        """The id of a special token such as "<|endoftext|>", or None."""
        found: int | None = self._engine.special_token_id(name)
        return found

    def token_bytes(self, id: int) -> bytes | None:
        """The bytes of an id, or None where no token has it. Of the package backend: the piece as the file spells it."""
        found: bytes | None = self._engine.token_bytes(int(id))
        return found

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens and their ids."""
        tokens: dict[str, int] = self._engine.special_tokens
        return tokens

    @property
    def vocabulary_size(self) -> int:
        """The largest id + 1, special tokens counted; ids below it may be unused."""
        return int(self._engine.vocabulary_size)

    def __len__(self) -> int:
        return self.vocabulary_size

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the ids: uint16 where every id of the vocabulary fits, else uint32."""
        return np.dtype(np.uint16 if self._engine.fits_uint16 else np.uint32)

    @property
    def backend(self) -> Backend:
        """ "native" (C++), or "tokenizers": the slow path through that package, which jobs do not take."""
        return self._backend

    @property
    def pattern(self) -> str:
        """How text is cut into words: "gpt2", "cl100k", ...; "" for the package backend."""
        return str(self._engine.pattern)

    @property
    def digest(self) -> str:
        """32 hexadecimal digits over everything that decides ids (of the package backend: over the file)."""
        return str(self._engine.digest)

    @property
    def path(self) -> str:
        """The file, absolute."""
        return self._path

    def __repr__(self) -> str:
        pattern = f", pattern {self.pattern}" if self.pattern else ""
        return f"<Tokenizer {Path(self._path).name}: {self.vocabulary_size} ids{pattern}, {self._backend}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_again, (self._path, self._pattern, self._backend, self.digest)

    def _options(
        self,
        allowed: Iterable[str] | str,
        disallowed: Iterable[str] | str,
        add_special_tokens: bool,
        max_tokens: int | None,
    ) -> Any:
        if not allowed and not disallowed and not add_special_tokens and max_tokens is None:
            return None
        from widestream.loader.engine import core

        if max_tokens is not None and max_tokens < 0:
            raise InvalidArgumentError(f"max_tokens is {max_tokens}; it must not be negative")
        if self._backend == "tokenizers":
            from widestream.tokenizer.package import PackageOptions

            return PackageOptions.of(allowed, disallowed, add_special_tokens, max_tokens)
        return core().EncodeOptions(
            allowed_special=allowed,
            disallowed_special=disallowed,
            add_special_tokens=add_special_tokens,
            max_tokens=max_tokens,
        )


def _load_again(path: str, pattern: str, backend: Backend, digest: str) -> Tokenizer:
    """What pickling calls in the other process."""
    loaded = Tokenizer.from_file(path, pattern=pattern, backend=backend)
    if loaded.digest != digest:
        raise InvalidArgumentError(
            f"{path} has changed: its digest is {loaded.digest}, that of the tokenizer sent here was {digest}; "
            "give every process the same file"
        )
    return loaded


def _threads(threads: int) -> int:
    if not 0 <= threads <= 1024:
        raise InvalidArgumentError(f"threads is {threads}; it must be 0 (one per core) to 1024")
    return threads or len(os.sched_getaffinity(0))


def _as_ids(ids: Any) -> Ids:
    """An array that the engine takes; what does not fit is an error, never another id."""
    array = np.asarray(ids)
    if array.dtype in (np.uint16, np.uint32) and array.ndim == 1:
        return np.ascontiguousarray(array)
    if array.ndim != 1:
        raise InvalidArgumentError(f"ids have {array.ndim} dimensions; give one")
    if array.size == 0:
        return np.empty(0, dtype=np.uint32)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"ids have dtype {array.dtype}; give integers")
    if int(array.min()) < 0 or int(array.max()) > 0xFFFFFFFF:
        raise InvalidArgumentError(f"ids go from {array.min()} to {array.max()}; an id is 0 to 2**32 - 1")
    return array.astype(np.uint32)


def _is_sentencepiece(path: str) -> bool:
    """Whether a file is a tokenizer.json of the families that only the tokenizers package does."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(64).lstrip()
            if not head.startswith(b"{") or os.fstat(file.fileno()).st_size > _LARGEST_PEEKED_BYTES:
                return False
            file.seek(0)
            content = file.read()
    except OSError:
        return False  # the engine says why
    # Cheap: these words are in every such file, and their absence spares reading megabytes of vocabulary.
    if b'"Unigram"' not in content and b'"Metaspace"' not in content and b'"byte_fallback"' not in content:
        return False
    try:
        description = json.loads(content)
    except (ValueError, RecursionError):
        return False
    model = description.get("model") if isinstance(description, dict) else None
    if not isinstance(model, dict):
        return False
    if model.get("type") == "Unigram":
        return True
    steps = json.dumps([description.get(key) for key in ("normalizer", "pre_tokenizer", "decoder")])
    return bool(model.get("byte_fallback")) or '"Metaspace"' in steps
