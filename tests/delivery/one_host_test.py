"""Ranks of a node attached to one host process: the same batches as each would build alone. Case IDs name tests."""

from __future__ import annotations

import os
import signal
import time

import pytest

import widestream as ws
from tests.support.jobs import fingerprint, small_job
from tests.support.node import is_running, node, wait_until

CONSUME = """
with ws.DataLoader(job, state=state, tensors="numpy") as loader:
    for batch in take(loader, 12):
        say([batch.step, batch.digest, fingerprint(batch)])
    say(loader.state_dict())
"""


def alone(job: ws.Job, rank: int, world: int, steps: int, state=None) -> list[list]:
    """What a rank gets from an engine of its own."""
    with ws.DataLoader(
        job.model_copy(update={"run_dir": None}), rank=rank, world=world, tensors="numpy", state=state
    ) as loader:
        return [[batch.step, batch.digest, fingerprint(batch)] for _, batch in zip(range(steps), loader, strict=False)]


def test_P_05_one_host_gives_every_rank_the_batches_that_it_would_build_alone(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, CONSUME)
        said = ranks.finish()
    for rank in range(2):
        assert said[rank][:12] == alone(job, rank, 2, 12)
    assert said[0][12] == said[1][12], "R-18: the state has no rank parts"
    assert said[0][0][1] == said[1][0][1] and said[0][0][2] != said[1][0][2]


@pytest.mark.parametrize("world", [1, 2, 4])
def test_E_01_E_02_R_18_a_state_of_two_ranks_goes_on_with_any_number(tmp_path, world):
    job = small_job(tmp_path)
    with node(tmp_path / "two", 2) as ranks:
        ranks.start(job, CONSUME)
        state = ranks.finish()[0][12]
    script = """
    with ws.DataLoader(job, tensors="numpy", state=state) as loader:
        for batch in take(loader, 5):
            say([batch.step, batch.digest, fingerprint(batch)])
    """
    with node(tmp_path / "more", world) as ranks:
        ranks.start(job, script, state)
        said = ranks.finish()
    whole = alone(job, 0, 1, 17)
    for rank in range(world):
        assert [[step, digest] for step, digest, _ in said[rank]] == [[s, d] for s, d, _ in whole[12:]]
        assert said[rank] == alone(job, rank, world, 17)[12:]


def test_R_10_state_loaded_on_every_rank_takes_the_job_back_whatever_objects_are_used(tmp_path):
    job = small_job(tmp_path)
    script = """
    loader = ws.DataLoader(job, tensors="numpy")
    first = [fingerprint(b) for b in take(loader, 4)]
    state = loader.state_dict()
    rest = [fingerprint(b) for b in take(loader, 4)]
    loader.load_state_dict(state)
    assert [fingerprint(b) for b in take(loader, 4)] == rest
    loader.close()
    with ws.DataLoader(job, tensors="numpy", state=state) as other:
        assert [fingerprint(b) for b in take(other, 4)] == rest
    say("same")
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        assert ranks.finish() == [["same"], ["same"]]


def test_R_15_two_nodes_with_a_host_each_give_the_stream_of_one(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    with (
        node(tmp_path / "a", 4, local=range(2), node=0) as first,
        node(tmp_path / "b", 4, local=range(2, 4), node=1) as second,
    ):
        first.start(job, CONSUME)
        second.start(job, CONSUME)
        said = first.finish() + second.finish()
    for rank in range(4):
        assert said[rank][:12] == alone(job, rank, 4, 12)
        assert said[rank][12] == said[0][12]


def test_edits_of_a_batch_in_place_are_private_and_never_show_again(tmp_path):
    job = small_job(tmp_path, mesh={"dp": 1, "tp": 2})
    script = """
    with ws.DataLoader(job, tensors="numpy") as loader:
        for _ in range(40):
            batch = next(loader)
            if rank == 0:
                for microbatch in batch.microbatches:
                    say_nothing = microbatch.tokens.sum()
                    microbatch.tokens[:] = -7
                    microbatch.labels[:] = -7
                del microbatch
                fp = None
            else:
                fp = fingerprint(batch)
            if rank == 1:
                say(fp)
            del batch
        last = next(loader)
        say([last.step, last.digest, fingerprint(last)])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        said = ranks.finish()
    whole = alone(small_job(tmp_path), 0, 1, 41)
    assert [f for _, _, f in whole[:40]] == said[1][:40], "the peer of the rank that edits sees the engine's values"
    assert said[0][-1] == said[1][-1] == whole[40], "memory that was edited shows fresh values"


