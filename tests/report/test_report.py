"""The report: complete, self-contained, harmless whatever the run's data holds, and possible after any crash."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.runs import SOURCES, metrics_line, write_run
from widestream.errors import InvalidArgumentError, NotFoundError
from widestream.report import write_report

HOSTILE = "</title></style></pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202egnp.exe\x1b[2J\x00"
TAGS_WITHOUT_END = {"meta"}


class Page(html.parser.HTMLParser):
    """Tags, attributes and text of a page; complains about tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in TAGS_WITHOUT_END:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        self.text += data


def report_of(folder: Path) -> Page:
    path = write_report(folder)
    raw = path.read_bytes()
    assert len(raw) < 1_000_000
    page = Page(raw.decode("utf-8"))
    assert not {"script", "img", "link", "iframe", "object", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on") and name not in ("href", "src"), (name, value)
    assert not re.search(r"url\(|@import|https?://", raw.decode("utf-8")), "the page fetches something"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", page.text)
    assert not re.search(r'="[^"]*\b(nan|inf)\b', raw.decode("utf-8"), re.IGNORECASE), "a coordinate is no number"
    return page


def test_a_finished_run_is_told_in_full(tmp_path):
    page = report_of(write_run(tmp_path / "run", steps=60))
    for word in (
        "0.4 %",
        "15.8k",
        "unigram",
        "Gradient norm",
        "Learning rate",
        "Throughput",
        "Padding",
        "Length of pieces",
    ):
        assert word in page.text
    for source in SOURCES:
        assert source in page.text
    assert "It is a truth universally acknowledged" in page.text
    assert "training, token 2" in page.text and "validation, next token" in page.text
    assert "sequence_length: 256" in page.text and "2.11.0" in page.text
    assert "About this report" not in page.text, "a whole run needs no notes"
    titles = [value for name, value in page.attributes if name == "aria-label"]
    assert len(titles) == 5 + 1 + len(SOURCES) + 2


def test_figures_are_those_of_the_log(tmp_path):
    folder = write_run(tmp_path / "run", steps=30)
    page = report_of(folder)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tokens = {name: sum(line["tokens_by_source"][name] for line in lines) for name in SOURCES}
    for count in tokens.values():
        assert f"{count:,}" in page.text
    total = sum(tokens.values())
    wanted = dict.fromkeys(SOURCES, 0.0)
    for line in lines:
        scale = sum(line["wanted_by_source"].values())
        for name, weight in line["wanted_by_source"].items():
            wanted[name] += sum(line["tokens_by_source"].values()) * weight / scale
    for name in SOURCES:
        assert f"{100 * (tokens[name] - wanted[name]) / total:+.2f}" in page.text


def test_text_of_the_data_is_never_markup(tmp_path):
    sources = tuple(f"{i}{HOSTILE}" for i in range(3))
    folder = write_run(tmp_path / "run", steps=20, sources=sources)
    provenance = json.loads((folder / "provenance.json").read_text())
    for piece in provenance["pieces"]:
        piece.update(text=HOSTILE, shard=HOSTILE, record=HOSTILE, row=HOSTILE, start=HOSTILE)
    provenance["step"] = HOSTILE
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "job.json").write_text(json.dumps({"name": HOSTILE, "note": HOSTILE, "\ud800": "\udfff"}))
    summary = json.loads((folder / "summary.json").read_text())
    summary.update({HOSTILE: HOSTILE, "versions": {HOSTILE: HOSTILE}})
    (folder / "summary.json").write_text(json.dumps(summary))
    page = report_of(folder)
    assert "<script>alert(1)</script>" in page.text, "it is shown as text"


@pytest.mark.parametrize("cut", [1, 40, 500])
def test_a_torn_last_line_is_left_out_and_said(tmp_path, cut):
    folder = write_run(tmp_path / "run", steps=10)
    log = folder / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-cut] if cut > 1 else log.read_bytes() + b'{"st')
    page = report_of(folder)
    assert "torn" in page.text
    assert f"{9 if cut > 1 else 10}steps done" in page.text


