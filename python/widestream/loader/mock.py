"""MockLoader: the job's first batch over and over, at no cost: what a trainer does when data is free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from widestream.errors import InvalidArgumentError
from widestream.job import Job
from widestream.loader.batch import Microbatch
from widestream.loader.data_loader import DataLoader

_KEY = "mock_data"


class MockBatch:
    """Step 0 of the job under another number; attributes as of `Batch`, without provenance."""

    def __init__(self, step: int, model: Any, microbatches: list[Microbatch]) -> None:
        self.step = step
        self.rank: int = model.rank
        self.dp_rank: int = getattr(model, "dp_rank", model.rank)
        self.supervised_tokens: int = model.supervised_tokens
        self.real_tokens: int = model.real_tokens
        self.digest: str = model.digest
        self.tokens_by_source: Mapping[str, int] = model.tokens_by_source
        self.wanted_by_source: Mapping[str, float] = model.wanted_by_source
        self.microbatches = microbatches


class MockLoader:
    """An endless loader whose every step is the job's first one, in memory of its own; all threads have ended before
    it is there. Its shapes, documents and differences between ranks are the real ones.

    For measuring only: a training on it learns one batch by heart. It keeps no journal, and its state is no position in
    any stream: other loaders refuse it.
    """

    def __init__(self, job: Job, *, rank: int | None = None, world: int | None = None, tensors: str = "auto") -> None:
        """Reads the first step of the job as `DataLoader` does; its errors are the same."""
        self.job = job
        self.wait_seconds = 0.0
        with DataLoader(job.model_copy(update={"run_dir": None}), rank=rank, world=world, tensors=tensors) as loader:
            batch = next(loader, None)
            if batch is None:
                raise InvalidArgumentError("the job's stream has not a single step to repeat")
            microbatches = [microbatch.copy() for microbatch in batch.microbatches]
            self._first = MockBatch(0, batch, microbatches)
            self.rank, self.world = loader.rank, loader.world
            self.vocabulary_size, self.stream_hash = loader.vocabulary_size, loader.stream_hash
            self.source_names = list(loader.source_names)
        self._next = 0

    def __iter__(self) -> Iterator[MockBatch]:
        return self

    def __next__(self) -> MockBatch:
        batch = MockBatch(self._next, self._first, self._first.microbatches)
        self._next += 1
        return batch

    def state_dict(self) -> dict[str, Any]:
        """The number of the next step, marked as no position in a stream."""
        return {_KEY: True, "step": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on counting. Raises InvalidArgumentError for the state of a real loader."""
        if not is_mock(state):
            raise InvalidArgumentError("the state is a position in a real stream; a MockLoader has none")
        self._next = int(state["step"])

    def commit(self) -> None:
        """There is no journal."""

    def validation_batches(self) -> list[Microbatch]:
        """None: held-out documents are data, too."""
        return []

    def close(self) -> None:
        """Nothing runs."""

    def __enter__(self) -> MockLoader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_mock(state: Mapping[str, Any]) -> bool:
    """Whether a loader's state comes from a MockLoader."""
    return bool(state.get(_KEY))
