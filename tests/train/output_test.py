"""What a run leaves behind and shows: the metrics log, the display, the mixture tally."""

import io

import pytest
from rich.console import Console

from widestream.train.display import LiveDisplay, MixtureTally, PlainDisplay, Progress, make_display
from widestream.train.metrics import MetricsLog, read_metrics
from widestream.train.validation import Validation

VALIDATION = Validation(2.5, (3.0,), 4.0, 1.2, 1.9, 100)


def progress(step, validation=None):
    return Progress(
        step=step,
        steps=20,
        loss=3.25,
        learning_rate=1e-3,
        gradient_norm=0.7,
        tokens_per_second=12345.6,
        data_wait_share=0.021,
        validation=validation,
        shares={"novels": (0.61, 0.6), "code": (0.39, 0.4)},
        seconds_left=75,
    )


def test_log_is_cut_to_the_checkpoint_and_half_lines_go(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    log = MetricsLog(path, keep_steps=0)
    for step in range(1, 6):
        log.append({"step": step, "loss": 1.0 / step})
    log.close()
    log.close()
    with path.open("a") as file:
        file.write('{"step": 6, "lo')
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3, 4, 5]
    log = MetricsLog(path, keep_steps=3)
    log.append({"step": 4, "loss": 9.0})
    log.close()
    assert [(r["step"], r["loss"]) for r in read_metrics(path)] == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 9.0)]
    MetricsLog(path, keep_steps=0).close()
    assert read_metrics(path) == [] and read_metrics(tmp_path / "absent") == []


def test_appended_records_are_on_disk_at_once(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", keep_steps=0)
    log.append({"step": 1})
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    log.close()


def test_plain_lines_come_every_few_steps_and_at_validations():
    out = io.StringIO()
    display = make_display(out, log_every=5)
    assert isinstance(display, PlainDisplay)
    for step in range(1, 21):
        display.show(progress(step, VALIDATION if step >= 7 else None))
    display.close()
    lines = out.getvalue().splitlines()
    assert [line.split()[1] for line in lines] == [f"{s}/20" for s in (5, 7, 10, 15, 20)]
    for part in (
        "loss 3.2500",
        "val 2.5000",
        "12,346 tok/s",
        "wait 2.1 %",
        "novels 61.0/60.0, code 39.0/40.0 %",
    ):
        assert part in lines[-1]


def test_live_panel_shows_every_figure():
    out = io.StringIO()
    display = LiveDisplay(Console(file=out, force_terminal=True, width=100, color_system=None))
    display.show(progress(10, VALIDATION))
    display.say("a message [with brackets]")
    display.close()
    display.close()
    text = out.getvalue()
    for part in ("step 10/20", "3.2500", "2.5000", "unigram 4.0000", "12,346 tokens/s", "2.1 %", "1:15 left"):
        assert part in text
    assert "novels 61.0/60.0" in text and "a message [with brackets]" in text


def test_many_sources_are_summed_up():
    out = io.StringIO()
    shares = {f"s{i}": (i / 1000, i / 1000) for i in range(30)}
    base = progress(20)
    PlainDisplay(out).show(Progress(**{**{name: getattr(base, name) for name in base.__slots__}, "shares": shares}))
    assert "and 22 more" in out.getvalue() and "s29" in out.getvalue() and "s3 " not in out.getvalue()


def test_tally_weighs_every_step_by_its_tokens():
    tally = MixtureTally()
    tally.add({"a": 60, "b": 40}, {"a": 1, "b": 1})
    tally.add({"a": 300}, {"a": 3, "b": 1})
    shares = tally.shares()
    assert shares["a"] == pytest.approx((360 / 400, (50 + 225) / 400))
    assert shares["b"] == pytest.approx((40 / 400, (50 + 75) / 400))
    assert tally.error() == pytest.approx(85 / 400)
    assert MixtureTally().error() is None
