"""DataLoader: iterates over the batches of a job."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np

from widestream.errors import DeadlineExceededError, InvalidArgumentError
from widestream.job import Job
from widestream.loader.batch import Batch, Microbatch, torch_installed
from widestream.loader.engine import core

_POLL_SECONDS = 0.25


class DataLoader:
    """The job's stream, one :class:`Batch` a step.

    ``rank`` and ``world`` (data-parallel) default to ``RANK`` and ``WORLD_SIZE`` of the environment, else 0 and the
    job's ``mesh.dp``. All ranks' layouts are computed; the tensors are this rank's. Not thread-safe; the GIL is
    released while it waits. Use it as a context manager, or call :meth:`close`.

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
        stall_seconds: float = 60.0,
        device: Any = "cpu",
        pin_memory: bool = False,
    ) -> None:
        if tensors not in ("auto", "torch", "numpy"):
            raise InvalidArgumentError(f"tensors is {tensors!r}; it must be 'auto', 'torch' or 'numpy'")
        resolved = job.resolve()
        world = world if world is not None else _environment_int("WORLD_SIZE")
        if world is not None:
            resolved["mesh"]["dp"] = world
        if rank is None:
            rank = _environment_int("RANK") or 0
        self.job = job
        self.rank = rank
        self.world: int = resolved["mesh"]["dp"]
        self.as_torch = torch_installed() if tensors == "auto" else tensors == "torch"
        self.wait_seconds = 0.0
        self.stall_seconds = stall_seconds
        self._held_out = held_out
        self._fork = fork
        self._job_json = json.dumps(resolved)
        self._host: Any = None
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
        self._delivered = False
        if self._host is not None:
            self._host.stop()
        text = json.dumps(state) if state is not None else ""
        self._host = core().Host(
            self._job_json, rank=self.rank, held_out=self._held_out, fork=self._fork, state_json=text
        )
        self._sources: list[dict[str, Any]] = self._host.sources()
        self.source_names: list[str] = [source["name"] for source in self._sources]

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
                batch = self._host.next(_POLL_SECONDS)
                break
            except DeadlineExceededError:
                # Back in Python every quarter of a second, so that Ctrl-C is noticed.
                status = self._host.status()
                if not reported and time.perf_counter() - begin > self.stall_seconds:
                    reported = True
                    self._report_stall(status, time.perf_counter() - begin)
                if status["doing"].startswith("stopped"):
                    batch = self._host.next(0.0)  # its fault came between the two calls
                    break
        self._delivered = True
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
        state: dict[str, Any] = json.loads(self._host.state_json(step))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from ``state``, whatever was delivered before."""
        if self._delivered or state != self._opened_with:
            self._open(state)

    def skip(self, steps: int) -> int:
        """Plans, journals and does not deliver the next ``steps`` steps. Returns the first of them."""
        first: int = self._host.skip(steps)
        return first

    def edit_mixture(self, mixture: dict[str, Any], at_step: int = 0) -> int:
        """Replaces the mixture from ``at_step`` on (default: the first step not yet delivered). Returns that step."""
        step: int = self._host.edit_mixture(json.dumps(mixture), at_step)
        return step

    def commit(self) -> None:
        """Makes the journal durable; call before a checkpoint is written."""
        self._host.commit_journal()

    # --- looking -----------------------------------------------------------------------------

    def shard_path(self, source: int, shard: int) -> str:
        path: str = self._sources[source]["shards"][shard]
        return path

    @property
    def sources(self) -> list[dict[str, Any]]:
        """name, format, manifest hash, shards and records (where metadata tells) of every source."""
        return self._sources

    @property
    def vocabulary_size(self) -> int:
        size: int = self._host.vocabulary_size
        return size

    @property
    def stream_hash(self) -> str:
        value: str = self._host.stream_hash
        return value

    @property
    def left_tokens(self) -> int:
        """Tokens drawn or carried but not delivered when the stream ended (``last_step: drop``)."""
        value: int = self._host.left_tokens
        return value

    def status(self) -> dict[str, Any]:
        """What the pipeline is doing, and its counters."""
        status: dict[str, Any] = self._host.status()
        return status

    def decode(self, ids: Any) -> bytes:
        """The bytes of a 1-D int64 array of token ids."""
        text: bytes = self._host.decode(np.ascontiguousarray(ids, dtype=np.int64))
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
            appended = np.array(held_out._host.append, dtype=np.int64)
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

    # --- end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Stops all threads. Batches that are held stay valid."""
        if not self._closed:
            self._closed = True
            self._host.stop()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment_int(name: str) -> int | None:
    value = os.environ.get(name)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise InvalidArgumentError(f"the environment variable {name} is {value!r}, not a whole number") from None


__all__ = ["Batch", "DataLoader", "Microbatch"]