def test_a_decision_of_every_rank_counts_once(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    script = """
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 3)
        say(loader.skip(2))
        say([b.step for b in take(loader, 3)])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        said = ranks.finish()
    assert said[0][0] == said[1][0]
    first = said[0][0]
    expected = [s for s in range(3, 20) if not first <= s < first + 2][:3]
    assert said[0][1] == said[1][1] == expected


def test_H_02_H_05_a_killed_node_leaves_nothing_and_starts_again(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    script = """
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 3)
        say(loader.state_dict())
        time.sleep(600)
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        state = ranks.read_line(0)
        ranks.read_line(1)
        pids = ranks.host_pids()
        assert len(pids) == 1
        os.kill(pids[0], signal.SIGKILL)
        ranks.kill()
        ranks.start(job, CONSUME, state)
        said = ranks.finish()
        for rank in range(2):
            assert said[rank][:12] == alone(job, rank, 2, 15)[3:]
        wait_until(lambda: not ranks.runtime.exists() or not list(ranks.runtime.iterdir()), "the folder is empty")
    assert not list((tmp_path / "node" / "r").glob("*"))


def test_a_host_that_dies_is_noticed_by_every_rank_with_its_log(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    script = """
    loader = ws.DataLoader(job, tensors="numpy")
    kept = take(loader, 2)
    before = [fingerprint(b) for b in kept]
    say("ready")
    begin = time.monotonic()
    try:
        while True:
            take(loader, 1)
    except ws.errors.UnavailableError as error:
        say([str(error), before == [fingerprint(b) for b in kept]])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        assert [ranks.read_line(i) for i in range(2)] == ["ready", "ready"]
        (pid,) = ranks.host_pids()
        os.kill(pid, signal.SIGKILL)
        for text, same in (lines[0] for lines in ranks.finish()):
            assert str(pid) in text and "host-0.log" in text
            assert same, "batches that are held stay valid"


def test_a_host_survives_a_restart_of_the_trainer(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    script = """
    loader = ws.DataLoader(job, tensors="numpy")
    take(loader, 4)
    say(loader.state_dict())
    time.sleep(600)
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        state = ranks.read_line(0)
        assert ranks.read_line(1) == state
        before = ranks.host_pids()
        ranks.kill()
        ranks.launch = "b"
        ranks.start(job, CONSUME, state)
        said = ranks.finish()
        assert ranks.host_pids() in (before, [])
        for rank in range(2):
            assert said[rank][:12] == alone(job, rank, 2, 16)[4:]


def test_the_host_ends_with_its_last_rank_and_with_its_launcher(tmp_path):
    job = small_job(tmp_path)
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, CONSUME + "    say(loader.host_pid)\n")
        said = ranks.finish()
        wait_until(lambda: not is_running(said[0][13]), "the host ends when the last rank has left")
        assert not list(ranks.runtime.iterdir())