def test_damage_inside_the_log_is_counted(tmp_path):
    folder = write_run(tmp_path / "run", steps=5)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    odd = [
        "not json",
        "[1, 2]",
        '{"step": -1}',
        '{"step": true, "loss": 1}',
        "[" * 100_000,
        '{"step": 3, "loss": NaN, "gradient_norm": Infinity, "tokens_by_source": {"a": 1e400, "b": "x", "c": -5}}',
        json.dumps({"step": 6, "loss": 10**400, "mtp_losses": ["x", None, 2.0], "wanted_by_source": {"novels": -1}}),
        json.dumps({"step": 7, "loss": "2", "seconds": 0, "tokens_by_source": [], "validation": 3}),
    ]
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:2], *odd, *lines[2:]]) + "\n")
    page = report_of(folder)
    assert "5 line(s) of metrics.jsonl" in page.text
    assert "1 step(s) were logged again" in page.text, "step 3 stands there twice; the later line counts"
    assert "2 step(s) have no finite loss" in page.text


def test_a_line_longer_than_any_real_one_is_passed_over(tmp_path):
    folder = write_run(tmp_path / "run", steps=4)
    log = folder / "metrics.jsonl"
    log.write_bytes(b'{"step": 1, "x": "' + b"y" * (9 << 20) + b'"}\n' + log.read_bytes())
    page = report_of(folder)
    assert "1 line(s) of metrics.jsonl" in page.text and "4steps done" in page.text


def test_extreme_numbers_draw(tmp_path):
    folder = write_run(tmp_path / "run", steps=4)
    extremes = [0, -0.0, 1e308, -1e308, 1e99, -1e99, 5e-324, 1e-99, 2**63]
    lines = [
        {
            "step": step,
            "loss": a,
            "learning_rate": b,
            "gradient_norm": a,
            "seconds": b,
            "tokens_by_source": {"a": a, "b": b},
        }
        for step, (a, b) in enumerate((a, b) for a in extremes for b in extremes)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report_of(folder)
    for value in extremes:  # a chart of one value has no range of its own
        (folder / "metrics.jsonl").write_text(
            json.dumps({"step": 2**53 - 1, "loss": value, "learning_rate": value}) + "\n"
        )
        report_of(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json", "provenance.json", "job.json"])
@pytest.mark.parametrize(
    "contents", [None, b"", b"{", b"[]", b"3", b'{"pieces": 1, "versions": 2}', b"\xff\xfe{", b"[" * 50_000]
)
def test_any_file_may_be_missing_or_damaged(tmp_path, name, contents):
    folder = write_run(tmp_path / "run", steps=6)
    if contents is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(contents)
    page = report_of(folder)
    if contents != b'{"pieces": 1, "versions": 2}' and not (name == "metrics.jsonl" and contents == b""):
        assert name in page.text, "the page says what is missing"


def test_a_run_that_has_just_begun(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps(metrics_line(1, 100)) + "\n")
    page = report_of(folder)
    assert "1steps done" in page.text and "the run has not ended" in page.text


def test_many_steps_and_many_sources_stay_small(tmp_path):
    names = tuple(f"source-{i:03d}" for i in range(200))
    folder = write_run(tmp_path / "run", steps=3000, sources=names, pieces=3000)
    page = report_of(folder)
    assert "176 smaller sources have no chart" in page.text
    assert "2,800 more pieces" in page.text
    assert "source-199" in page.text, "the table has every source"


def test_padding_follows_from_the_job_where_the_log_has_no_slots(tmp_path):
    folder = write_run(tmp_path / "run", steps=3)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["slots"]
        line["tokens_by_source"] = {"novels": 3072}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "padding: 25 %" in report_of(folder).text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_older_report_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    folder = write_run(tmp_path / "run", steps=3)
    before = names(folder)
    path = write_report(folder)
    first = path.read_bytes()
    assert write_report(str(folder)) == path and path.read_bytes() == first, "the same run gives the same page"
    assert names(folder) == sorted([*before, "report.html"])
    other = write_report(folder, tmp_path / "other.html")
    assert other == tmp_path / "other.html" and other.read_bytes() == first


def test_no_run_no_report(tmp_path):
    with pytest.raises(NotFoundError, match="no run folder"):
        write_report(tmp_path / "nowhere")
    with pytest.raises(InvalidArgumentError, match=r"metrics\.jsonl"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_report_needs_no_heavy_package():
    code = "import sys, widestream.report; print([m for m in ('torch', 'plotly', 'pandas', 'matplotlib') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
