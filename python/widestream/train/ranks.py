"""The ranks of a training run: what they agree on, outside the gradients.

`Ranks()` is the world of one, without a process group; `join_ranks` makes the world that torchrun describes.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from widestream.errors import InvalidArgumentError, UnavailableError

# No rank waits longer than this for another one's part of a step. Data has deadlines of its own.
COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)
_FAILURE_KEY = "widestream/failure"
_MESSAGE_CHARACTERS = 2000
_LOOK_FOR_FAILURES_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 0.001


class PeerFailedError(UnavailableError):
    """Another rank ended before the training did.

    Attributes:
        rank: the one that failed, if it left its reason; the message has it.
    """

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class Ranks:
    """This rank among all ranks of a training run; one thread of one process uses it.

    Every method but the properties is a collective in a world of more than one: all ranks call it in the same
    order. Small values travel over gloo on the CPU. While it waits, signal handlers run, and the failure of
    another rank raises `PeerFailedError` here.

    Attributes:
        rank, world: of this process; 0 of 1 without a process group.
        local_rank: on its node.
    """

    def __init__(self, rank: int = 0, world: int = 1, local_rank: int = 0, store: Store | None = None) -> None:
        self.rank, self.world, self.local_rank = rank, world, local_rank
        self._store = store
        self._torn = False

    @property
    def main(self) -> bool:
        """Whether this rank prints and writes."""
        return self.rank == 0

    @property
    def parallel(self) -> bool:
        """Whether there are other ranks."""
        return self.world > 1

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The float64 values of every rank, by rank; equally many on each. Whole numbers are exact below 2^53."""
        if not self.parallel:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.float64)
        everything = [torch.empty_like(mine) for _ in range(self.world)]
        self.wait(dist.all_gather(everything, mine, async_op=True))
        return [row.tolist() for row in everything]

    def any(self, flag: bool) -> bool:
        """Whether it is true on any rank."""
        return any(row[0] for row in self.gather([float(flag)]))

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks of a CPU tensor, in place."""
        if self.parallel:
            self.wait(dist.all_reduce(tensor, async_op=True))
        return tensor

    def share(self, tensor: Tensor) -> Tensor:
        """Rank 0's values of a CPU tensor, in place."""
        if self.parallel:
            self.wait(dist.broadcast(tensor, 0, async_op=True))
        return tensor

    def share_json(self, value: Any) -> Any:
        """Rank 0's JSON value; what other ranks give is not looked at."""
        if not self.parallel:
            return value
        data = json.dumps(value).encode() if self.main else b""
        size = int(self.share(torch.tensor([len(data)]))[0])
        buffer = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(size, dtype=torch.uint8)
        return json.loads(self.share(buffer).numpy().tobytes())

    def wait(self, work: Any) -> None:
        """Until a collective is done. Raises PeerFailedError where it cannot be."""
        pause, looked = 0.0, time.monotonic()
        while not work.is_completed():
            time.sleep(pause)
            pause = min(pause + 2e-5, _LONGEST_PAUSE_SECONDS)
            if time.monotonic() - looked > _LOOK_FOR_FAILURES_SECONDS:
                looked = time.monotonic()
                self._raise_failure_of_another()
        try:
            work.wait()
        except RuntimeError as error:
            raise self.failure(error) or error from None

    # ---- failures -----------------------------------------------------------------------------------------

    def failure(self, error: BaseException) -> PeerFailedError | None:
        """What `error` says about another rank, if it is that one's end that broke a collective here."""
        broken = isinstance(error, dist.DistNetworkError | dist.DistBackendError) or (
            isinstance(error, RuntimeError) and "gloo/transport" in str(error)
        )
        if not self.parallel or not broken:
            return None
        return self._recorded() or PeerFailedError(
            "another rank ended without a word (killed, or out of memory?); the launcher's output names it. "
            f"Start all ranks again with --resume ({str(error).splitlines()[0][:200]})"
        )

    def leave_in_disorder(self) -> None:
        """This rank ends without an agreement of all: the group is not waited for."""
        self._torn = True

    def announce(self, error: BaseException) -> None:
        """Leaves the reason of this rank's failure for the others. Never raises."""
        if self._store is None or isinstance(error, PeerFailedError):
            return
        message = f"{type(error).__name__}: {error}"[:_MESSAGE_CHARACTERS]
        with contextlib.suppress(Exception):  # the store may have ended with its owner; the error itself matters more
            # Only the first failure stands.
            self._store.compare_set(_FAILURE_KEY, "", json.dumps({"rank": self.rank, "message": message}))

    def _raise_failure_of_another(self) -> None:
        if found := self._recorded():
            raise found

    def _recorded(self) -> PeerFailedError | None:
        if self._store is None:
            return None
        try:
            if not self._store.check([_FAILURE_KEY]):
                return None
            record = json.loads(self._store.get(_FAILURE_KEY))
        except (RuntimeError, ValueError):  # the store has ended with its owner
            return None
        if record["rank"] == self.rank:
            return None
        return PeerFailedError(f"stopped, because rank {record['rank']} failed: {record['message']}", record["rank"])


