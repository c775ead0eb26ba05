"""The job sections: strict keys, helpful errors, no torch; and the learning-rate schedule."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from widestream.train import OptimizerConfig, TrainingConfig, TrainModelConfig
from widestream.train.schedule import learning_rate


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        (TrainModelConfig, {"d_modl": 3}, "unknown key 'd_modl'; did you mean 'd_model'"),
        (OptimizerConfig, {"lr": 1, "zzz": 2}, "unknown key 'zzz'; valid: learning_rate"),
        (TrainingConfig, {"steps": 1, "treads": 2}, "did you mean 'threads'"),
        (TrainModelConfig, {"m": 3, "n": 2, "d_model": 12, "heads": 2}, "less than m = 3"),
        (TrainModelConfig, {"carry": "perm", "m": 4, "n": 8}, "takes up to 4 slots, not n = 8"),
        (OptimizerConfig, {"decay_steps": 5}, "belongs to schedule: constant"),
        (OptimizerConfig, {"learning_rate": -1}, "greater than 0"),
        (TrainingConfig, {"steps": 0}, "greater than or equal to 1"),
        (TrainingConfig, {"steps": 1, "threads": 0}, "1 to 4096, or auto"),
        (TrainingConfig, {"steps": 1, "device": "tpu"}, "pattern"),
    ],
)
def test_wrong_settings_are_refused_with_the_reason(section, values, message):
    with pytest.raises(ValidationError, match=message):
        section(**values)


def test_model_section_gives_the_vwn_config():
    config = TrainModelConfig(d_model=64, m=2, n=3).vwn_config(vocabulary_size=99)
    assert (config.vocabulary_size, config.wide_width, config.mtp_depth) == (99, 96, 1)


def test_sections_load_without_torch():
    code = (
        "import sys, widestream.train as t; t.TrainModelConfig(); t.TrainingConfig(steps=1);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_cosine_rises_then_falls_to_the_final_fraction():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=4, final_fraction=0.1)
    rates = [learning_rate(config, step, 20) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[4] == 1.0
    assert rates[4:] == sorted(rates[4:], reverse=True) and rates[-1] == pytest.approx(0.1)


def test_constant_falls_over_its_tail_only():
    config = OptimizerConfig(learning_rate=1.0, schedule="constant", warmup_steps=0, decay_steps=4, final_fraction=0.0)
    rates = [learning_rate(config, step, 10) for step in range(10)]
    assert rates == [1.0] * 6 + [0.75, 0.5, 0.25, 0.0]
    flat = OptimizerConfig(learning_rate=1.0, schedule="constant", warmup_steps=0)
    assert {learning_rate(flat, step, 10) for step in range(10)} == {1.0}


def test_a_run_shorter_than_its_warm_up_is_fine():
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=100)
    assert [learning_rate(config, step, 3) for step in range(3)] == [0.01, 0.02, 0.03]
    assert learning_rate(OptimizerConfig(learning_rate=1.0, warmup_steps=1), 1, 2) == 1.0
