"""broadcast_at: only leaders fetch; their batches reach the other ranks of the group, whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import widestream as ws
from tests.support.jobs import fingerprint, small_job
from tests.support.ranks import run
from widestream.errors import InvalidArgumentError
from widestream.loader.broadcast import Broadcaster
from widestream.loader.packed_tensors import pack, unpack

WORKER = str(Path(__file__).with_name("broadcast_worker.py"))
ROOT = str(Path(__file__).resolve().parents[2])


@pytest.mark.parametrize("ranks", [2, 4])
def test_leaders_fetch_and_every_rank_of_the_group_has_the_batch(tmp_path, ranks):
    small_job(tmp_path)  # writes the data, once
    printed = run(ranks, WORKER, str(tmp_path), PYTHONPATH=ROOT)
    assert all(f"rank {rank} is content" in printed for rank in range(ranks))


def test_a_group_of_one_keeps_the_batch(tmp_path):
    broadcaster = Broadcaster([0], 0)
    assert broadcaster.leads
    with ws.DataLoader(small_job(tmp_path)) as loader, ws.DataLoader(small_job(tmp_path)) as plain:
        shared = next(broadcaster.batches(loader))
        assert isinstance(shared, ws.Batch) and fingerprint(shared) == fingerprint(next(plain))
    assert broadcaster.share(None) is None


def test_a_leader_outside_the_group_is_refused():
    with pytest.raises(InvalidArgumentError, match="needs its leader"):
        Broadcaster([0], 1)


TENSORS = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 5), max_size=3),
    st.sampled_from([torch.int64, torch.int32, torch.bool, torch.float64, torch.uint8]),
    st.integers(0, 99),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abcd"), TENSORS), max_size=4))
def test_packed_tensors_come_out_as_they_went_in(groups):
    layout, buffer = pack(groups)
    found = unpack(layout, buffer)
    assert [list(group) for group in found] == [list(group) for group in groups]
    for one, other in zip(groups, found, strict=True):
        for name, tensor in one.items():
            assert other[name].dtype == tensor.dtype and torch.equal(other[name], tensor)
            assert other[name].numel() == 0 or (other[name].data_ptr() - buffer.data_ptr()) % 64 == 0
