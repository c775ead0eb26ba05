"""Batches for ranks that do not fetch: a leader's batch, broadcast over the trainer's own process groups.

broadcaster = Broadcaster.on_mesh(mesh, "tp")
loader = ws.DataLoader(job) if broadcaster.leads else None
for batch in broadcaster.batches(loader):   # the same batch on every rank of the group
    ...
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from widestream.errors import DataCorruptionError, InvalidArgumentError, UnavailableError
from widestream.loader.batch import Microbatch
from widestream.loader.packed_tensors import pack, unpack

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from widestream.job import Job
    from widestream.loader.place_tree import Place

_BATCH, _END, _FAILED = range(3)
# A description is a few hundred bytes a microbatch. What is longer than this is no description.
_DESCRIPTION_LIMIT_BYTES = 64 << 20
_PROVENANCE = ("pieces", "layout", "sources", "tokens_by_source", "wanted_by_source")

Select = Callable[[Mapping[str, "Tensor"]], Mapping[str, "Tensor"]]


class _Place(Protocol):
    """What is needed of a place of `widestream.ClientPlaceTree`."""

    @property
    def rank(self) -> int: ...
    @property
    def leader(self) -> int: ...


_INPUTS = ("tokens", "position_ids", "segment_ids")
_LABELS = ("labels", "loss_mask")


def select_for(place: Place, every_stage: Sequence[str] = ()) -> Select:
    """What a place needs of its leader's tensors: its slice along cp, and the tensors of its pipeline stage."""

    def select(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        needed = {}
        for name in tensors:
            if "@" in name:
                continue
            at_its_stage = (name not in _INPUTS or place.first_stage) and (name not in _LABELS or place.last_stage)
            if at_its_stage or name in every_stage:
                # The leader's own slice has no number.
                needed[name] = tensors.get(f"{name}@{place.cp}", tensors[name])
        return needed

    return select


class ReceivedBatch:
    """A batch that another rank fetched, with tensors of its own.

    Attributes:
        step, supervised_tokens, real_tokens, digest: as of `Batch`.
        rank, dp_rank: whose batch it is.
        microbatches: the leader's, or what this rank selects of them.

    Provenance (`sources()`, `pieces`, `tokens_by_source`, ...) stays with the leader.
    """

    def __init__(self, description: Mapping[str, Any], microbatches: list[Microbatch]) -> None:
        self.step: int = description["step"]
        self.rank: int = description["rank"]
        self.dp_rank: int = description["dp_rank"]
        self.supervised_tokens: int = description["supervised_tokens"]
        self.real_tokens: int = description["real_tokens"]
        self.digest: str = description["digest"]
        self.microbatches = microbatches

    def __getattr__(self, name: str) -> Any:
        if name in _PROVENANCE:
            raise InvalidArgumentError(
                f"batch.{name} is with rank {self.rank}, which fetched step {self.step}; this rank has the tensors only"
            )
        raise AttributeError(name)


class Broadcaster:
    """Shares a leader's batches with the ranks of one group.

    Every rank of the group makes one and calls `share` or iterates `batches` equally often; one thread. Over gloo
    tensors stay on the CPU; over NCCL they arrive on the device, the leader's too.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        leader: int,
        *,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
        select: Select | None = None,
        check: bool = False,
    ) -> None:
        """Args:
        ranks: world ranks of the group, this one among them. One rank needs no group.
        leader: the one that fetches.
        group: over exactly these ranks. Default: the group of the whole world.
        device: where the tensors travel and arrive. Default: the CPU where the group has gloo, else the current
            CUDA device.
        select: what this rank takes of the tensors of a microbatch, e.g. its context-parallel slice or the tensors
            of its pipeline stage. Default: all of them.
        check: debug mode: a digest of what arrived is compared over the group at every batch.

        Raises:
            InvalidArgumentError: ranks, leader and group do not fit each other.
        """
        import torch
        import torch.distributed as dist

        self.ranks, self.leader, self.group = tuple(ranks), leader, group
        self._select, self._check = select, check
        alone = len(self.ranks) == 1
        self.rank: int = self.ranks[0] if alone and not dist.is_initialized() else dist.get_rank()
        if leader not in self.ranks or self.rank not in self.ranks:
            raise InvalidArgumentError(
                f"a broadcast group of the ranks {list(self.ranks)} needs its leader and this rank among them; they are "
                f"{leader} and {self.rank}"
            )
        if not alone:
            members = dist.get_process_group_ranks(group)
            if sorted(members) != sorted(self.ranks):
                raise InvalidArgumentError(f"the process group has the ranks {members}, not {list(self.ranks)}")
        if device is not None:
            self._device = torch.device(device)
        elif alone or "gloo" in dist.get_backend_config(group):
            self._device = torch.device("cpu")
        else:
            self._device = torch.device("cuda", torch.cuda.current_device())

    @classmethod
    def on_mesh(cls, mesh: DeviceMesh, dimension: str, **options: Any) -> Broadcaster:
        """Along one dimension of the trainer's mesh: its first rank leads. Options as of the constructor."""
        import torch.distributed as dist

        group = mesh.get_group(dimension)
        ranks = dist.get_process_group_ranks(group)
        return cls(ranks, ranks[0], group=group, **options)

    @classmethod
    def make(cls, groups: Sequence[Sequence[int]], leaders: Sequence[int], **options: Any) -> Broadcaster:
        """Makes process groups of the world, and this rank's broadcaster. A collective of all ranks.

        Args:
            groups: disjoint lists of world ranks, the same on every rank, this one in one of them.
            leaders: the leader of each.
            **options: as of the constructor, but `group`.
        """
        import torch.distributed as dist

        everyone = [rank for ranks in groups for rank in ranks]
        me = dist.get_rank()
        if len(set(everyone)) != len(everyone) or me not in everyone or len(leaders) != len(groups):
            raise InvalidArgumentError(
                f"broadcast groups {[list(ranks) for ranks in groups]} with leaders {list(leaders)}: each rank must be "
                f"in exactly one, rank {me} too, and each needs a leader"
            )
        mine: Broadcaster | None = None
        for ranks, leader in zip(groups, leaders, strict=True):
            group = dist.new_group(list(ranks)) if len(ranks) > 1 else None
            if me in ranks:
                mine = cls(ranks, leader, group=group, **options)
        assert mine is not None
        return mine

    @classmethod
    def from_places(cls, places: Iterable[_Place], **options: Any) -> Broadcaster:
        """The groups of a place tree: ranks with one leader are a group. A collective of all ranks.

        Args:
            places: of every rank of the world (`ClientPlaceTree`), each with `rank` and `leader`.
            **options: as of the constructor, but `group`.
        """
        groups: dict[int, list[int]] = {}
        for place in places:
            groups.setdefault(place.leader, []).append(place.rank)
        return cls.make(list(groups.values()), list(groups), **options)

    @classmethod
    def of_job(cls, job: Job, world: int, **options: Any) -> Broadcaster:
        """As the job's ``mesh`` and ``broadcast_at`` say: the groups, and of the leader's tensors those that this rank
        needs. A collective of all ranks. Options as of the constructor, but `group` and `select`.
        """
        import torch.distributed as dist

        from widestream.loader.place_tree import ClientPlaceTree

        tree = ClientPlaceTree(job.mesh, job.broadcast_at, world=world)
        select = select_for(tree.place(dist.get_rank()), job.mesh.every_stage)
        return cls.from_places(tree.places, select=select, **options)

    @property
    def leads(self) -> bool:
        """Whether this rank fetches for the group."""
        return self.rank == self.leader

    # ---- sharing ------------------------------------------------------------------------------------------

    def batches(self, loader: Iterable[Any] | None) -> Iterator[Any]:
        """The leader's batches on every rank, until its loader ends.

        Args:
            loader: on the leader; None elsewhere.

        Raises:
            What the leader's loader raises, on the leader.
            UnavailableError: the leader failed, on the others; the message has its reason.
        """
        source = iter(loader) if loader is not None else None
        while True:
            batch = None
            if self.leads:
                if source is None:
                    raise InvalidArgumentError(f"rank {self.rank} fetches for its group; it needs a loader")
                try:
                    batch = next(source, None)
                except Exception as error:
                    self._send_failure(f"{type(error).__name__}: {error}")
                    raise
            shared = self.share(batch)
            if shared is None:
                return
            yield shared

    def share(self, batch: Any) -> Any:
        """The leader's batch on every rank of the group. A collective of the group.

        Args:
            batch: on the leader, with torch tensors; None at the end of the stream. Not looked at elsewhere.

        Returns:
            The batch itself on a leader that keeps its tensors, else a `ReceivedBatch`; None at the end.

        Raises:
            UnavailableError: the leader failed.
            DataCorruptionError: (debug mode) some rank received other bytes; raised on every rank.
        """
        if len(self.ranks) == 1:
            return batch if batch is None or self._select is None else self._received(*_describe(batch))
        import torch

        if self.leads:
            if batch is None:
                self._send_header(_END, 0, 0)
                return None
            description, buffer = _describe(batch)
            text = torch.frombuffer(bytearray(json.dumps(description).encode()), dtype=torch.uint8)
            self._send_header(_BATCH, text.numel(), buffer.numel())
            self._broadcast(text)
            buffer = self._broadcast(buffer)
        else:
            kind, text_bytes, buffer_bytes = self._receive_header()
            if kind == _END:
                return None
            text = self._broadcast(torch.empty(text_bytes, dtype=torch.uint8)).cpu()
            if kind == _FAILED:
                raise UnavailableError(
                    f"rank {self.leader}, which fetches for rank {self.rank}, failed: "
                    + text.numpy().tobytes().decode(errors="replace")
                )
            description = json.loads(text.numpy().tobytes())
            buffer = self._broadcast(torch.empty(buffer_bytes, dtype=torch.uint8, device=self._device))
        if self._check:
            self._compare(description["step"], text, buffer)
        if self.leads and self._select is None and buffer.device.type == "cpu":
            return batch
        return self._received(description, buffer)

    def _received(self, description: Mapping[str, Any], buffer: Tensor) -> ReceivedBatch:
        microbatches = []
        for tensors, sizes in zip(unpack(description["layout"], buffer), description["sizes"], strict=True):
            chosen = self._select(tensors) if self._select else tensors
            microbatches.append(Microbatch({**chosen, **sizes}, as_torch=False))
        return ReceivedBatch(description, microbatches)

    def _broadcast(self, tensor: Tensor) -> Tensor:
        import torch.distributed as dist

        tensor = tensor.to(self._device)
        dist.broadcast(tensor, self.leader, group=self.group)
        return tensor

    def _send_header(self, kind: int, text_bytes: int, buffer_bytes: int) -> None:
        import torch

        self._broadcast(torch.tensor([kind, text_bytes, buffer_bytes], dtype=torch.int64))

    def _send_failure(self, message: str) -> None:
        import torch

        if len(self.ranks) > 1:
            text = torch.frombuffer(bytearray(message[:2000].encode() or b"?"), dtype=torch.uint8)
            self._send_header(_FAILED, text.numel(), 0)
            self._broadcast(text)

    def _receive_header(self) -> tuple[int, int, int]:
        import torch

        kind, text_bytes, buffer_bytes = self._broadcast(torch.empty(3, dtype=torch.int64)).tolist()
        if kind not in (_BATCH, _END, _FAILED) or not 0 <= text_bytes <= _DESCRIPTION_LIMIT_BYTES or buffer_bytes < 0:
            raise DataCorruptionError(
                f"rank {self.rank}: the header from rank {self.leader} is {[kind, text_bytes, buffer_bytes]}; the ranks "
                "of the group do not share equally often, or others use the same process group meanwhile"
            )
        return kind, text_bytes, buffer_bytes

    def _compare(self, step: int, text: Tensor, buffer: Tensor) -> None:
        import torch
        import torch.distributed as dist

        hasher = hashlib.blake2b(digest_size=8)
        for part in (text, buffer):
            hasher.update(part.cpu().numpy().tobytes())
        mine = torch.frombuffer(bytearray(hasher.digest()), dtype=torch.int64).to(self._device)
        found = [torch.empty_like(mine) for _ in self.ranks]
        dist.all_gather(found, mine, group=self.group)
        members = dist.get_process_group_ranks(self.group)
        digests = dict(zip(members, (int(digest) for digest in found), strict=True))
        wrong = [rank for rank, digest in digests.items() if digest != digests[self.leader]]
        if wrong:
            raise DataCorruptionError(
                f"step {step}: the ranks {wrong} received other bytes than rank {self.leader} sent (digests "
                f"{ {rank: f'{digest & (2**64 - 1):016x}' for rank, digest in digests.items()} }); look for other users "
                "of the process group, or for failing memory or network"
            )


def _describe(batch: Any) -> tuple[dict[str, Any], Tensor]:
    layout, buffer = pack([microbatch.tensors() for microbatch in batch.microbatches])
    description = {
        "step": batch.step,
        "rank": batch.rank,
        "dp_rank": getattr(batch, "dp_rank", batch.rank),
        "supervised_tokens": batch.supervised_tokens,
        "real_tokens": batch.real_tokens,
        "digest": batch.digest,
        "layout": layout,
        "sizes": [
            {name: getattr(microbatch, name) for name in ("max_seqlen", "real_tokens", "shape")}
            for microbatch in batch.microbatches
        ],
    }
    return description, buffer
