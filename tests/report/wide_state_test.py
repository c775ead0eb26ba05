"""The report's section on the wide state: drawn from the monitor's file, and safe whatever it holds."""

import json

import pytest

from widestream.report import write_report

ROW = {
    "name": "layers.0.attention",
    "composite_gain": 1.5,
    "slot_rms": [0.5, 2.0],
    "virtual_read_share": 0.25,
    "saturation": 0.1,
    "scale_norm": 1.0,
}


def page(folder, content):
    (folder / "summary.json").write_text("{}")
    if content is not None:
        (folder / "wide_state.json").write_text(content)
    return write_report(folder).read_text()


def test_the_monitors_figures_are_drawn(tmp_path):
    text = page(tmp_path, json.dumps({"sub_layers": [ROW, {**ROW, "composite_gain": 120}], "alarms": ["a <b> alarm"]}))
    assert "Wide state" in text and "Composite carry gain" in text and "largest slot" in text
    assert "a &lt;b&gt; alarm" in text


def test_a_run_without_the_file_has_no_such_section_and_no_note(tmp_path):
    text = page(tmp_path, None)
    assert "Wide state" not in text and "wide_state.json" not in text


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "{}", '{"sub_layers": 3}', '{"sub_layers": []}'],
)
def test_a_damaged_file_is_noted(tmp_path, content):
    text = page(tmp_path, content)
    assert "<h2>Wide state" not in text and "wide_state.json" in text


@pytest.mark.parametrize("value", [None, "x", [], float("nan"), float("inf"), -1e300, True, {"a": 1}])
def test_strange_values_do_not_stop_the_report(tmp_path, value):
    row = dict.fromkeys(ROW, value)
    text = page(tmp_path, json.dumps({"sub_layers": [row, {**row, "slot_rms": [value]}], "alarms": value}))
    assert "<h2>Wide state" in text
