"""One rank of broadcast_test: groups of two, whose leader fetches. Asserts by itself; prints what it received."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import widestream as ws
from tests.support.jobs import fingerprint, small_job
from widestream.errors import DataCorruptionError, InvalidArgumentError, UnavailableError
from widestream.loader.broadcast import Broadcaster, ReceivedBatch

STEPS = 4


def loader_of(folder: Path, broadcaster: Broadcaster, group: int, groups: int) -> ws.DataLoader | None:
    if not broadcaster.leads:
        return None
    return ws.DataLoader(small_job(folder, sources=SOURCES), rank=group, world=groups)


SOURCES: list[dict] = []


class Failing:
    """Two batches, then an error."""

    def __init__(self, loader):
        self.loader, self.left = loader, 2

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise OSError("the archive does not answer")
        self.left -= 1
        return next(self.loader)


class Flipping(Broadcaster):
    """A rank whose memory fails."""

    flip = False

    def _broadcast(self, tensor):
        received = super()._broadcast(tensor)
        if self.flip and received.numel() > 1000:
            received[500] ^= 1
        return received


def everybody(value):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def same_batches(folder: Path, broadcaster: Broadcaster, group: int, groups: int) -> None:
    """To the end of a short stream every member holds the leader's batches, in memory of its own."""
    loader = loader_of(folder, broadcaster, group, groups)
    prints = []
    for batch in broadcaster.batches(loader):
        assert isinstance(batch, ws.Batch) == broadcaster.leads
        prints.append(fingerprint(batch))
        if not broadcaster.leads:
            batch.microbatches[0].tokens.fill_(-1)  # private: nobody else sees it
            try:
                batch.sources()
            except InvalidArgumentError as error:
                assert f"rank {group}" in str(error)
            else:
                raise AssertionError("provenance is the leader's")
    assert len(prints) > 3
    found = everybody((broadcaster.leader, prints))
    assert all(theirs == prints for leader, theirs in found if leader == broadcaster.leader)
    assert len({tuple(theirs) for _, theirs in found}) == groups, "each group has its own batches"


def main() -> None:
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    world, me = dist.get_world_size(), dist.get_rank()
    groups = [[first, first + 1] for first in range(0, world, 2)]
    job = small_job(folder)
    SOURCES.extend({**source.model_dump(exclude_none=True), "max_epochs": 1} for source in job.sources)
    group = me // 2

    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    same_batches(folder, Broadcaster.on_mesh(mesh, "tp", check=True), group, len(groups))

    places = [SimpleNamespace(rank=rank, leader=rank // 2 * 2 + 1) for rank in range(world)]
    broadcaster = Broadcaster.from_places(places)
    assert broadcaster.leader == group * 2 + 1
    same_batches(folder, broadcaster, group, len(groups))

    # Each takes what it needs: here the first rank of a group the tokens, the second the labels.
    wanted = "tokens" if me % 2 == 0 else "labels"
    chooser = Broadcaster.make(groups, [ranks[0] for ranks in groups], select=lambda tensors: {wanted: tensors[wanted]})
    with ws.DataLoader(job, rank=group, world=len(groups)) as loader:
        expected = next(loader)
        received = chooser.share(expected if chooser.leads else None)
        assert isinstance(received, ReceivedBatch) and received.supervised_tokens == expected.supervised_tokens
        for mine, whole in zip(received.microbatches, expected.microbatches, strict=True):
            assert list(mine.tensors()) == [wanted] and mine.max_seqlen == whole.max_seqlen
            assert torch.equal(getattr(mine, wanted), getattr(whole, wanted))

        # A leader that fails says why.
        count = 0
        try:
            for _ in chooser.batches(Failing(loader) if chooser.leads else None):
                count += 1
        except UnavailableError as error:
            assert not chooser.leads and "OSError: the archive does not answer" in str(error), error
        except OSError as error:
            assert chooser.leads and "archive" in str(error), error
        else:
            raise AssertionError("nobody heard of the failure")
        assert count == 2

    # Debug mode: a byte that differs on one rank is an error on every rank of its group.
    flipping = Flipping.make(groups, [ranks[0] for ranks in groups], check=True)
    flipping.flip = me % 2 == 1
    with ws.DataLoader(job, rank=group, world=len(groups)) as loader:
        try:
            flipping.share(next(loader) if flipping.leads else None)
        except DataCorruptionError as error:
            assert f"[{group * 2 + 1}] received other bytes than rank {group * 2} sent" in str(error), error
        else:
            raise AssertionError("the digests did not notice")

    for bad in ([[rank for rank in range(world) if rank != me]], [list(range(world)), [me]]):
        try:
            Broadcaster.make(bad, [ranks[0] for ranks in bad])
        except InvalidArgumentError as error:
            assert "exactly one" in str(error)
        else:
            raise AssertionError(f"the groups {bad} were taken")
    print(f"rank {me} is content", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
