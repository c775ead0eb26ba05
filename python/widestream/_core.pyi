"""The C++ engine of Widestream."""

from collections.abc import Iterable, Sequence
import os
from typing import Annotated, Any, overload

import numpy
import numpy.typing
from numpy.typing import NDArray

class EncodeOptions:
    """
    How to encode: special tokens by name (or "all"), the file's post-processor, truncation. Immutable.
    """

    def __init__(
        self,
        *,
        allowed_special: str | Iterable[str] = (),
        disallowed_special: str | Iterable[str] = (),
        add_special_tokens: bool = False,
        max_tokens: int | None = None,
    ) -> None: ...

class Tokenizer:
    """
    Byte-level BPE tokenizer with the ids of tiktoken and tokenizers. widestream.Tokenizer is its public face.

    Immutable; usable from any number of threads; releases the GIL while it works. `narrow` gives uint16 ids where every id of the vocabulary fits, else uint32.
    """

    @staticmethod
    def from_file(path: str | os.PathLike[str], pattern: str = "") -> Tokenizer:
        """
        Reads a .tiktoken file or a tokenizer.json. `pattern` is needed only where the file does not say it.

        Raises NotFoundError, IoError, ResourceExhaustedError (above 64 MiB) or InvalidArgumentError.
        """

    def encode(
        self, text: str | bytes, options: EncodeOptions | None = None, narrow: bool = False
    ) -> numpy.typing.NDArray[numpy.uint16] | numpy.typing.NDArray[numpy.uint32]:
        """
        The ids of a text: numpy array [T]. Raises UnicodeEncodeError for a str with lone surrogates.
        """

    def encode_with_offsets(
        self, text: str | bytes, options: EncodeOptions | None = None, narrow: bool = False, characters: bool = False
    ) -> tuple[numpy.typing.NDArray[Any], numpy.typing.NDArray[numpy.uint64], numpy.typing.NDArray[numpy.uint64]]:
        """
        (ids [T], begin uint64 [T], end uint64 [T]) in bytes, or in characters.
        """

    def encode_batch(
        self, texts: Any, options: EncodeOptions | None = None, narrow: bool = False, threads: int = 1
    ) -> tuple[numpy.typing.NDArray[Any], numpy.typing.NDArray[numpy.int64]]:
        """
        The ids of N texts, one after the other: (ids [T], offsets int64 [N + 1]); text i has ids[offsets[i]:offsets[i + 1]].
        """

    def count(self, text: str | bytes, options: EncodeOptions | None = None) -> int:
        """The number of ids that encode would give."""

    def count_batch(
        self, texts: Any, options: EncodeOptions | None = None, threads: int = 1
    ) -> numpy.typing.NDArray[numpy.int64]:
        """The number of ids of each text: int64 [N]."""

    @overload
    def decode(self, ids: numpy.typing.NDArray[numpy.uint32]) -> bytes:
        """
        The bytes of ids [T]; a special token gives its name. Raises InvalidArgumentError for an id that is not in the vocabulary, TypeError for another dtype.
        """

    @overload
    def decode(self, ids: numpy.typing.NDArray[numpy.uint16]) -> bytes: ...
    @overload
    def decode_batch(
        self, ids: numpy.typing.NDArray[numpy.uint32], offsets: numpy.typing.NDArray[numpy.int64]
    ) -> tuple[bytes, numpy.typing.NDArray[numpy.int64]]:
        """
        (bytes of all texts, byte offsets int64 [N + 1]) of what encode_batch gave.
        """

    @overload
    def decode_batch(
        self, ids: numpy.typing.NDArray[numpy.uint16], offsets: numpy.typing.NDArray[numpy.int64]
    ) -> tuple[bytes, numpy.typing.NDArray[numpy.int64]]: ...
    def special_token_id(self, name: str) -> int | None:
        """The id of a special token such as "<|endoftext|>", or None."""

    def token_id(self, token: str | bytes) -> int | None:
        """The id of a token by its bytes, special tokens apart, or None."""

    def token_bytes(self, id: int) -> bytes | None:
        """The bytes of an id, or None where no token has it."""

    @property
    def special_tokens(self) -> dict[str, int]:
        """Special tokens by name."""

    @property
    def vocabulary_size(self) -> int:
        """The largest id + 1, special tokens counted."""

    @property
    def fits_uint16(self) -> bool:
        """Every id fits 16 bits."""

    @property
    def pattern(self) -> str:
        """How text is cut into words."""

    @property
    def digest(self) -> str:
        """32 hexadecimal digits over everything that decides ids."""

