"""ClientPlaceTree: who of the trainer's ranks needs which part of the data, and who fetches it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from widestream.loader.engine import core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from widestream.job import Mesh


@dataclass(frozen=True, slots=True)
class Place:
    """One trainer rank: its coordinates in the mesh, and what it needs.

    ``leader`` is the world rank that fetches for this place: itself if ``fetches``. ``leads_cp``: it fetches the slices
    of all context ranks; ``leads_pp``: the tensors of all pipeline stages.
    """

    rank: int
    dp: int
    cp: int
    tp: int
    pp: int
    fetches: bool
    leader: int
    first_stage: bool
    last_stage: bool
    leads_cp: bool
    leads_pp: bool


class ClientPlaceTree:
    """A mesh as a tree of places. Immutable; ``print(tree)`` shows who needs what.

    Args:
        mesh: of a job; without ``dp`` it follows from ``world``, else it is 1.
        broadcast_at: axes (``tp``, ``cp``, ``pp``) along which only the first rank fetches (``job.broadcast_at``).
        world: ranks of the trainer, to be checked against the mesh.

    Raises:
        InvalidArgumentError: the mesh is none, or its product is not ``world``; the message says both numbers.
    """

    def __init__(self, mesh: Mesh, broadcast_at: Sequence[str] = (), world: int | None = None) -> None:
        from widestream.job.resolve import resolve_mesh

        dp = mesh.dp
        if dp is None and world is not None:
            dp = max(1, world // (mesh.cp * mesh.tp * mesh.pp))
        self._tree = core().PlaceTree(json.dumps(resolve_mesh(mesh, list(broadcast_at), dp)))
        if world is not None:
            self._tree.check_world(world)

    @property
    def world(self) -> int:
        """Ranks of the mesh."""
        return int(self._tree.world)

    def place(self, rank: int) -> Place:
        """The place of a world rank. IndexError if there is none."""
        if not 0 <= rank < self.world:
            raise IndexError(f"rank {rank} of a world of {self.world}")
        found = self._tree.place(rank)
        return Place(**{name: getattr(found, name) for name in Place.__slots__})

    @property
    def places(self) -> list[Place]:
        """By world rank."""
        return [self.place(rank) for rank in range(self.world)]

    def ranks_of_dp(self, dp: int) -> list[int]:
        """World ranks that consume the data of a data-parallel rank."""
        return list(self._tree.ranks_of_dp(dp))

    def fetching_ranks_of_dp(self, dp: int) -> list[int]:
        """Those of them that fetch it; the others are broadcast to."""
        return list(self._tree.fetching_ranks_of_dp(dp))

    def groups(self) -> list[list[int]]:
        """World ranks of each broadcast, its leader first: what torch.distributed.new_group takes."""
        return [list(group) for group in self._tree.groups()]

    def __str__(self) -> str:
        return str(self._tree)

    def __repr__(self) -> str:
        return f"<ClientPlaceTree {str(self._tree).splitlines()[0]}>"
