"""Who this process is among the ranks, as torchrun and its kin say it in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from widestream.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Launch:
    """One rank of a launch.

    ``launch_id`` is the same on all ranks of one start of the trainer and differs between starts. ``watch_pid`` is the
    process whose end ends the host: torchrun's agent, which outlives a restart of the trainer, else this process.
    """

    rank: int
    world: int
    local_rank: int
    local_world: int
    node: int
    launch_id: str
    watch_pid: int

    @property
    def first_rank(self) -> int:
        """The first rank of this node; launchers number a node's ranks consecutively."""
        return self.rank - self.local_rank


def from_environment(environment: Mapping[str, str] | None = None) -> Launch | None:
    """None outside a launcher. InvalidArgumentError where the variables contradict each other."""
    env = os.environ if environment is None else environment
    world, rank = _number(env, "WORLD_SIZE"), _number(env, "RANK")
    if world is None or rank is None:
        return None
    local_world = _number(env, "LOCAL_WORLD_SIZE")
    local_rank = _number(env, "LOCAL_RANK")
    if local_world is None or local_rank is None:
        local_world, local_rank = 1, 0
    node = _number(env, "GROUP_RANK")
    if node is None:
        node = (rank - local_rank) // max(local_world, 1)
    if not (0 <= rank < world and 0 <= local_rank < local_world <= world and local_rank <= rank):
        raise InvalidArgumentError(
            f"the environment says RANK {rank} of WORLD_SIZE {world}, LOCAL_RANK {local_rank} of LOCAL_WORLD_SIZE "
            f"{local_world}, which cannot be; start the trainer with torchrun, or unset them"
        )
    launcher = _launcher()
    launch_id = ":".join(
        [
            env.get("TORCHELASTIC_RUN_ID", ""),
            env.get("TORCHELASTIC_RESTART_COUNT", ""),
            env.get("MASTER_ADDR", ""),
            env.get("MASTER_PORT", ""),
            str(launcher),
        ]
    )
    # torchrun's agent outlives a restart of the trainer; of other launchers that is not known.
    watch_pid = launcher if "TORCHELASTIC_RUN_ID" in env else os.getpid()
    return Launch(rank, world, local_rank, local_world, node, launch_id, watch_pid)


def _launcher() -> int:
    """The process that started the ranks: the nearest ancestor that was not started as a rank itself.

    It is the parent of a rank, and the grandparent of a process that a rank spawned.
    """
    pid = os.getppid()
    try:
        while b"\0RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return os.getppid()  # of another user, or gone
    return pid


def served(rank: int, world: int) -> Launch:
    """A rank that attaches to ``widestream serve``: it starts no host, and no launcher counts its nodes."""
    return Launch(rank, world, rank, world, node=0, launch_id="", watch_pid=os.getpid())


def _number(env: Mapping[str, str], name: str) -> int | None:
    value = env.get(name)
    if value is None or value == "":
        return None
    try:
        return int(value)
    except ValueError as error:
        raise InvalidArgumentError(f"the environment variable {name} is {value!r}, expected a number") from error