class Batch:
    """One step of one rank. Its arrays share the engine's memory."""

    @property
    def step(self) -> int: ...
    @property
    def dp_rank(self) -> int: ...
    @property
    def supervised_tokens(self) -> int: ...
    @property
    def real_tokens(self) -> int: ...
    @property
    def weights(self) -> list[int]: ...
    @property
    def tokens_by_source(self) -> list[int]: ...
    @property
    def digest(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def costs(self) -> list[float]: ...
    def microbatches(self) -> list: ...
    def pieces(self) -> dict: ...
    def layout(self) -> list: ...

def job_hash(job_json: str) -> str:
    """Of everything that the ranks of a job must agree in."""

class Client:
    """A rank's end of its node's host. Thread-safe."""

    def __init__(
        self,
        socket_path: str,
        job_json: str,
        rank: int,
        world: int,
        launch_id: str,
        state_json: str = "",
        fork: bool = False,
        begin_step: int | None = None,
        timeout_seconds: float = 60.0,
    ) -> None: ...
    def next(self, timeout_seconds: float) -> Batch | None:
        """The next batch; None at the end; DeadlineExceededError after the time."""

    def state_json(self, step: int | None = None) -> str: ...
    def skip(self, steps: int) -> int: ...
    def edit_mixture(self, mixture_json: str, at_step: int = 0) -> int: ...
    def commit_journal(self) -> None: ...
    def stop(self) -> None: ...
    def status_json(self) -> str: ...
    def description_json(self) -> str: ...
    @property
    def host_pid(self) -> int: ...
    def counters(self) -> dict: ...

class HostServer:
    """Serves a job's stream to the ranks of this node."""

    def __init__(
        self, job_json: str, folder: str, log_path: str = "", first_rank: int = 0, ranks: int = 1, journal: bool = True
    ) -> None: ...
    @staticmethod
    def constant(folder: str, steps: int, ranks: int, bucket_bytes: int, slabs: int = 4) -> HostServer:
        """
        A server of steps that nobody writes: what is measured on it is the delivery alone.
        """

    def status(self) -> dict: ...
    @property
    def socket_path(self) -> str: ...
    def stop(self) -> None: ...

class ChatRenderer:
    """
    Conversations in a fixed format; widestream.chat.FixedChat is its public face. Immutable; usable from any number of threads.
    """

    def __init__(self, tokenizer: Tokenizer, format: str) -> None: ...
    def encode_batch(
        self, conversations: list[list[tuple[str, str]]], add_generation_prompt: bool = False
    ) -> tuple[
        numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.bool_], numpy.typing.NDArray[numpy.int64]
    ]:
        """
        (ids uint32 [T], loss mask bool [T], offsets int64 [N + 1]) of lists of (role, content).
        """

    def render(self, messages: list[tuple[str, str]], add_generation_prompt: bool = False) -> bytes:
        """The conversation as text."""

def encode_chat(
    tokenizer: Tokenizer, text: str | bytes, special: list[tuple[int, int]], learned: list[tuple[int, int]]
) -> tuple[numpy.typing.NDArray[numpy.uint32], numpy.typing.NDArray[numpy.bool_]]:
    """
    (ids uint32 [T], loss mask bool [T]) of a rendered conversation; `special` and `learned` are byte ranges of its text.
    """