@pytest.mark.parametrize("key, value", [("seed", 6), ("name", "other")])
def test_ranks_that_disagree_about_the_job_are_refused_with_the_key(tmp_path, key, value):
    job = small_job(tmp_path, run_dir=True)
    other = job.model_copy(update={key: value})
    script = """
    try:
        loader = ws.DataLoader(job, tensors="numpy", attach_seconds=20)
        say("attached")
        if rank == 0:
            time.sleep(5)
    except ws.errors.WidestreamError as error:
        say([type(error).__name__, str(error)])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start([job, other], script)
        said = ranks.finish()
    assert said[0] == ["attached"]
    kind, text = said[1][0]
    assert kind == "InvalidArgumentError" and key in text and str(value) in text


def test_a_second_job_in_the_same_run_folder_is_refused(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    hold = """
    loader = ws.DataLoader(job, tensors="numpy")
    say("ready")
    time.sleep(600)
    """
    script = """
    try:
        ws.DataLoader(job, tensors="numpy", attach_seconds=2)
    except ws.errors.WidestreamError as error:
        say([type(error).__name__, str(error)])
    """
    with node(tmp_path / "node", 2) as first, node(tmp_path / "node", 2, launch="b") as second:
        first.start(job, hold)
        assert [first.read_line(i) for i in range(2)] == ["ready", "ready"]
        begin = time.monotonic()
        second.start(job.model_copy(update={"seed": 9}), script)
        for ((kind, text),) in second.finish():
            assert kind == "InvalidArgumentError" and "seed" in text
        second.start(job, script)
        for ((kind, text),) in second.finish():
            assert kind == "DeadlineExceededError" and "another start of the training" in text
        assert time.monotonic() - begin < 50
        first.kill()


def test_a_mesh_unequal_to_the_world_is_an_error_on_every_rank(tmp_path):
    job = small_job(tmp_path, mesh={"dp": 2, "tp": 2})
    script = """
    try:
        ws.DataLoader(job, tensors="numpy")
    except ws.errors.InvalidArgumentError as error:
        say(str(error))
    """
    with node(tmp_path / "node", 3) as ranks:
        ranks.start(job, script)
        for (text,) in ranks.finish():
            assert "4 ranks" in text and "world has 3" in text


def test_an_error_of_the_job_reaches_every_rank(tmp_path):
    job = small_job(tmp_path)
    job.sources[0].path = [str(tmp_path / "data" / "nothing*.parquet")]
    script = """
    try:
        ws.DataLoader(job, tensors="numpy")
    except ws.errors.WidestreamError as error:
        say([type(error).__name__, str(error)])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        said = ranks.finish()
    assert said[0] == said[1]
    assert "prose" in said[0][0][1]


def test_H_04_a_forked_child_is_told_why_it_cannot_use_the_loader_and_its_parent_goes_on(tmp_path):
    job = small_job(tmp_path)
    script = """
    loader = ws.DataLoader(job, tensors="numpy")
    batch = next(loader)
    before = fingerprint(batch)
    child = os.fork()
    if child == 0:
        try:
            next(loader)
        except ws.errors.InvalidArgumentError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(2)
    say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert fingerprint(batch) == before
    say([b.step for b in take(loader, 3)])
    loader.close()
    """
    for world in (1, 2):
        with node(tmp_path / f"node{world}", world) as ranks:
            ranks.start(job, script)
            assert ranks.finish() == [[7, [1, 2, 3]]] * world


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_H_04_a_rank_in_a_spawned_process_works(tmp_path, method):
    job = small_job(tmp_path)
    script = f"""
    import multiprocessing
    from tests.delivery.spawned import first_fingerprints
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        say(pool.apply(first_fingerprints, (job.model_dump_json(exclude_none=True), 3)))
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        said = ranks.finish()
    for rank in range(2):
        assert said[rank][0] == [f for _, _, f in alone(job, rank, 2, 3)]


def test_nothing_leaks_over_many_steps(tmp_path):
    job = small_job(tmp_path)
    script = """
    def held():
        maps = sum("widestream-slab" in line or "memfd" in line for line in open("/proc/self/maps"))
        return len(os.listdir("/proc/self/fd")), maps
    def together(step):
        # No rank runs ahead, so that as many steps are in memory at the second look as at the first.
        open(f"{rank}-{step}", "w").close()
        while not os.path.exists(f"{1 - rank}-{step}"):
            time.sleep(0.0005)
    os.chdir(job.data_roots[0])
    with ws.DataLoader(job, tensors="numpy") as loader:
        for step in range(330):
            together(step)
            if step == 30:
                before = held()
            fingerprint(next(loader))
        after = held()
        say([before, after])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        for (((descriptors, maps), after),) in ranks.finish():
            assert after[0] <= descriptors and after[1] <= maps + 4