def environment_ranks() -> Ranks:
    """Rank and world of the environment (`torchrun` sets it), not yet joined.

    Raises:
        InvalidArgumentError: a variable is no whole number, or not all of them are there.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    found: dict[str, int] = {}
    for name in names:
        if (value := os.environ.get(name)) is not None:
            if not value.isdecimal():
                raise InvalidArgumentError(f"the environment variable {name} is {value!r}, not a whole number")
            found[name] = int(value)
    world = found.get("WORLD_SIZE", 1)
    if world == 1:
        return Ranks()
    missing = [name for name in (*names, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InvalidArgumentError(
            f"WORLD_SIZE is {world}, but {', '.join(missing)} is not set; start the ranks with torchrun, or unset it"
        )
    return Ranks(found["RANK"], world, found["LOCAL_RANK"])


@contextlib.contextmanager
def join_ranks(device: torch.device) -> Iterator[Ranks]:
    """The world that the environment describes, with its process group (gloo, and NCCL on GPUs) while it is open.

    An exception that leaves it is announced to the other ranks, which end too.

    Raises:
        InvalidArgumentError: the environment is not whole.
        PeerFailedError: another rank failed.
    """
    ranks = environment_ranks()
    if not ranks.parallel:
        yield ranks
        return
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"
    store, rank, world = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    ranks = Ranks(rank, world, ranks.local_rank, PrefixStore("widestream", store))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=COLLECTIVE_TIMEOUT)
    try:
        yield ranks
    except BaseException as error:
        ranks.announce(error)
        if (cause := ranks.failure(error)) is not None and isinstance(error, Exception):
            raise cause from error
        # No orderly end of the group: it would wait for the others, who wait for this rank.
        raise
    if not ranks._torn:
        dist.destroy_process_group()


def device_of(name: str, ranks: Ranks) -> torch.device:
    """The device that `training.device` means on this rank.

    Raises:
        InvalidArgumentError: there is no such device here, or one device for several ranks.
    """
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InvalidArgumentError(f"training.device is {name}, but torch sees no CUDA device here; use auto or cpu")
    if ":" in name:
        if ranks.parallel:
            raise InvalidArgumentError(
                f"training.device is {name}, one device for {ranks.world} ranks; use cuda or auto: each rank takes its own"
            )
        return torch.device(name)
    if not ranks.parallel:
        return torch.device("cuda")
    count = torch.cuda.device_count()
    if ranks.local_rank >= count:
        raise InvalidArgumentError(
            f"local rank {ranks.local_rank} finds {count} CUDA devices; start at most {count} ranks a node"
        )
    return torch.device("cuda", ranks.local_rank)