class TokenizeJob:
    """
    Files of records to a Megatron .bin and .idx; widestream.tokenizer.tokenize_files is its public face. `encoder`: a Tokenizer, or (callable list[bytes] -> (uint32 [T], int64 [N + 1]), vocabulary size, digest).
    """

    def __init__(
        self,
        paths: list,
        output: object,
        encoder: object,
        *,
        format: str = "",
        text: str = "text",
        append: Sequence[int] = [],
        skip_bad_records: bool = False,
        record_bytes: int = 33554432,
        threads: int = 0,
        overwrite: bool = False,
        restart: bool = False,
        checkpoint_bytes: int = 67108864,
    ) -> None: ...
    def run(self) -> None:
        """Works until the output is there. Call once."""

    def cancel(self) -> None:
        """Makes run raise CancelledError soon; from any thread."""

    def progress(self) -> dict[str, Any]:
        """
        documents, empty, bad, tokens, text_bytes, resumed_documents, resumed_text_bytes, shards, shards_done, input_bytes, input_bytes_done, assembling. From any thread.
        """

    @property
    def id_bytes(self) -> int:
        """2 (uint16) or 4 (int32)."""

    @property
    def first_bad_record(self) -> str:
        """Why the first record that was left out is bad, or ""."""

def check_job(job_json: str) -> str:
    """Parses and validates a resolved job; returns its canonical JSON."""

def set_arrow_glue(path: str) -> None:
    """
    Where the Parquet glue library is; it is loaded when a source needs it.
    """

class Host:
    """The data plane on threads of this process, for one rank."""

    def __init__(
        self,
        job_json: str,
        rank: int = 0,
        held_out: bool = False,
        fork: bool = False,
        journal: bool = True,
        state_json: str = "",
    ) -> None: ...
    def next(self, timeout_seconds: float) -> Batch | None:
        """The next batch; None at the end; DeadlineExceededError after the time."""

    def state_json(self, step: int | None = None) -> str: ...
    def skip(self, steps: int) -> int: ...
    def edit_mixture(self, mixture_json: str, at_step: int = 0) -> int: ...
    def commit_journal(self) -> None: ...
    def stop(self) -> None: ...
    def status_json(self) -> str: ...
    def description_json(self) -> str: ...

def list_shards(path: str | os.PathLike[str], format: str = "") -> dict[str, Any]:
    """
    The files of a file, folder or glob as one source would see them: {format, hash, shards: [{path, size_bytes, fingerprint}]}.
    """

class InspectedShard:
    """
    An open shard: what its metadata says, and first records of its units. Not thread-safe.
    """

    def __init__(self, path: object, *, format: str = "", text: str = "text", record_bytes: int = 33554432) -> None: ...
    def schema(self) -> list[str]:
        """Lines "name: type"; empty where there is none."""

    @property
    def id_bytes(self) -> int:
        """
        Bytes of an id where the records last read are tokenized already, else 0.
        """

    def units(self) -> list[tuple[int | None, int, int]]:
        """(records or None, bytes, first record) of each unit."""

    def read(self, unit: int, records: int, bytes: int) -> list[tuple[bytes, int, str]]:
        """
        The first records of a unit, at most about `bytes`: (text, offset, why it is bad or "").
        """

class JournalReader:
    """
    A journal as it is on disk; a torn tail is described, not an error. Immutable.
    """

    def __init__(self, path: object) -> None:
        """
        Raises NotFoundError, or DataCorruptionError if not even the first record is whole.
        """

    @property
    def stream_hash(self) -> str: ...
    @property
    def sources(self) -> list[str]: ...
    @property
    def steps(self) -> list[tuple[int, str]]:
        """(step, digest), ascending."""

    @property
    def decisions(self) -> list[dict[str, Any]]: ...
    @property
    def manifests(self) -> list[tuple[int, int, str]]:
        """(source, epoch, hash), as recorded."""

    @property
    def notes(self) -> list[str]: ...
    @property
    def valid_bytes(self) -> int: ...
    @property
    def tear(self) -> dict[str, Any] | None:
        """None, or {offset_bytes, lost_bytes, records_follow, reason}."""

    def read_step(self, step: int) -> dict[str, Any]:
        """
        {step, skipped, real_tokens, supervised_tokens, digest, pieces, layout}. NotFoundError names the steps that there are.
        """

    def piece_lengths(self, step: int) -> list[int]:
        """Tokens of each piece of a step."""

    def read_manifest(self, source: int, epoch: int) -> dict[str, Any]:
        """{source, epoch, hash, bytes}."""

