"""Learning rate by step."""

from __future__ import annotations

import math

from widestream.train.config import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The learning rate of step `step` (from 0) of `steps`; a pure function, so a resumed run agrees."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    if config.schedule == "cosine":
        progress = (step - config.warmup_steps) / max(1, steps - 1 - config.warmup_steps)
        fall = 0.5 * (1 - math.cos(math.pi * min(1.0, progress)))
    else:
        into_tail = step + 1 - (steps - config.decay_steps)
        fall = min(1.0, max(0.0, into_tail / config.decay_steps)) if config.decay_steps else 0.0
    return config.learning_rate * (1 - fall * (1 - config.final_fraction))
