"""A state saved and restored gives the rest of the stream, and nothing else. Case IDs: tests are named after them."""

from __future__ import annotations

import json
import time

import pytest

import widestream as ws
from tests.support.jobs import fingerprint, sentences, small_job, take, write_jsonl
from widestream.errors import DataCorruptionError, InvalidArgumentError

SEEN = tuple[int, str, str]


def seen(batch: ws.Batch) -> SEEN:
    return batch.step, batch.digest, fingerprint(batch)


def run(job: ws.Job, steps: int | None, state=None, **options) -> tuple[list[SEEN], dict]:
    with ws.DataLoader(job, state=state, tensors="numpy", **options) as loader:
        out = []
        while steps is None or len(out) < steps:
            batch = next(loader, None)
            if batch is None:
                break
            out.append(seen(batch))
        return out, json.loads(json.dumps(loader.state_dict()))


def finite_job(folder, **changes):
    job = small_job(folder, **changes)
    for source in job.sources:
        source.max_epochs = 2
    return job


def test_R_02_restore_after_every_step_gives_the_rest(tmp_path):
    job = finite_job(tmp_path)
    reference, _ = run(job, None)
    assert len(reference) > 25
    for k in range(len(reference) + 1):
        first, state = run(job, k)
        rest, _ = run(job, None, state)
        assert first + rest == reference, f"restored after {k} steps"


def test_R_01_a_chain_of_restores_equals_one_run(tmp_path):
    job = finite_job(tmp_path)
    reference, _ = run(job, None)
    out, state = run(job, 3)
    for links in (1, 7, 2, 5):
        more, state = run(job, links, state)
        out += more
    rest, _ = run(job, None, state)
    assert out + rest == reference


def test_R_03_R_09_prefetched_steps_are_neither_lost_nor_repeated(tmp_path):
    job = finite_job(tmp_path, lookahead_steps=8)
    reference, _ = run(job, None)
    with ws.DataLoader(job, tensors="numpy") as loader:
        out = [seen(batch) for batch in take(loader, 4)]
        end = time.monotonic() + 60
        while loader.status()["ready_batches"] < 8:
            assert time.monotonic() < end, f"nothing is read ahead: {loader.status()}"
            time.sleep(0.005)
        state = loader.state_dict()
    rest, _ = run(job, None, state)
    assert out + rest == reference


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_R_04_R_05_R_07_R_13_epochs_are_whole_after_a_restore(tmp_path, epochs):
    texts = sentences(5, 30)
    write_jsonl(tmp_path / "data" / "only.jsonl", texts)
    source = {"name": "only", "path": str(tmp_path / "data" / "only.jsonl"), "max_epochs": epochs}
    job = small_job(tmp_path, sources=[source], mixture={"unit": "tokens", "stages": [{"weights": {"only": 1}}]})
    total, _ = run(job, None)
    for k in range(0, len(total) + 1, 2):
        _, state = run(job, k)
        records: list[tuple[int, int]] = []
        with ws.DataLoader(job, state=state, tensors="numpy") as loader:
            for batch in loader:
                records += zip(batch.pieces["epoch"].tolist(), batch.pieces["record"].tolist(), strict=True)
        for epoch in range(1, epochs):
            assert {r for e, r in records if e == epoch} <= set(range(30))
        if k == 0:
            assert {(e, r) for e, r in records} == {(e, r) for e in range(epochs) for r in range(30)}


def test_R_10_a_loader_takes_a_state_whatever_it_delivered_before(tmp_path):
    job = finite_job(tmp_path)
    reference, _ = run(job, None)
    _, state = run(job, 6)
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 11)
        loader.load_state_dict(state)
        assert [seen(batch) for batch in loader] == reference[6:]


def test_R_18_E_01_E_02_a_state_has_no_rank_and_restores_onto_any_mesh(tmp_path):
    job = finite_job(tmp_path)
    reference, _ = run(job, None)
    for before, after in ((1, 4), (4, 2), (2, 1)):
        first, state = run(job, 5, world=before, rank=before - 1)
        rest, _ = run(job, None, state, world=after, rank=0)
        assert [s[:2] for s in first + rest] == [s[:2] for s in reference]


def test_R_20_the_order_of_later_epochs_survives(tmp_path):
    job = small_job(tmp_path)
    reference, _ = run(job, 60)
    _, state = run(job, 45)
    assert any(source["epoch"] > 0 for source in state["sources"].values()), "the case needs a second epoch"
    rest, _ = run(job, 15, state)
    assert rest == reference[45:]


