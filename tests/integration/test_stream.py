"""The stream is a function of job, seed and data: nothing else changes a member or a byte."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import widestream as ws
from tests.support.jobs import fingerprint, members, sentences, small_job, take, write_jsonl

STEPS = 25


def stream(job: ws.Job, steps: int = STEPS, **options):
    with ws.DataLoader(job, tensors="numpy", **options) as loader:
        return [
            (batch.step, batch.digest, members(batch), fingerprint(batch)) for batch in take_released(loader, steps)
        ]


def take_released(loader, steps):
    for _ in range(steps):
        batch = next(loader, None)
        if batch is None:
            return
        yield batch


def test_threads_and_memory_do_not_change_a_byte(tmp_path):
    reference = stream(small_job(tmp_path))
    assert len(reference) == STEPS
    for limits in ({"threads": 1}, {"threads": 4}, {"host_memory": "24MiB"}, {"host_memory": "512MiB"}):
        assert stream(small_job(tmp_path, limits={"host_memory": "64MiB", **limits})) == reference
    assert stream(small_job(tmp_path, lookahead_steps=1)) == reference


def test_threads_and_memory_do_not_change_a_byte_of_any_rank(tmp_path):
    reference = stream(small_job(tmp_path), rank=2, world=4)
    assert len(reference) == STEPS
    assert reference != stream(small_job(tmp_path), rank=0, world=4), "the ranks hold different rows"
    for limits in ({"threads": 1}, {"threads": 4}, {"host_memory": "24MiB"}, {"host_memory": "512MiB"}):
        job = small_job(tmp_path, limits={"host_memory": "64MiB", **limits})
        assert stream(job, rank=2, world=4) == reference, limits


def test_a_dropped_last_step_is_counted_in_left_tokens(tmp_path):
    write_jsonl(tmp_path / "data" / "only.jsonl", sentences(9, 60, longest_words=200))
    source = {"name": "only", "path": str(tmp_path / "data" / "only.jsonl"), "max_epochs": 1}
    mixture = {"unit": "tokens", "stages": [{"weights": {"only": 1}}]}
    delivered, left = {}, {}
    for last_step in ("fill", "drop"):
        job = small_job(tmp_path, sources=[source], mixture=mixture, batch={"last_step": last_step})
        with ws.DataLoader(job, tensors="numpy") as loader:
            delivered[last_step] = [(batch.digest, batch.real_tokens) for batch in loader]
            left[last_step] = loader.left_tokens
    assert left["fill"] == 0
    assert left["drop"] > 0
    assert delivered["drop"] == delivered["fill"][:-1], "only the short last step is missing"
    assert left["drop"] == delivered["fill"][-1][1]


def test_ranks_share_one_membership(tmp_path):
    job = small_job(tmp_path)
    reference = [step[:3] for step in stream(job)]
    for world in (1, 2, 4, 7):
        for rank in {0, world - 1}:
            assert [step[:3] for step in stream(job, rank=rank, world=world)] == reference


@pytest.mark.parametrize(
    "batch", [{"layout": "rows"}, {"layout": "padded"}, {"layout": "thd", "rows": None, "tokens": 512}]
)
def test_the_ranks_together_hold_every_member_once(tmp_path, batch):
    job = small_job(tmp_path, batch=batch)
    world = 3
    loaders = [ws.DataLoader(job, rank=rank, world=world, tensors="numpy") for rank in range(world)]
    try:
        for _ in range(10):
            batches = [next(loader) for loader in loaders]
            assert len({len(b.microbatches) for b in batches}) == 1
            supervised = sum(int(m.loss_mask.sum()) for b in batches for m in b.microbatches)
            assert supervised == batches[0].supervised_tokens
            placed = collections.Counter(i for rank in batches[0].layout for m in rank for row in m for i in row)
            assert set(placed) == set(range(len(batches[0].pieces["length"])))
            assert set(placed.values()) == {1}
            assert sum(m.real_tokens for b in batches for m in b.microbatches) == batches[0].real_tokens
    finally:
        for loader in loaders:
            loader.close()


def test_every_token_but_a_documents_first_is_a_target_once(tmp_path):
    texts = sentences(9, 60, longest_words=200)
    write_jsonl(tmp_path / "data" / "only.jsonl", texts)
    source = {"name": "only", "path": str(tmp_path / "data" / "only.jsonl"), "max_epochs": 1}
    job = small_job(tmp_path, sources=[source], mixture={"unit": "tokens", "stages": [{"weights": {"only": 1}}]})
    documents: dict[int, dict[int, int]] = collections.defaultdict(dict)
    targets: dict[int, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    with ws.DataLoader(job, tensors="numpy") as loader:
        for batch in loader:
            pieces, layout = batch.pieces, batch.layout[0]
            for microbatch, rows in zip(batch.microbatches, layout, strict=True):
                for row, indices in enumerate(rows):
                    at = 0
                    for index in indices:
                        record, start = int(pieces["record"][index]), int(pieces["start"][index])
                        for offset in range(int(pieces["length"][index])):
                            documents[record][start + offset] = int(microbatch.tokens[row, at])
                            if microbatch.loss_mask[row, at]:
                                targets[record][start + offset + 1] += 1
                                documents[record].setdefault(start + offset + 1, int(microbatch.labels[row, at]))
                                assert documents[record][start + offset + 1] == int(microbatch.labels[row, at])
                            at += 1
        decoded = {r: loader.decode(np.array([t for _, t in sorted(d.items())])) for r, d in documents.items()}
    assert decoded == {i: text.encode() + b"<|endoftext|>" for i, text in enumerate(texts)}
    for record, tokens in documents.items():
        assert targets[record] == dict.fromkeys(range(1, len(tokens)), 1)


def test_a_held_tensor_keeps_its_values(tmp_path):
    job = small_job(tmp_path)
    with ws.DataLoader(job, tensors="numpy") as loader:
        first = next(loader)
        before = fingerprint(first)
        held = [first, *take(loader, 5)]
        for _ in take_released(loader, 30):
            pass
        assert fingerprint(held[0]) == before
    assert fingerprint(first) == before, "tensors stay valid after the loader is closed"
