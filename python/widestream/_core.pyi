"""The C++ engine of Widestream."""

from typing import Annotated

import numpy
import numpy.typing
from numpy.typing import NDArray

class Tokenizer:
    """
    Byte-level BPE tokenizer with the ids of tiktoken and tokenizers.

    Immutable; usable from any number of threads. Special tokens never arise from text. Bytes that are not UTF-8 keep their value and count as punctuation.
    """

    @staticmethod
    def from_file(path: str, *, pattern: str = "") -> Tokenizer:
        """
        Reads a .tiktoken file or a tokenizer.json. `pattern` is "gpt2" or "cl100k", needed only where the file does not say it.

        Raises NotFoundError, IoError, ResourceExhaustedError (above 64 MiB) or InvalidArgumentError.
        """

    def encode(self, text: str | bytes) -> numpy.typing.NDArray[numpy.uint32]:
        """
        The ids of a str or bytes: numpy uint32 array [T]. Raises UnicodeEncodeError for a str with lone surrogates.
        """

    def encode_batch(
        self, texts: list[str | bytes]
    ) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.int64]]:
        """
        The ids of N texts, one after the other: (ids uint32 [T], offsets int64 [N + 1]); text i has ids[offsets[i]:offsets[i + 1]].
        """

    def decode(self, ids: numpy.typing.NDArray[numpy.uint32]) -> bytes:
        """
        The bytes of ids (uint32 [T]); a special token gives its name. Raises InvalidArgumentError for an id that is not in the vocabulary.
        """

    def special_token_id(self, name: str) -> int | None:
        """The id of a special token such as "<|endoftext|>", or None."""

    @property
    def vocabulary_size(self) -> int:
        """The largest id + 1, special tokens counted."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits over everything that decides ids."""

def check_job(job_json: str) -> str:
    """Parses and validates a resolved job; returns its canonical JSON."""

def set_arrow_glue(path: str) -> None:
    """
    Where the Parquet glue library is; it is loaded when a source needs it.
    """

class Batch:
    """One step of one rank. Its arrays share the engine's memory."""

    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def ranks(self) -> int: ...
    @property
    def supervised_tokens(self) -> int: ...
    @property
    def real_tokens(self) -> int: ...
    @property
    def weights(self) -> list[int]: ...
    @property
    def digest(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def costs(self) -> list[float]: ...
    def microbatches(self) -> list: ...
    def pieces(self) -> dict: ...
    def layout(self) -> list: ...

class Host:
    """The data plane on threads of this process."""

    def __init__(
        self, job_json: str, rank: int = 0, held_out: bool = False, fork: bool = False, state_json: str = ""
    ) -> None: ...
    def next(self, timeout_seconds: float) -> Batch | None:
        """The next batch; None at the end; DeadlineExceededError after the time."""

    def state_json(self, step: int | None = None) -> str: ...
    def skip(self, steps: int) -> int: ...
    def edit_mixture(self, mixture_json: str, at_step: int = 0) -> int: ...
    def commit_journal(self) -> None: ...
    def stop(self) -> None: ...
    def status(self) -> dict: ...
    def sources(self) -> list: ...
    @property
    def stream_hash(self) -> str: ...
    @property
    def append(self) -> list[int]: ...
    @property
    def left_tokens(self) -> int: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def tokenizer_digest(self) -> str: ...
    def decode(
        self, ids: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]
    ) -> bytes: ...
