"""DataLoader: iterates over the batches of a job."""

from __future__ import annotations

import faulthandler
import functools
import json
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from widestream.errors import DeadlineExceededError, InvalidArgumentError
from widestream.hosting.attached import attach
from widestream.hosting.launch import from_environment, served
from widestream.job import Job
from widestream.loader.batch import Batch, Microbatch, torch_installed
from widestream.loader.engine import core
from widestream.loader.mesh import resolve_for_world
from widestream.loader.place_tree import ClientPlaceTree

_POLL_SECONDS = 0.25


class DataLoader:
    """The job's stream, one :class:`Batch` a step, for one rank of the job's mesh.

    Where several ranks of a node were started together (torchrun says so in the environment), they all attach to one
    host process, which the node's first rank starts; else the engine runs on threads of this process. The batches are
    the same. ``rank`` and ``world`` override the environment, and keep the engine in this process. ``host``: ``auto``
    is the above, ``embedded`` never attaches, ``attach`` joins the host that ``widestream serve`` runs for the job's
    run folder.

    Not thread-safe; the GIL is released while it waits. Use it as a context manager, or call :meth:`close`.

    Errors: the classes of :mod:`widestream.errors`. If no batch arrives for ``stall_seconds`` the stacks of all
    threads and the place where the pipeline waits go to stderr, once a stall.

    ``device`` ("cuda", "cuda:N") brings the tensors there, asynchronously and from pinned memory; ``pin_memory`` alone
    leaves them in pinned memory. Either costs one copy out of the engine's memory; the default costs none.
    """

    def __init__(
        self,
        job: Job,
        *,
        rank: int | None = None,
        world: int | None = None,
        state: dict[str, Any] | None = None,
        fork: bool = False,
        held_out: bool = False,
        tensors: str = "auto",
        host: str = "auto",
        stall_seconds: float = 60.0,
        attach_seconds: float = 60.0,
        device: Any = "cpu",
        pin_memory: bool = False,
    ) -> None:
        if tensors not in ("auto", "torch", "numpy"):
            raise InvalidArgumentError(f"tensors is {tensors!r}; it must be 'auto', 'torch' or 'numpy'")
        if host not in ("auto", "embedded", "attach"):
            raise InvalidArgumentError(f"host is {host!r}; it must be 'auto', 'embedded' or 'attach'")
        launch = from_environment()
        explicit = rank is not None or world is not None
        if launch is not None:
            rank = launch.rank if rank is None else rank
            world = launch.world if world is None else world
        self.job = job
        self.rank = 0 if rank is None else rank
        resolved, self.world = resolve_for_world(job, world)
        if not 0 <= self.rank < self.world:
            raise InvalidArgumentError(f"rank {self.rank} is not in a world of {self.world}")
        place = ClientPlaceTree(job.mesh, job.broadcast_at, world=self.world).place(self.rank)
        if not place.fetches and not held_out:
            raise InvalidArgumentError(
                f"rank {self.rank} does not fetch: the job broadcasts at {', '.join(job.broadcast_at)}, and rank "
                f"{place.leader} fetches for it; take its batches from widestream.loader.broadcast.Broadcaster"
            )
        self.as_torch = torch_installed() if tensors == "auto" else tensors == "torch"
        self.wait_seconds = 0.0
        self.stall_seconds = stall_seconds
        self._held_out = held_out
        self._fork = fork
        self._job = resolved
        self._attach_seconds = attach_seconds
        self._launch = None
        if host == "attach":
            self._launch = launch if launch is not None and not explicit else served(self.rank, self.world)
        elif host == "auto" and not explicit and not held_out and launch is not None and launch.local_world > 1:
            self._launch = launch
        self._starts_host = host == "auto"
        # Of several engines of one stream, on several nodes, the first one keeps the journal.
        self._journal = launch is None or explicit or launch.rank == 0
        self._engine: Any = None
        self._closed = False
        self._mover: Any = None
        if pin_memory or str(device) != "cpu":
            from widestream.loader.device import Mover

            if not self.as_torch:
                raise InvalidArgumentError(f"device={str(device)!r}, pin_memory={pin_memory} need torch tensors")
            self._mover = Mover(device, pin_memory=pin_memory)
        self._open(state)

    def _open(self, state: dict[str, Any] | None) -> None:
        self._opened_with = state
        self._delivered = 0
        self._step: int | None = None
        if self._engine is not None:
            self._engine.stop()
        text = json.dumps(state) if state is not None else ""
        if self._launch is not None:
            self._engine = attach(
                self._job,
                self._launch,
                state_json=text,
                fork=self._fork,
                start=self._starts_host,
                attach_seconds=self._attach_seconds,
            )
        else:
            self._engine = core().Host(
                json.dumps(self._job),
                rank=self.rank,
                held_out=self._held_out,
                fork=self._fork,
                journal=self._journal,
                state_json=text,
            )
        self._description: dict[str, Any] = json.loads(self._engine.description_json())
        self.source_names: list[str] = [source["name"] for source in self.sources]

    # --- iteration ---------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._next()
        if batch is None:
            raise StopIteration
        if self._mover is not None:
            from widestream.loader.device import move_batch

            move_batch(batch, self._mover)
        return batch

    def _next(self) -> Batch | None:
        if self._closed:
            raise InvalidArgumentError("the loader is closed")
        begin = time.perf_counter()
        reported = False
        while True:
            try:
                batch = self._engine.next(_POLL_SECONDS)
                break
            except DeadlineExceededError:
                # Back in Python every quarter of a second, so that Ctrl-C is noticed.
                status = self.status()
                if not reported and time.perf_counter() - begin > self.stall_seconds:
                    reported = True
                    self._report_stall(status, time.perf_counter() - begin)
                if status["doing"].startswith("stopped"):
                    batch = self._engine.next(0.0)  # its fault came between the two calls
                    break
        self._delivered += 1
        self.wait_seconds += time.perf_counter() - begin
        return None if batch is None else Batch(batch, self)

    @staticmethod
    def _report_stall(status: dict[str, Any], seconds: float) -> None:
        sys.stderr.write(
            f"widestream: no batch for {seconds:.0f} s; the pipeline is {status['doing']} "
            f"(since {status['doing_seconds']:.0f} s); stacks of all threads:\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)

    # --- state -------------------------------------------------------------------------------

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state after the last batch that ``next()`` returned: small, readable, the same on every rank.

        ``step``: the state before that step, for frameworks that prefetch (the last 64 steps are held).
        """
        state: dict[str, Any] = json.loads(self._engine.state_json(step))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state``, whatever was delivered before."""
        if self._delivered or state != self._opened_with:
            self._open(state)

    def skip(self, steps: int) -> int:
        """Plans, journals and does not deliver the next ``steps`` steps. Returns the first of them."""
        first: int = self._engine.skip(steps)
        return first

    def edit_mixture(self, mixture: dict[str, Any], at_step: int = 0) -> int:
        """Replaces the mixture from ``at_step`` on (default: the first step not yet delivered). Returns that step."""
        step: int = self._engine.edit_mixture(json.dumps(mixture), at_step)
        return step

    def commit(self) -> None:
        """Makes the journal durable; call before a checkpoint is written."""
        self._engine.commit_journal()

    # --- looking -----------------------------------------------------------------------------

    def shard_path(self, source: int, shard: int) -> str:
        path: str = self.sources[source]["shards"][shard]
        return path

    @property
    def sources(self) -> list[dict[str, Any]]:
        """name, format, manifest hash, shards and records (where metadata tells) of every source."""
        sources: list[dict[str, Any]] = self._description["sources"]
        return sources

    @property
    def vocabulary_size(self) -> int:
        size: int = self._description["vocabulary_size"]
        return size

    @property
    def stream_hash(self) -> str:
        value: str = self._description["stream_hash"]
        return value

    @property
    def left_tokens(self) -> int:
        """Tokens drawn or carried but not delivered when the stream ended (``last_step: drop``)."""
        value: int = self.status()["left_tokens"]
        return value

    def status(self) -> dict[str, Any]:
        """What the pipeline is doing, and its counters."""
        status: dict[str, Any] = json.loads(self._engine.status_json())
        # A host tells of itself, too: which ranks are attached, and what they have not released.
        return status if self._launch is None else {**status["pipeline"], "delivery": status["delivery"]}

    @functools.cached_property
    def _tokenizer(self) -> Any:
        assert self.job.tokenizer is not None  # the engine refuses text without one
        return core().Tokenizer.from_file(self.job.tokenizer.file, pattern=self.job.tokenizer.pattern or "")

    def decode(self, ids: Any) -> bytes:
        """The bytes of a 1-D int64 array of token ids."""
        text: bytes = self._tokenizer.decode(np.ascontiguousarray(ids, dtype=np.uint32))
        return text

    def validation_batches(self) -> list[Microbatch]:
        """The first ``validation.tokens`` held-out tokens, mixed like the job's first stage: always the same list.

        In memory of their own. ``bytes`` of each is the size of the text of its supervised tokens, in which tokens that
        the job appends to texts count nothing.
        """
        if self.job.validation.fraction <= 0:
            return []
        out: list[Microbatch] = []
        seen = 0
        with DataLoader(self.job, rank=0, world=1, held_out=True, tensors="numpy") as held_out:
            appended = np.array(held_out._description["append"], dtype=np.int64)
            for batch in held_out:
                for arrays in batch._core.microbatches():
                    microbatch = Microbatch(arrays, self.as_torch).copy()
                    targets = arrays["labels"][arrays["loss_mask"]]
                    microbatch.bytes = len(self.decode(targets[~np.isin(targets, appended)]))
                    out.append(microbatch)
                seen += batch.real_tokens
                if seen >= self.job.validation.tokens:
                    break
        return out

    @property
    def host_pid(self) -> int | None:
        """The process of the node's host; None where the engine is in this process."""
        return None if self._launch is None else int(self._engine.host_pid)

    def counters(self) -> dict[str, int]:
        """Of an attached rank: batches, mappings, system calls, and tensor bytes copied (none). Empty if embedded."""
        return {} if self._launch is None else dict(self._engine.counters())

    # --- end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops all threads. Batches that are held stay valid."""
        if not self._closed:
            self._closed = True
            self._engine.stop()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
