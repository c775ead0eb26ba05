"""One host for a mesh: TP peers, CP slices, pipeline stages, broadcasts. Case IDs name tests."""

from __future__ import annotations

import numpy as np
import pytest

import widestream as ws
from tests.support.jobs import small_job, take
from tests.support.node import node
from tests.support.ranks import run

GIVE = """
with ws.DataLoader(job, tensors="numpy") as loader:
    for batch in take(loader, 4):
        say([{k: v.tolist() for k, v in mb.tensors().items()} | {"shape": mb.shape} for mb in batch.microbatches])
"""
STRATEGY = [
    "mix",
    {"pack": "best_fit"},
    {"cost": "transformer"},
    {"distribute": "dp"},
    {"balance": "lpt"},
    {"broadcast_at": "tp"},
    "plan",
]
SLICED = ("tokens", "labels", "loss_mask", "position_ids", "segment_ids")


def whole(job: ws.Job, steps: int) -> list[list[dict]]:
    alone = job.model_copy(update={"mesh": job.mesh.model_copy(update={"dp": 1, "cp": 1, "tp": 1, "pp": 1})})
    with ws.DataLoader(alone, rank=0, world=1, tensors="numpy") as loader:
        return [[mb.tensors() for mb in batch.microbatches] for batch in take(loader, steps)]


def ranks_of(job: ws.Job, folder, world: int) -> list:
    with node(folder, world) as ranks:
        ranks.start(job, GIVE)
        return ranks.finish()


def test_context_ranks_get_slices_of_one_copy_that_make_up_the_rows(tmp_path):
    job = small_job(tmp_path, mesh={"dp": 1, "cp": 2})
    said = ranks_of(job, tmp_path / "node", 2)
    for step, microbatches in enumerate(whole(job, 4)):
        for m, expected in enumerate(microbatches):
            for name in SLICED:
                first, second = (np.array(said[rank][step][m][name]) for rank in range(2))
                chunk = first.shape[1] // 2
                rows = np.concatenate([first[:, :chunk], second, first[:, chunk:]], axis=1)
                assert np.array_equal(rows, expected[name]), name
            for rank in range(2):
                assert said[rank][step][m]["cu_seqlens"] == expected["cu_seqlens"].tolist()


def test_E_06_pipeline_stages_see_the_same_step_and_only_what_they_need(tmp_path):
    job = small_job(tmp_path, mesh={"dp": 1, "pp": 3})
    said = ranks_of(job, tmp_path / "node", 3)
    for step, microbatches in enumerate(whole(job, 4)):
        for m, expected in enumerate(microbatches):
            first, middle, last = (said[rank][step][m] for rank in range(3))
            assert set(first) == {"tokens", "position_ids", "segment_ids", "cu_seqlens", "shape"}
            assert set(middle) == {"cu_seqlens", "shape"}
            assert set(last) == {"labels", "loss_mask", "cu_seqlens", "shape"}
            assert first["tokens"] == expected["tokens"].tolist()
            assert last["labels"] == expected["labels"].tolist()
            assert first["shape"] == middle["shape"] == last["shape"] == list(expected["tokens"].shape)


def test_tensor_parallel_peers_get_the_same(tmp_path):
    job = small_job(tmp_path, mesh={"dp": 1, "tp": 2})
    said = ranks_of(job, tmp_path / "node", 2)
    assert said[0] == said[1]


def test_a_rank_that_does_not_fetch_is_told_who_does(tmp_path):
    job = small_job(tmp_path, mesh={"dp": 1, "tp": 2}, strategy=STRATEGY)
    script = """
    try:
        with ws.DataLoader(job, tensors="numpy") as loader:
            say([b.step for b in take(loader, 2)])
    except ws.errors.InvalidArgumentError as error:
        say(str(error))
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        (leader,), (follower,) = ranks.finish()
    assert leader == [0, 1]
    assert "rank 0" in follower and "Broadcaster" in follower


@pytest.mark.parametrize(
    "mesh, axes", [({"tp": 2}, ["tp"]), ({"cp": 2}, ["cp"]), ({"pp": 2}, ["pp"])], ids=["tp", "cp", "pp"]
)
def test_what_a_leader_broadcasts_is_what_each_rank_would_fetch(tmp_path, mesh, axes):
    job = small_job(tmp_path, mesh={"dp": 1, **mesh})
    (tmp_path / "job.json").write_text(job.model_dump_json(exclude_none=True))
    out = run(2, "-m", "tests.delivery.mesh_worker", str(tmp_path / "job.json"), ",".join(axes))
    assert sorted(line for line in out.splitlines() if line.startswith("rank")) == ["rank 0 equal", "rank 1 equal"]
