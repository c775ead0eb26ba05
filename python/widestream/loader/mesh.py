"""The job for a world of ranks: what ``mesh`` leaves open, and whether it fits."""

from __future__ import annotations

from typing import Any

from widestream.errors import InvalidArgumentError
from widestream.job import Job


def resolve_for_world(job: Job, world: int | None) -> tuple[dict[str, Any], int]:
    """The resolved job with ``mesh.dp`` set, and the number of ranks. ``world`` None: as the mesh says.

    InvalidArgumentError: the mesh and the world do not fit; the message has both numbers.
    """
    resolved = job.resolve()
    mesh = resolved["mesh"]
    others = mesh["cp"] * mesh["tp"] * mesh["pp"]
    if world is None:
        return resolved, mesh["dp"] * others
    sizes = f"cp {mesh['cp']} x tp {mesh['tp']} x pp {mesh['pp']}"
    if job.mesh.dp is None:
        if world % others:
            raise InvalidArgumentError(
                f"mesh: {sizes} = {others} ranks do not divide the world of {world}; start a multiple of {others} ranks, "
                "or change the mesh"
            )
        mesh["dp"] = world // others
    elif mesh["dp"] * others != world:
        raise InvalidArgumentError(
            f"mesh: dp {mesh['dp']} x {sizes} = {mesh['dp'] * others} ranks, but the world has {world}; "
            f"start {mesh['dp'] * others} ranks, or change the mesh (without mesh.dp it follows the world)"
        )
    return resolved, world
