"""explain, journal, state and provenance of a run that the loader really made."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

import widestream as ws
from tests.support.jobs import small_job
from widestream.errors import (
    DataCorruptionError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    WidestreamError,
)
from widestream.inspection import explain, journal_steps, read_journal, read_state, repair_journal, write_provenance
from widestream.inspection.journal import piece_lengths

STEPS = 8


def run(folder: Path, steps: int = STEPS, **changes):
    """Runs a small job with a journal; returns the run folder and what each batch said of itself."""
    world = changes.pop("world", 1)
    job = small_job(folder, run_dir=True, **changes)
    told = []
    with ws.DataLoader(job, rank=world - 1, world=world, tensors="numpy") as loader:
        for _ in range(steps):
            batch = next(loader)
            told.append({rank: batch.sources(rank) for rank in range(world)} | {"tokens": batch.tokens_by_source})
        write_provenance(batch, loader, job.run_dir)
        state = loader.state_dict()
        loader.commit()
    run_dir = Path(job.run_dir)
    (run_dir / "job.json").write_text(job.to_json())
    checkpoint = run_dir / "checkpoints" / f"step_{steps:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "loader.json").write_text(json.dumps(state))
    return run_dir, told


@pytest.mark.parametrize(
    "changes",
    [{}, {"world": 3}, {"batch": {"layout": "padded"}}, {"batch": {"layout": "thd", "rows": None, "tokens": 512}}],
)
def test_explain_says_what_the_batch_says_without_the_data(tmp_path, changes):
    run_dir, told = run(tmp_path, **changes)
    shutil.rmtree(tmp_path / "data")
    for step, of_step in enumerate(told):
        for rank, spans in ((key, value) for key, value in of_step.items() if key != "tokens"):
            pieces = explain(run_dir, step, rank)
            assert [
                (p["source"], p["shard"], p["record"], p["start"], p["stop"], p["epoch"], p["row"], p["microbatch"])
                for p in pieces
            ] == [(s.source, s.shard, s.record, s.start, s.stop, s.epoch, s.row, s.microbatch) for s in spans]
    json.dumps(pieces)


def test_explain_without_manifests_or_job_gives_numbers(tmp_path):
    run_dir, told = run(tmp_path)
    (run_dir / "job.json").unlink()
    assert {piece["shard"] for piece in explain(run_dir, 0) if piece["source"] == "code"} == {"code.jsonl"}
    for manifest in (run_dir / "manifests").iterdir():
        manifest.write_text("{torn")
    pieces = explain(run_dir, 0)
    assert {piece["shard"] for piece in pieces} == {None}
    assert [piece["record"] for piece in pieces] == [span.record for span in told[0][0]]


def test_explain_names_what_there_is(tmp_path):
    run_dir, _ = run(tmp_path)
    with pytest.raises(NotFoundError, match="from 0 to"):
        explain(run_dir, 1000)
    with pytest.raises(InvalidArgumentError, match="1 data-parallel rank"):
        explain(run_dir, 0, rank=1)
    with pytest.raises(InvalidArgumentError, match="below 0"):
        explain(run_dir, -1)
    with pytest.raises(NotFoundError, match="no journal"):
        explain(tmp_path / "elsewhere", 0)


def test_a_whole_journal(tmp_path):
    run_dir, told = run(tmp_path)
    found = read_journal(run_dir)
    assert found["whole"] and found["problems"] == [] and found["tear"] is None
    assert found["sources"] == ["prose", "code", "qa"]
    assert found["first_step"] == 0 and found["last_step"] >= STEPS - 1 and found["missing_steps"] == 0
    assert found == read_journal(run_dir / "journal.bin")
    steps = list(journal_steps(run_dir, 2, 5))
    assert [step["step"] for step in steps] == [2, 3, 4, 5]
    for step in steps:
        assert step["tokens_by_source"] == {name: n for name, n in sorted(told[step["step"]]["tokens"].items()) if n}
        assert sum(step["tokens_by_source"].values()) == step["real_tokens"]
    lengths, of = piece_lengths(run_dir)
    assert sum(lengths) == found["tokens"] and "all steps" in of
    json.dumps(found, allow_nan=False)
    with pytest.raises(InvalidArgumentError, match="no range"):
        list(journal_steps(run_dir, 5, 2))


def test_decisions_are_shown(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    with ws.DataLoader(job, tensors="numpy") as loader:
        next(loader)
        first = loader.skip(2)
        batch = next(loader)
        loader.commit()
    found = read_journal(job.run_dir)
    assert found["decisions"] == [{"step": first, "kind": "skip", "steps": 2}]
    assert found["skipped_steps"] == 2 and batch.step == first + 2


def test_a_torn_tail_is_told_and_repaired(tmp_path):
    run_dir, _ = run(tmp_path)
    journal = run_dir / "journal.bin"
    whole = read_journal(run_dir)
    os.truncate(journal, journal.stat().st_size - 5)
    torn = read_journal(run_dir)
    assert not torn["whole"] and torn["last_step"] == whole["last_step"] - 1
    assert torn["tear"]["offset_bytes"] == torn["valid_bytes"] and not torn["tear"]["records_follow"]
    assert "killed process" in torn["problems"][0]
    repaired = repair_journal(run_dir)
    assert repaired["whole"] and repaired["cut"] == torn["tear"]
    assert journal.stat().st_size == torn["valid_bytes"]
    assert repair_journal(run_dir)["cut"] is None


def test_damage_inside_is_not_repaired_unasked(tmp_path):
    run_dir, _ = run(tmp_path)
    journal = run_dir / "journal.bin"
    raw = bytearray(journal.read_bytes())
    raw[len(raw) // 2] ^= 0x40
    journal.write_bytes(raw)
    found = read_journal(run_dir)
    assert not found["whole"] and 0 < found["steps"] < STEPS
    assert found["tear"]["records_follow"] and "check the disk" in found["problems"][0]
    with pytest.raises(DataCorruptionError):
        repair_journal(run_dir)
    assert journal.read_bytes() == raw
    assert repair_journal(run_dir, even_if_records_follow=True)["whole"]


def test_a_journal_in_use_is_not_repaired(tmp_path):
    job = small_job(tmp_path, run_dir=True)
    with ws.DataLoader(job, tensors="numpy") as loader:
        next(loader)
        loader.commit()
        with pytest.raises(UnavailableError, match="in use"):
            repair_journal(job.run_dir)
        assert read_journal(job.run_dir)["steps"] >= 1, "reading needs no lock"
    del loader  # the lock goes with the engine's host
    repair_journal(job.run_dir)


def test_no_bytes_crash_the_reader(tmp_path):
    run_dir, _ = run(tmp_path, steps=3)
    original = (run_dir / "journal.bin").read_bytes()
    rng = random.Random(11)
    for case in range(150):
        raw = bytearray(original)
        if case % 3 == 0:
            raw = raw[: rng.randrange(len(raw))]
        elif case % 3 == 1:
            for _ in range(rng.randrange(1, 6)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        else:
            at = rng.randrange(len(raw))
            raw[at : at + rng.randrange(40)] = rng.randbytes(rng.randrange(40))
        (run_dir / "journal.bin").write_bytes(raw)
        try:
            found = read_journal(run_dir)
        except WidestreamError:
            continue
        assert found["valid_bytes"] <= len(raw)
        assert found["whole"] == (bytes(raw) == original or found["tear"] is None)


def test_the_newest_state_is_summarised(tmp_path):
    run_dir, told = run(tmp_path)
    older = run_dir / "checkpoints" / "step_000002"
    older.mkdir()
    (older / "loader.json").write_text("{}")
    (run_dir / "checkpoints" / "step_999999").mkdir()
    state = read_state(run_dir)
    assert state["step"] == STEPS and state["path"].endswith(f"step_{STEPS:06d}/loader.json")
    assert state["tokens"] == sum(sum(step["tokens"].values()) for step in told)
    assert [source["name"] for source in state["sources"]] == ["prose", "code", "qa"]
    assert read_state(state["path"]) == state == read_state(Path(state["path"]).parent)
    json.dumps(state)


@pytest.mark.parametrize(
    "contents", [b"", b"{", b"[]", b"{}", b'{"version": 1, "sources": []}', b"[" * 100_000, b"\xff"]
)
def test_a_damaged_state_is_an_error_that_names_it(tmp_path, contents):
    (tmp_path / "loader.json").write_bytes(contents)
    with pytest.raises(DataCorruptionError, match=r"loader\.json"):
        read_state(tmp_path)


def test_no_state_yet(tmp_path):
    with pytest.raises(NotFoundError, match="not saved a state"):
        read_state(tmp_path)
    with pytest.raises(NotFoundError, match="there is no"):
        read_state(tmp_path / "nowhere")


def test_provenance_holds_the_beginning_of_each_piece(tmp_path):
    run_dir, told = run(tmp_path)
    document = json.loads((run_dir / "provenance.json").read_text())
    assert (document["step"], document["rank"]) == (STEPS - 1, 0)
    assert [(p["source"], p["record"], p["start"]) for p in document["pieces"]] == [
        (s.source, s.record, s.start) for s in told[-1][0]
    ]
    texts = [json.loads(line)["text"] for line in (tmp_path / "data" / "code.jsonl").read_text().splitlines()]
    for piece in document["pieces"]:
        assert len(piece["text"]) <= 80
        if piece["source"] == "code" and piece["start"] == 0:
            expected = (texts[piece["record"]] + "<|endoftext|>").removesuffix("...")
            assert expected.startswith(piece["text"].removesuffix("..."))


def test_the_report_of_a_real_run_has_all_pieces(tmp_path):
    from widestream.report import write_report

    run_dir, _ = run(tmp_path)
    text = write_report(run_dir).read_text()
    lengths, _ = piece_lengths(run_dir)
    assert f"{len(lengths):,} pieces of all steps in the journal" in text
