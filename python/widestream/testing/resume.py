"""assert_exact_resume: a job's stream does not depend on where it was saved, nor on how many ranks go on with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from widestream.job import Job
from widestream.loader import Batch, DataLoader


@dataclass(frozen=True, slots=True)
class _Step:
    """What must be the same: the step's members over all ranks, and the bytes of every rank's tensors."""

    step: int
    supervised_tokens: int
    real_tokens: int
    members: str
    tensors: tuple[dict[str, str], ...]  # by rank


def assert_exact_resume(
    job: Job, *, steps: int = 12, resume_at: Sequence[int] | None = None, worlds: Sequence[int] = (1, 2, 4)
) -> None:
    """Fails unless the stream after a save and a load equals the stream that was never interrupted.

    For every number of ranks: a state saved at each of `resume_at` (through JSON, as a checkpoint would keep it) goes on
    in new loaders, and in loaders that have delivered other steps before. Then a chain: each of `resume_at` in turn is
    the end of a run on one number of ranks and the start of the next one on another. Every tensor of every rank is
    compared with that of the uninterrupted run on as many ranks, and the members of every step with those of one rank.

    Args:
        job: as trained; its run folder is not touched.
        steps: compared at most; a stream that ends before is compared to its end.
        resume_at: steps at which states are taken, each below `steps`. Default: 1, the middle, and the last but one.
        worlds: numbers of data-parallel ranks.

    Raises:
        AssertionError: names the step, the rank and the tensor that differ, and between which runs.
        ValueError: the arguments do not fit each other.
        What the loader raises.
    """
    points = sorted(set(resume_at if resume_at is not None else (1, steps // 2, steps - 1)))
    if not points or not worlds or points[0] < 0 or points[-1] >= steps or min(worlds) < 1:
        raise ValueError(
            f"resume_at {points} must lie in 0 to steps - 1 = {steps - 1}, and worlds {list(worlds)} from 1 up"
        )
    plain = job.model_copy(update={"run_dir": None, "mesh": job.mesh.model_copy(update={"dp": None})})
    states: dict[int, dict[str, Any]] = {}
    expected: dict[int, list[_Step]] = {}
    for world in worlds:
        with _loaders(plain, world) as loaders:
            expected[world], found = _read(loaders, steps, points)
        for point, state in found.items():
            first = states.setdefault(point, state)
            assert state == first, (
                f"the state at step {point} depends on the number of ranks: {worlds[0]} and {world} give "
                f"{json.dumps(first)[:300]} and {json.dumps(state)[:300]}"
            )
        _same_members(expected[worlds[0]], expected[world], f"{worlds[0]} rank(s)", f"{world} rank(s)")
    for world in worlds:
        for point, state in states.items():
            how = f"{world} rank(s), from the state at step {point}"
            with _loaders(plain, world, state) as loaders:
                _compare(_read(loaders, steps - point)[0], expected[world][point:], how)
            with _loaders(plain, world) as loaders:
                _read(loaders, 2)
                for loader in loaders:
                    loader.load_state_dict(_through_json(state))
                _compare(
                    _read(loaders, steps - point)[0], expected[world][point:], how + ", loaded after two other steps"
                )
    _chain(plain, steps, points, worlds, expected)


def _chain(
    job: Job, steps: int, points: Sequence[int], worlds: Sequence[int], expected: dict[int, list[_Step]]
) -> None:
    state, begin = None, 0
    for link, end in enumerate([*points, steps]):
        world = worlds[link % len(worlds)]
        with _loaders(job, world, state) as loaders:
            found, _ = _read(loaders, end - begin)
            state = _state(loaders)
        _compare(found, expected[world][begin:end], f"link {link} of a chain of resumes, on {world} rank(s)")
        begin = end


@contextlib.contextmanager
def _loaders(job: Job, world: int, state: dict[str, Any] | None = None) -> Iterator[list[DataLoader]]:
    """The loaders of all ranks, in this process."""
    world *= job.mesh.cp * job.mesh.tp * job.mesh.pp
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(DataLoader(job, rank=rank, world=world, state=_through_json(state), tensors="numpy"))
            for rank in range(world)
        ]


def _read(
    loaders: Sequence[DataLoader], count: int, points: Sequence[int] = ()
) -> tuple[list[_Step], dict[int, dict[str, Any]]]:
    """Up to `count` steps, and the states before the steps `points`."""
    steps: list[_Step] = []
    states = {}
    for number in range(count + 1):
        if number in points:
            states[number] = _state(loaders)
        if number == count:
            break
        batches = [next(loader, None) for loader in loaders]
        present = [batch for batch in batches if batch is not None]
        assert len(present) in (0, len(batches)), f"the stream ends on some ranks only, after {number} steps"
        if not present:
            break
        steps.append(_step(present))
    return steps, states


def _step(batches: Sequence[Batch]) -> _Step:
    first = batches[0]
    for rank, batch in enumerate(batches):
        assert (batch.step, batch.digest, batch.supervised_tokens) == (
            first.step,
            first.digest,
            first.supervised_tokens,
        ), f"ranks 0 and {rank} have different steps: {first.step} ({first.digest}) and {batch.step} ({batch.digest})"
    return _Step(
        step=first.step,
        supervised_tokens=first.supervised_tokens,
        real_tokens=first.real_tokens,
        members=first.digest,
        tensors=tuple(_hashes(batch) for batch in batches),
    )


def _hashes(batch: Batch) -> dict[str, str]:
    found = {}
    for number, microbatch in enumerate(batch.microbatches):
        for name, tensor in microbatch.tensors().items():
            array = np.ascontiguousarray(tensor)
            digest = hashlib.blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=16)
            digest.update(array.tobytes())
            found[f"microbatch {number}, {name}"] = digest.hexdigest()
    return found


def _state(loaders: Sequence[DataLoader]) -> dict[str, Any]:
    states = [loader.state_dict() for loader in loaders]
    for rank, state in enumerate(states):
        assert state == states[0], f"the states of the ranks 0 and {rank} differ; a state has no rank parts"
    through: dict[str, Any] = _through_json(states[0])
    return through


def _through_json(state: dict[str, Any] | None) -> Any:
    return json.loads(json.dumps(state))


def _compare(found: Sequence[_Step], expected: Sequence[_Step], how: str) -> None:
    """Every tensor of every rank."""
    _same_members(expected, found, "the uninterrupted run", how)
    for step, other in zip(found, expected, strict=True):
        for rank, (mine, theirs) in enumerate(zip(step.tensors, other.tensors, strict=True)):
            differ = [name for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
            assert not differ, (
                f"step {step.step}, rank {rank}: {'; '.join(differ[:4])} differ(s) between the uninterrupted run and {how}"
            )


def _same_members(one: Sequence[_Step], other: Sequence[_Step], one_name: str, other_name: str) -> None:
    for left, right in zip(one, other, strict=False):
        for field in ("step", "members", "supervised_tokens", "real_tokens"):
            a, b = getattr(left, field), getattr(right, field)
            assert a == b, f"step {left.step}: {field} is {a} with {one_name}, {b} with {other_name}"
    assert len(one) == len(other), f"{len(one)} steps with {one_name}, {len(other)} with {other_name}"
