"""Parts of the host process that need no process: who is who, where ranks meet, when a host ends."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widestream.errors import InvalidArgumentError, UnavailableError
from widestream.hosting.folder import FolderLock, host_folder, make_private, remove_leftovers
from widestream.hosting.launch import from_environment
from widestream.hosting.lifetime import Patience, Seen, reason_to_end

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_RESTART_COUNT": "0",
}


def test_torchruns_environment_names_the_node_and_its_first_rank():
    launch = from_environment(TORCHRUN)
    assert (launch.rank, launch.world, launch.node, launch.first_rank, launch.local_world) == (5, 8, 1, 4, 4)
    assert launch.watch_pid == os.getppid()
    assert from_environment({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).launch_id != launch.launch_id


def test_outside_a_launcher_there_is_no_launch():
    assert from_environment({}) is None
    assert from_environment({"RANK": "0"}) is None


def test_a_rank_and_world_alone_is_a_node_of_one():
    launch = from_environment({"RANK": "3", "WORLD_SIZE": "4"})
    assert (launch.local_rank, launch.local_world, launch.node) == (0, 1, 3)
    assert launch.watch_pid == os.getpid()


@pytest.mark.parametrize("change", [{"RANK": "8"}, {"LOCAL_RANK": "4"}, {"LOCAL_WORLD_SIZE": "9"}, {"RANK": "0"}])
def test_a_contradiction_in_the_environment_is_refused_with_the_numbers(change):
    with pytest.raises(InvalidArgumentError, match="which cannot be"):
        from_environment({**TORCHRUN, **change})


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(InvalidArgumentError, match="WORLD_SIZE is 'two'"):
        from_environment({**TORCHRUN, "WORLD_SIZE": "two"})


def test_ranks_meet_by_their_run_folder_and_without_one_by_their_launch(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDESTREAM_RUNTIME_DIR", str(tmp_path / "r"))
    run = str(tmp_path / "run")
    assert host_folder(run, "a", 0) == host_folder(run, "b", 0)
    assert host_folder(run, "a", 0) != host_folder(run, "a", 1)
    assert host_folder("", "a", 0) != host_folder("", "b", 0)
    assert host_folder(run + "/../run", "a", 0).path == host_folder(run, "a", 0).path


def test_a_socket_path_beyond_the_limit_of_linux_is_refused_with_what_to_set(tmp_path, monkeypatch):
    monkeypatch.setenv("WIDESTREAM_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(InvalidArgumentError, match="WIDESTREAM_RUNTIME_DIR"):
        host_folder("run", "", 0)


def test_a_folder_that_others_can_enter_or_a_link_is_refused(tmp_path):
    private = tmp_path / "private"
    make_private(private)
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    make_private(private)
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o755)
    with pytest.raises(InvalidArgumentError, match="0700"):
        make_private(open_folder)
    (tmp_path / "link").symlink_to(private)
    with pytest.raises(InvalidArgumentError, match="0700"):
        make_private(tmp_path / "link")


def test_h_02_what_a_killed_host_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path):
    root = tmp_path / "root"
    make_private(root)
    for name in ("dead", "living"):
        make_private(root / name)
        (root / name / "host.sock").touch()
    lock = FolderLock(root, "living")
    assert remove_leftovers(root) == [root / "dead"]
    assert (root / "living" / "host.sock").exists()
    with pytest.raises(UnavailableError, match="another host"):
        FolderLock(root, "living")
    lock.release()
    assert remove_leftovers(root) == [root / "living"]
    assert list(root.iterdir()) == []


GONE = Seen(attached=0, idle_seconds=1.0, complete=True, left_gracefully=True, watched_alive=True)


def test_a_host_ends_when_every_rank_has_left_and_waits_for_ranks_that_died():
    patience = Patience(start_seconds=10, restart_seconds=5, quiet_seconds=1)
    assert reason_to_end(GONE, patience) == "every rank has left"
    assert reason_to_end(replace(GONE, idle_seconds=0.9), patience) is None, "they may come again at another state"
    died = replace(GONE, left_gracefully=False)
    assert reason_to_end(replace(died, idle_seconds=4.9), patience) is None
    assert "none came back within 5 s" in reason_to_end(replace(died, idle_seconds=5), patience)
    late = replace(GONE, complete=False, idle_seconds=10)
    assert "within 10 s" in reason_to_end(late, patience)


@given(
    st.builds(
        Seen,
        attached=st.integers(0, 3),
        idle_seconds=st.floats(0, 1e6),
        complete=st.booleans(),
        left_gracefully=st.booleans(),
        watched_alive=st.booleans(),
    ),
    st.booleans(),
)
def test_a_host_never_ends_under_an_attached_rank_and_never_outlives_its_parent_alone(seen, forever):
    reason = reason_to_end(seen, Patience(forever=forever))
    if seen.attached:
        assert reason is None
    elif not seen.watched_alive:
        assert reason is not None
    elif forever:
        assert reason is None
