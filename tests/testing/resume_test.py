"""assert_exact_resume passes on the real loader and finds every way in which a loader can lose its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import widestream as ws
from widestream import testing
from widestream.testing import resume

THD = {"layout": "thd", "rows": None, "tokens": 900, "microbatch_tokens": 300}


@pytest.mark.parametrize("batch", [{}, THD, {"layout": "padded", "rows": 6}], ids=["rows", "thd", "padded"])
def test_R10_R18_E01_E02_a_job_resumes_exactly_on_any_world_in_any_loader(tmp_path, batch):
    testing.assert_exact_resume(testing.small_job(tmp_path, batch=batch))


def test_it_compares_to_the_end_of_a_stream_that_ends(tmp_path):
    job = testing.small_job(tmp_path)
    sources = [{**source.model_dump(exclude_none=True), "max_epochs": 1} for source in job.sources]
    job = testing.small_job(tmp_path, sources=sources, batch={"rows": 4, "last_step": "drop"})
    with ws.DataLoader(job) as loader:
        length = sum(1 for _ in loader)
    testing.assert_exact_resume(job, steps=length + 10, resume_at=[0, length - 1, length], worlds=[2, 1])


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 99), st.sets(st.integers(0, 7), min_size=1, max_size=2), st.permutations([1, 2, 3]))
def test_it_goes_with_hypothesis(tmp_path_factory, seed, points, worlds):
    folder = tmp_path_factory.getbasetemp() / "hypothesis"
    testing.assert_exact_resume(testing.small_job(folder, seed=seed), steps=8, resume_at=points, worlds=worlds[:2])


class Forgetful(ws.DataLoader):
    """Starts from zero whatever state it is given."""

    def __init__(self, job, **options):
        super().__init__(job, **{**options, "state": None})


class Stubborn(ws.DataLoader):
    """R-10: keeps its own place when it is loaded."""

    def load_state_dict(self, state):
        pass


class PartOfARank(ws.DataLoader):
    """Its state has a part for the rank."""

    def state_dict(self, step=None):
        return {**super().state_dict(step), "rank": self.rank}


class RankZeroForAll(ws.DataLoader):
    """R-18: after a restore every rank is rank 0."""

    def __init__(self, job, *, rank, state, **options):
        super().__init__(job, rank=rank if state is None else 0, state=state, **options)


class TopologyBound(ws.DataLoader):
    """E-01: another seed, hence another stream, for every number of ranks."""

    def __init__(self, job, *, world, **options):
        super().__init__(job.model_copy(update={"seed": job.seed + world}), world=world, **options)


class Short(ws.DataLoader):
    """One rank's stream ends early."""

    def __next__(self):
        batch = super().__next__()
        if self.rank == 1 and batch.step == 3:
            raise StopIteration
        return batch


class OneBit(ws.DataLoader):
    """A single label differs after a restore."""

    def __init__(self, job, *, state, **options):
        super().__init__(job, state=state, **options)
        self.bad = state is not None and self.rank == 1

    def __next__(self):
        batch = super().__next__()
        if self.bad and batch.step == 8:
            batch.microbatches[0].labels[0, 5] ^= 1
        return batch


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (Forgetful, r"step 1: step is 1 with the uninterrupted run, 0 with 1 rank\(s\), from the state at step 1"),
        (Stubborn, "loaded after two other steps"),
        (PartOfARank, "states of the ranks 0 and 1 differ"),
        (RankZeroForAll, r"step 1, rank 1: microbatch 0, cu_seqlens; microbatch 0, labels"),
        (TopologyBound, r"members is|depends on the number of ranks"),
        (Short, "the stream ends on some ranks only"),
        (OneBit, r"step 8, rank 1: microbatch 0, labels differ\(s\)"),
    ],
)
def test_it_finds_loaders_that_lose_their_place(tmp_path, monkeypatch, loader, message):
    monkeypatch.setattr(resume, "DataLoader", loader)
    with pytest.raises(AssertionError, match=message):
        testing.assert_exact_resume(testing.small_job(tmp_path), worlds=[1, 2])


def test_the_run_folder_is_not_touched(tmp_path):
    job = testing.small_job(tmp_path, run_dir=str(tmp_path / "run"))
    testing.assert_exact_resume(job, steps=3, resume_at=[1], worlds=[1])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("wrong", [{"resume_at": [12]}, {"resume_at": [-1]}, {"resume_at": []}, {"worlds": [0]}])
def test_arguments_that_do_not_fit_are_refused(tmp_path, wrong):
    with pytest.raises(ValueError, match="resume_at"):
        testing.assert_exact_resume(testing.small_job(tmp_path), **wrong)


@pytest.mark.parametrize("part", ["version", "sources", "step", "everything", "a source", "a cursor"])
def test_R19_absent_or_partial_state_is_an_error_and_nothing_starts_from_zero(tmp_path, part):
    job = testing.small_job(tmp_path)
    with ws.DataLoader(job) as loader:
        next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
    if part == "everything":
        state = {}
    elif part == "a source":
        del state["sources"]["verses"]
    elif part == "a cursor":
        state["sources"]["verses"].popitem()
    else:
        del state[part]
    for rank in range(2):
        with pytest.raises(ws.errors.WidestreamError):
            ws.DataLoader(job, rank=rank, world=2, state=state)
        with ws.DataLoader(job, rank=rank, world=2) as loader, pytest.raises(ws.errors.WidestreamError):
            loader.load_state_dict(state)


def test_the_corpus_is_real_text_and_small():
    texts = testing.corpus()
    assert list(texts) == ["prose", "chapters", "verses"]
    assert texts["prose"][3].startswith("It is a truth universally acknowledged")
    assert 50_000 < sum(len(text.encode()) for group in texts.values() for text in group) < 100_000


def test_the_byte_tokenizer_has_a_token_for_every_byte(tmp_path):
    from widestream.loader.engine import core

    tokenizer = core().Tokenizer.from_file(str(testing.byte_tokenizer(tmp_path / "bytes.json")))
    text = "It is\na truth \u00e9\u4e16 " + "".join(map(chr, range(128)))
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode()) and tokenizer.decode(ids) == text.encode()
    assert len(set(tokenizer.encode(bytes(range(256))).tolist())) == 256 and tokenizer.vocabulary_size == 257
