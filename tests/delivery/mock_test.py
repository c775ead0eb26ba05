"""Mock data: the shapes of the job at no cost, and no way to take it for a training."""

from __future__ import annotations

import json
import threading

import pytest
import torch

import widestream as ws
from tests.delivery.train_test import write_job
from widestream import testing
from widestream.errors import InvalidArgumentError
from widestream.loader.mock import MockLoader
from widestream.report import write_report
from widestream.train import CheckpointError, read_metrics
from widestream.train.run import run

THD = {"layout": "thd", "rows": None, "tokens": 900, "microbatch_tokens": 300}


@pytest.mark.parametrize("rank", [0, 1])
def test_every_step_is_the_first_one_of_the_rank(tmp_path, rank):
    job = testing.small_job(tmp_path, batch=THD)
    with ws.DataLoader(job, rank=rank, world=2) as loader:
        first = next(loader)
        mock = MockLoader(job, rank=rank, world=2)
        assert (mock.rank, mock.world, mock.vocabulary_size) == (rank, 2, loader.vocabulary_size)
        for step in range(3):
            batch = next(mock)
            assert batch.step == step and batch.supervised_tokens == first.supervised_tokens
            assert batch.tokens_by_source == first.tokens_by_source
            for mine, theirs in zip(batch.microbatches, first.microbatches, strict=True):
                assert mine.max_seqlen == theirs.max_seqlen
                for name, tensor in theirs.tensors().items():
                    assert torch.equal(mine.tensors()[name], tensor)


def test_nothing_runs_and_no_journal_is_written(tmp_path):
    before = threading.active_count()
    job = testing.small_job(tmp_path, run_dir=str(tmp_path / "run"))
    with MockLoader(job) as mock:
        next(mock)
        mock.commit()
    assert threading.active_count() == before
    assert not (tmp_path / "run").exists()


def test_its_state_is_no_position_in_a_stream(tmp_path):
    job = testing.small_job(tmp_path)
    mock = MockLoader(job)
    next(mock)
    state = json.loads(json.dumps(mock.state_dict()))
    with pytest.raises(ws.errors.WidestreamError):
        ws.DataLoader(job, state=state)
    with ws.DataLoader(job) as loader, pytest.raises(InvalidArgumentError, match="real stream"):
        mock.load_state_dict(loader.state_dict())
    other = MockLoader(job)
    other.load_state_dict(state)
    assert next(other).step == 1


def test_a_training_on_mock_data_says_so_and_cannot_be_resumed(tmp_path, capsys):
    path = write_job(tmp_path, tmp_path / "run")
    job = ws.Job.load(path, ["training.steps=3"])
    summary = run(job, mock_data=True, job_file=path).summary
    folder = tmp_path / "run"
    printed = capsys.readouterr().out
    assert printed.count("mock data") == 2
    assert summary["mock_data"] and all(record["mock_data"] for record in read_metrics(folder / "metrics.jsonl"))
    assert "a measurement on mock data" in write_report(folder).read_text()
    assert not list(folder.glob("journal*"))
    losses = [record["loss"] for record in read_metrics(folder / "metrics.jsonl")]
    assert losses[2] < losses[0], "one batch, over and over"
    with pytest.raises(CheckpointError, match="mock data"):
        run(job, resume=True, job_file=path)
    with pytest.raises(FileExistsError):
        run(job, job_file=path)
    with pytest.raises(InvalidArgumentError, match="leave --resume out"):
        run(job, resume=True, mock_data=True, job_file=path)
