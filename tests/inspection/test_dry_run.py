"""A dry run says what a training would see, and its page shows it."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import widestream as ws
from tests.support.jobs import small_job, take
from widestream.cli.app import run
from widestream.errors import InvalidArgumentError
from widestream.inspection import dry_run
from widestream.inspection.render_plan import render_plan
from widestream.report.plan_page import write_plan


@pytest.mark.parametrize("batch", [{}, {"layout": "thd", "rows": None, "tokens": 512}])
def test_it_says_what_the_ranks_will_see(tmp_path, batch):
    job = small_job(tmp_path, run_dir=True, batch=batch)
    done: list[int] = []
    found = dry_run(job, 2, 6, 2, done.append)
    assert not (tmp_path / "run").exists(), "looking leaves no journal"
    assert done == [1, 2, 3, 4] and (found["first"], found["stop"], found["ended"]) == (2, 6, False)
    looked_at = job.model_copy(update={"run_dir": None})
    lengths: list[int] = []
    slots = used = 0
    for rank in range(2):
        with ws.DataLoader(looked_at, rank=rank, world=2, tensors="numpy") as loader:
            for step, batch in zip(found["steps"], take(loader, 6)[2:], strict=True):
                assert (step["step"], step["tokens_by_source"]) == (batch.step, batch.tokens_by_source)
                assert step["costs"] == batch.costs and step["spread"] == max(batch.costs) / (sum(batch.costs) / 2)
                assert (step["real_tokens"], step["pieces"]) == (batch.real_tokens, len(batch.pieces["length"]))
                if rank == 0:
                    lengths += batch.pieces["length"].tolist()
                    first, last = batch.pieces["start"] == 0, batch.pieces["last"] != 0
                    assert step["cut_pieces"] == int((~(first & last)).sum())
                if rank == 0 or found["padding_of"] == "all ranks":
                    slots += sum(mb.tokens.size for mb in batch.microbatches)
                    used += sum(mb.real_tokens for mb in batch.microbatches)
    assert {length: lengths.count(length) for length in set(lengths)} == found["lengths"]
    mean = sum(step["padding_share"] for step in found["steps"]) / 4
    if found["padding_of"] == "all ranks":
        assert mean == pytest.approx(1 - used / slots)
    else:
        assert 0 <= mean < 1


def test_the_end_of_the_stream_is_said(tmp_path):
    job = small_job(tmp_path)
    for source in job.sources:
        source.max_epochs = 1
    found = dry_run(job, 0, 10_000)
    assert found["ended"] and found["stop"] == found["steps"][-1]["step"] + 1 < 10_000
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(render_plan(found))
    assert "The stream ends after step" in console.file.getvalue()
    with pytest.raises(InvalidArgumentError, match="the stream ends before step 9000"):
        dry_run(job, 9000, 9001)
    with pytest.raises(InvalidArgumentError, match="are none"):
        dry_run(job, 3, 3)


def test_the_page_escapes_what_comes_from_the_job(tmp_path):
    job = small_job(tmp_path)
    found = dry_run(job, 0, 3, 2)
    found["job"] = "<script>alert(1)</script>"
    page = write_plan(found, tmp_path / "plan.html").read_text()
    assert "<script" not in page and "Cost of the ranks" in page and "Length of pieces" in page
    alone = write_plan(dry_run(job, 0, 3, 1), tmp_path / "plan.html").read_text()
    assert "Cost of the ranks" not in alone, "one rank has nothing to balance"


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = small_job(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(job.model_dump(mode="json", exclude_none=True)))
    assert run(["plan", "job.json", "--steps", "1:3", "--json"]) == 0
    assert [step["step"] for step in json.loads(capsys.readouterr().out)["steps"]] == [1, 2]
    assert run(["plan", "job.json", "--steps", "0:2"]) == 0
    out = capsys.readouterr()
    assert "plan-job.html" in out.out and (tmp_path / "plan-job.html").exists()
    assert "tokenized" in out.err
    for wrong in ("5", "a:b", ":3", "-1:3"):
        assert run(["plan", "job.json", "--steps", wrong]) == 3
        assert "FIRST:STOP" in capsys.readouterr().err
