"""Cases of delivery that need no second rank's process, or a host and one; IDs name tests."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import widestream as ws
from tests.support.jobs import small_job, take
from tests.support.node import is_running, node, wait_until
from widestream.hosting.folder import host_folder
from widestream.hosting.process import HostDescription
from widestream.hosting.start import start_host


def test_the_host_is_reaped_when_the_process_that_it_was_started_for_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDESTREAM_RUNTIME_DIR", str(tmp_path / "r"))
    parent = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    folder = host_folder("", "launch", 0)
    description = HostDescription(
        job=small_job(tmp_path).resolve(), first_rank=0, ranks=1, journal=True, watch_pid=parent.pid
    )
    host = start_host(folder, description)
    assert is_running(host)
    parent.kill()
    parent.wait()
    wait_until(lambda: not is_running(host), "the host ends with the process that it watches")
    assert list((tmp_path / "r").iterdir()) == [], "no socket, no lock, no log"


def test_a_host_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDESTREAM_RUNTIME_DIR", str(tmp_path / "r"))
    broken = small_job(tmp_path).resolve()
    broken["batch"]["sequence_length"] = 0
    description = HostDescription(job=broken, first_rank=0, ranks=1, journal=True, watch_pid=os.getpid())
    with pytest.raises(ws.errors.IoError, match="sequence_length"):
        start_host(host_folder("", "launch", 0), description)


def test_a_rank_without_a_free_descriptor_is_told_so(tmp_path):
    script = """
    import resource
    with ws.DataLoader(job, tensors="numpy") as loader:
        held = [next(loader)]
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            while True:  # slabs that were sent already need none
                held.append(next(loader))
                assert len(held) < 1000
        except ws.errors.ResourceExhaustedError as error:
            say(str(error))
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(small_job(tmp_path), script)
        for (said,) in ranks.finish():
            assert "too many files open" in said and "ulimit -n" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_refused(tmp_path):
    script = """
    import os
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 1)
        folder = os.environ["WIDESTREAM_RUNTIME_DIR"]
        (socket,) = [os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name == "host.sock"]
        child = os.fork()
        if child == 0:
            os.setuid(65534)
            try:
                from widestream.loader.engine import core
                core().Client(socket, "", rank=0, world=1, launch_id="other")
            except ws.errors.InvalidArgumentError as error:
                os._exit(7 if "same user" in str(error) else 8)
            os._exit(9)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(small_job(tmp_path), script)
        assert ranks.finish() == [[7], [7]]


@pytest.mark.parametrize("attached", [False, True])
def test_numpy_arrays_export_the_same_memory_by_dlpack(tmp_path, attached):
    script = """
    import numpy as np
    with ws.DataLoader(job, tensors="numpy") as loader:
        for batch in take(loader, 2):
            for name, array in batch.microbatches[0].tensors().items():
                other = np.from_dlpack(array)
                assert np.shares_memory(array, other) and np.array_equal(array, other), name
        say("shared")
    """
    with node(tmp_path / "node", 2 if attached else 1) as ranks:
        ranks.start(small_job(tmp_path), script)
        assert all(said == ["shared"] for said in ranks.finish())


def test_P_03_what_a_loader_holds_is_native_and_batches_are_views_of_it(tmp_path):
    """No Python object a record or token: neither reading nor forking multiplies memory by touching reference counts."""
    with ws.DataLoader(small_job(tmp_path), tensors="numpy") as loader:
        batch = next(loader)
        for array in batch.microbatches[0].tensors().values():
            assert array.base is not None and not array.flags.owndata
        assert not any(isinstance(value, list) and len(value) > 100 for value in vars(loader).values())


def test_B_06_every_rank_has_the_count_of_targets_of_the_whole_step(tmp_path):
    job = small_job(tmp_path, batch={"layout": "thd", "rows": None, "tokens": 700, "microbatch_tokens": 256})
    script = """
    with ws.DataLoader(job, tensors="numpy") as loader:
        for batch in take(loader, 6):
            say([batch.supervised_tokens, sum(int(mb.loss_mask.sum()) for mb in batch.microbatches)])
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        first, second = ranks.finish()
    for (whole, mine), (same, theirs) in zip(first, second, strict=True):
        assert whole == same == mine + theirs
    assert any(mine != theirs for (_, mine), (_, theirs) in zip(first, second, strict=True))


def test_H_01_H_09_ranks_meet_no_barrier_and_see_the_same_number_of_steps(tmp_path):
    """One rank takes the whole stream, whose sources end at different times, before the other begins."""
    job = small_job(tmp_path, limits={"host_memory": "256MiB", "threads": 2})
    for source in job.sources:
        source.max_epochs = 1
    script = """
    loader = ws.DataLoader(job, tensors="numpy")
    if rank == 1:
        while not os.path.exists(job.data_roots[0] + "/rank0"):
            time.sleep(0.01)
    steps = [(b.step, len(b.microbatches)) for b in loader]
    open(job.data_roots[0] + f"/rank{rank}", "w").close()
    say(steps)
    loader.close()
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        first, second = ranks.finish()
    assert first == second
    assert len(first[0]) > 10


def test_a_rank_that_holds_all_memory_is_named_to_the_rank_that_waits(tmp_path):
    job = small_job(tmp_path, limits={"host_memory": "16MiB", "threads": 2, "read_deadline": "1s"})
    script = """
    with ws.DataLoader(job, tensors="numpy") as loader:
        held = []
        try:
            while True:
                batch = next(loader)
                if rank == 0:
                    held.append(batch)
                del batch
        except ws.errors.ResourceExhaustedError as error:
            say(str(error))
            if rank == 0:
                time.sleep(1)
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(job, script)
        begin = time.monotonic()
        said = ranks.finish()
    assert time.monotonic() - begin < 50
    for (text,) in said:
        assert "rank 0" in text


def test_S_10_an_attached_rank_copies_no_tensor(tmp_path):
    script = """
    with ws.DataLoader(job, tensors="numpy") as loader:
        for _ in range(50):
            fingerprint(next(loader))
        say(loader.counters())
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(small_job(tmp_path), script)
        for (counters,) in ranks.finish():
            assert counters["bytes_copied"] == 0
            assert 0 < counters["mappings"] <= counters["batches"]


def test_a_batch_outlives_its_loader(tmp_path):
    script = """
    loader = ws.DataLoader(job, tensors="numpy")
    batch = next(loader)
    before = fingerprint(batch)
    loader.close()
    del loader
    time.sleep(0.2)
    assert fingerprint(batch) == before
    say("kept")
    """
    with node(tmp_path / "node", 2) as ranks:
        ranks.start(small_job(tmp_path), script)
        assert ranks.finish() == [["kept"], ["kept"]]


def test_the_embedded_loader_and_the_host_agree_on_numpy_types(tmp_path):
    with ws.DataLoader(small_job(tmp_path), tensors="numpy") as loader:
        tensors = take(loader, 1)[0].microbatches[0].tensors()
    assert {name: array.dtype for name, array in tensors.items()} == {
        "tokens": np.int64,
        "labels": np.int64,
        "loss_mask": np.bool_,
        "position_ids": np.int64,
        "segment_ids": np.int32,
        "cu_seqlens": np.int32,
    }