def repair_journal(path: str | os.PathLike[str], even_if_records_follow: bool = False) -> dict[str, Any] | None:
    """
    Cuts a torn tail; returns what was cut (as JournalReader.tear) or None. Raises DataCorruptionError if whole records follow the damage.
    """

class Place:
    """One trainer rank of a mesh."""

    @property
    def rank(self) -> int: ...
    @property
    def dp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def fetches(self) -> bool: ...
    @property
    def leader(self) -> int: ...
    @property
    def first_stage(self) -> bool: ...
    @property
    def last_stage(self) -> bool: ...
    @property
    def leads_cp(self) -> bool: ...
    @property
    def leads_pp(self) -> bool: ...

class PlaceTree:
    """The places of a mesh; immutable."""

    def __init__(self, mesh_json: str) -> None: ...
    @property
    def world(self) -> int: ...
    def place(self, rank: int) -> Place: ...
    def ranks_of_dp(self, dp: int) -> list[int]: ...
    def fetching_ranks_of_dp(self, dp: int) -> list[int]: ...
    def groups(self) -> list[list[int]]: ...
    def check_world(self, world: int) -> None: ...
    def __str__(self) -> str: ...

def balance(
    costs: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    bins: int,
    method: str = "lpt",
    group_size: int = 0,
    atoms_cap: int = 0,
    tokens_cap: int = 0,
    tokens: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order="C", device="cpu", writable=False)]
    | None = None,
) -> tuple:
    """
    Atoms to bins: (bin of each atom, load of each bin, largest load, lower bound).
    """

def pack_rows(
    lengths: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order="C", device="cpu", writable=False)],
    rows: int,
    row_tokens: int,
) -> object:
    """
    Best-fit decreasing: the row of each piece, 2**32 - 1 where there was no room.
    """

class TransformerShape:
    """A model's shape, for its cost."""

    def __init__(self) -> None: ...
    @property
    def layers(self) -> int: ...
    @layers.setter
    def layers(self, arg: int, /) -> None: ...
    @property
    def hidden_size(self) -> int: ...
    @hidden_size.setter
    def hidden_size(self, arg: int, /) -> None: ...
    @property
    def heads(self) -> int: ...
    @heads.setter
    def heads(self, arg: int, /) -> None: ...
    @property
    def kv_heads(self) -> int: ...
    @kv_heads.setter
    def kv_heads(self, arg: int, /) -> None: ...
    @property
    def head_size(self) -> int: ...
    @head_size.setter
    def head_size(self, arg: int, /) -> None: ...
    @property
    def intermediate_size(self) -> int: ...
    @intermediate_size.setter
    def intermediate_size(self, arg: int, /) -> None: ...
    @property
    def gated(self) -> bool: ...
    @gated.setter
    def gated(self, arg: bool, /) -> None: ...
    @property
    def experts(self) -> int: ...
    @experts.setter
    def experts(self, arg: int, /) -> None: ...
    @property
    def active_experts(self) -> int: ...
    @active_experts.setter
    def active_experts(self, arg: int, /) -> None: ...
    @property
    def vocabulary(self) -> int: ...
    @vocabulary.setter
    def vocabulary(self, arg: int, /) -> None: ...
    @property
    def window_tokens(self) -> int: ...
    @window_tokens.setter
    def window_tokens(self, arg: int, /) -> None: ...
    @property
    def window_layers(self) -> int: ...
    @window_layers.setter
    def window_layers(self, arg: int, /) -> None: ...
    @property
    def causal(self) -> bool: ...
    @causal.setter
    def causal(self, arg: bool, /) -> None: ...

def transformer_cost(shape: TransformerShape) -> dict:
    """The planner's integers for pieces of text under this model."""

def sequence_flops(shape: TransformerShape, length: int) -> float:
    """Operations of a forward pass of one sequence."""

def activation_bytes(shape: TransformerShape, length: int, tensor_parallel: int = 1) -> float:
    """Bytes kept for the backward pass, without recomputation."""