def test_state_of_an_earlier_step_is_held_for_frameworks_that_prefetch(tmp_path):
    job = finite_job(tmp_path)
    reference, _ = run(job, None)
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 12)
        state = loader.state_dict(step=7)
    assert run(job, None, state)[0] == reference[7:]


def test_state_is_small_and_readable(tmp_path):
    _, state = run(small_job(tmp_path), 20)
    assert state["step"] == 20
    assert set(state["sources"]) == {"prose", "code", "qa"}
    assert len(json.dumps(state)) < 8000


@pytest.mark.parametrize("key, change", [("seed", {"seed": 6}), ("validation", {"validation": {"fraction": "1%"}})])
def test_a_state_of_another_stream_is_refused_by_key(tmp_path, key, change):
    _, state = run(small_job(tmp_path), 3)
    with pytest.raises(InvalidArgumentError, match=key):
        run(small_job(tmp_path, **change), 1, state)
    run(small_job(tmp_path, **change), 1, state, fork=True)


def test_a_file_changed_before_a_resume_is_named(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    _, state = run(job, 3)
    write_jsonl(tmp_path / "data" / "code.jsonl", ["other"])
    with pytest.raises(DataCorruptionError, match=r"source 'code'.*code\.jsonl changed"):
        run(job, 1, state)


@pytest.mark.parametrize("damage", ["", "{", "[]", "{}", '{"version": 99}'])
def test_R_19_a_damaged_state_is_an_error(tmp_path, damage):
    job = small_job(tmp_path)
    from widestream.loader.engine import core

    with pytest.raises((InvalidArgumentError, DataCorruptionError)):
        core().Host(json.dumps(job.resolve()), state_json=damage or " ")


def test_a_changed_mixture_is_an_edit_at_the_resume_and_moves_no_cursor(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    _, state = run(job, 4)
    stages = [{"weights": {"prose": 0.1, "code": 0.1, "qa": 0.8}}]
    for changes in ({}, {"batch": {"rows": 6}}):
        changed = small_job(tmp_path, mixture={"unit": "tokens", "stages": stages}, **changes)
        with ws.DataLoader(changed, state=state, tensors="numpy") as loader:
            shares = dict.fromkeys(("prose", "code", "qa"), 0)
            for _ in range(12):
                for name, tokens in next(loader).tokens_by_source.items():
                    shares[name] += tokens
            assert shares["qa"] > 0.6 * sum(shares.values())
            kinds = [decision["kind"] for decision in loader.state_dict()["decisions"]]
            assert kinds == ["edit"]


def test_a_fork_over_a_changed_file_begins_its_next_epoch_and_leaves_the_others(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    _, state = run(job, 5)
    for texts in (["short"], sentences(77, 400)):
        write_jsonl(tmp_path / "data" / "code.jsonl", texts)
        with ws.DataLoader(job, state=state, fork=True, tensors="numpy") as loader:
            batches = take(loader, 8)
        epochs = {(int(s), int(e)) for b in batches for s, e in zip(b.pieces["source"], b.pieces["epoch"], strict=True)}
        before = {name: source["epoch"] for name, source in state["sources"].items()}
        assert all(epoch > before["code"] for source, epoch in epochs if source == 1)
        assert min(epoch for source, epoch in epochs if source == 0) == before["prose"]


def test_a_fork_drops_decisions_for_later_steps(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    reference, _ = run(small_job(tmp_path), 12)
    with ws.DataLoader(job, tensors="numpy") as loader:
        take(loader, 2)
        loader.edit_mixture({"unit": "tokens", "stages": [{"weights": {"qa": 1}}]}, at_step=8)
        state = loader.state_dict()
    replayed, _ = run(job, 10, state)
    assert replayed[:6] == reference[2:8]
    assert replayed[6:] != reference[8:12]
    assert run(job, 10, state, fork=True)[0] == reference[2:12]


def test_a_source_without_a_held_out_document_does_not_stop_validation(tmp_path):
    with ws.DataLoader(small_job(tmp_path, validation={"fraction": "1%"}), tensors="numpy") as loader:
        assert sum(m.real_tokens for m in loader.validation_batches()) > 0
    with ws.DataLoader(small_job(tmp_path, validation={"fraction": "0.000001%"}), tensors="numpy") as loader:
        assert loader.validation_batches() == []
