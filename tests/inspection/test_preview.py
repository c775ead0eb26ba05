"""What a rank will see, and how all of it looks on a terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

import widestream as ws
from tests.support.jobs import small_job, write_jsonl
from widestream.errors import InvalidArgumentError
from widestream.inspection import explain, inspect_path, preview, read_journal, read_state, render

HOSTILE = "\x1b]0;title\x07\x1b[2J[bold red]markup[/] \x9b31m \u202eevil\u2066 \x00\x08\r back"


def shown(renderable) -> str:
    console = Console(file=io.StringIO(), width=100, force_terminal=False, color_system=None)
    console.print(renderable)
    text = console.file.getvalue()
    assert not [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or c in "\u202e\u2066"]
    return text


@pytest.mark.parametrize(
    "batch",
    [{}, {"layout": "padded"}, {"layout": "thd", "rows": None, "tokens": 512}, {"cross_document_attention": True}],
)
@pytest.mark.parametrize("step", [0, 5])
def test_it_is_the_batch_of_that_step(tmp_path, batch, step):
    job = small_job(tmp_path, run_dir=True, batch=batch)
    found = preview(job, step, rank=1, world=2)
    assert not (tmp_path / "run").exists(), "looking leaves no journal"
    with ws.DataLoader(job.model_copy(update={"run_dir": None}), rank=1, world=2, tensors="numpy") as loader:
        for _ in range(step + 1):
            expected = next(loader)
        assert (found["step"], found["digest"]) == (step, expected.digest)
        assert (found["real_tokens"], found["supervised_tokens"]) == (expected.real_tokens, expected.supervised_tokens)
        pieces = [p for m in found["microbatches"] for row in m["rows"] for p in row["pieces"]]
        assert [(p["source"], p["record"], p["start"], p["stop"]) for p in pieces] == [
            (s.source, s.record, s.start, s.stop) for s in expected.sources()
        ]
        for shown_microbatch, microbatch in zip(found["microbatches"], expected.microbatches, strict=True):
            assert sum(row["tokens"] for row in shown_microbatch["rows"]) == microbatch.real_tokens
            slots = sum(row["tokens"] + row["padding"] for row in shown_microbatch["rows"])
            assert slots == microbatch.tokens.size
            of_rows = [p["supervised"] for row in shown_microbatch["rows"] for p in row["pieces"]]
            assert sum(of_rows) == int(microbatch.loss_mask.sum())
            together = "".join(p["text"] for row in shown_microbatch["rows"] for p in row["pieces"])
            real = microbatch.tokens[microbatch.segment_ids > 0]
            assert together == loader.decode(real).decode()
        for piece in pieces:
            assert piece["begins"] == (piece["start"] == 0)
            assert piece["ends"] == piece["text"].endswith("<|endoftext|>")
    json.dumps(found)
    assert f"Step {step}, rank 1 of 2" in shown(render.render_preview(found))


def test_borders_and_padding_are_marked(tmp_path):
    texts = ["short", "long " * 150]
    write_jsonl(tmp_path / "only.jsonl", texts)
    source = {"name": "only", "path": str(tmp_path / "only.jsonl"), "max_epochs": 1, "shuffle": "off"}
    job = small_job(tmp_path, sources=[source], mixture={"stages": [{"weights": {"only": 1}}]})
    found = preview(job, 0)
    text = shown(render.render_preview(found, characters=40))
    assert "[short<|endoftext|>]" in text, "a whole document stands between its borders"
    assert "padding" in text and "characters ..." in text
    rows = [row for m in found["microbatches"] for row in m["rows"]]
    assert any(row["pieces"] == [] for row in rows) and "filler" in text


def test_there_is_no_such_step_or_rank(tmp_path):
    job = small_job(tmp_path)
    with pytest.raises(InvalidArgumentError, match="no rank 2 among 2"):
        preview(job, 0, rank=2, world=2)
    with pytest.raises(InvalidArgumentError, match="below 0"):
        preview(job, -1)
    source = {"name": "only", "path": str(tmp_path / "data" / "code.jsonl"), "max_epochs": 1}
    short = small_job(tmp_path, sources=[source], mixture={"stages": [{"weights": {"only": 1}}]})
    with pytest.raises(InvalidArgumentError, match="ends before step 500"):
        preview(short, 500)


def test_hostile_text_cannot_steer_the_terminal(tmp_path):
    (tmp_path / "data").mkdir()
    write_jsonl(tmp_path / "data" / f"a{HOSTILE[:12]}[red].jsonl".replace("/", "").replace("\x00", ""), [HOSTILE] * 50)
    source = {"name": "only", "path": str(tmp_path / "data")}
    job = small_job(tmp_path, sources=[source], mixture={"stages": [{"weights": {"only": 1}}]}, run_dir=True)
    found = preview(job, 0)
    assert HOSTILE in found["microbatches"][0]["rows"][0]["pieces"][0]["text"], "the data form is exact"
    assert "[bold red]markup[/]" in shown(render.render_preview(found)), "markup is text"
    assert "[bold red]markup" in shown(render.render_inspection(inspect_path(tmp_path / "data")))
    with ws.DataLoader(job, tensors="numpy") as loader:
        next(loader)
        loader.commit()
        (tmp_path / "run" / "loader.json").write_text(json.dumps(loader.state_dict()))
    assert "[red].jsonl" in shown(render.render_explanation(explain(tmp_path / "run", 0), 0, 0)).replace("\n", "")
    shown(render.render_state(read_state(tmp_path / "run")))
    assert "Every record is whole" in shown(render.render_journal(read_journal(tmp_path / "run")))


def test_broken_files_render(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{broken\n')
    text = shown(render.render_inspection(inspect_path(tmp_path)))
    assert "Bad records of the sample" in text and "Length of a text in bytes" in text
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    assert "Shards that cannot be read" in shown(render.render_inspection(inspect_path(tmp_path)))
