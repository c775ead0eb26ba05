"""examples/torchrun: a plain loop on two ranks gives the losses of one, across a checkpoint; its model does not leak."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

from tests.support.ranks import run
from widestream import testing

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torchrun"
PROGRAM = str(EXAMPLE / "train.py")
JOB = str(EXAMPLE / "job.yaml")


def losses(printed: str) -> list[tuple[int, float]]:
    return [(int(step), float(loss)) for step, loss in re.findall(r"^step (\d+) loss (\S+)$", printed, re.MULTILINE)]


def test_R18_E01_two_ranks_then_one_give_the_losses_of_one(tmp_path):
    whole = losses(run(1, PROGRAM, JOB, "--out", str(tmp_path / "one"), "--steps", "6"))
    first = losses(run(2, PROGRAM, JOB, "--out", str(tmp_path / "two"), "--steps", "3"))
    second = losses(run(1, PROGRAM, JOB, "--out", str(tmp_path / "two"), "--steps", "6"))
    assert [step for step, _ in whole] == [step for step, _ in first + second] == list(range(6))
    for (_, found), (_, expected) in zip(first + second, whole, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


def test_B09_its_model_does_not_leak():
    spec = importlib.util.spec_from_file_location("example", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    model = module.Model(50, 64)
    for rows in (1, 2):
        testing.assert_no_leak(model, vocabulary_size=50, rows=rows, compare_alone=True)


def test_it_is_short():
    assert len(Path(PROGRAM).read_text().splitlines()) < 80
