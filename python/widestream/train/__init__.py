"""Training of VWN language models. The config models load without torch; other names import it when used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from widestream.train.config import OptimizerConfig, TrainingConfig, TrainModelConfig

if TYPE_CHECKING:
    from widestream.train.checkpoint import CheckpointError, list_checkpoints, load_checkpoint, load_latest
    from widestream.train.generation import generate, load_model
    from widestream.train.metrics import read_metrics
    from widestream.train.protocol import Batch, Loader, Microbatch, ValidationMicrobatch
    from widestream.train.trainer import DivergedError, Trainer, TrainResult, write_summary
    from widestream.vwn.parameter_groups import param_groups

_HOMES = {
    "Batch": "train.protocol",
    "CheckpointError": "train.checkpoint",
    "DivergedError": "train.trainer",
    "Loader": "train.protocol",
    "Microbatch": "train.protocol",
    "TrainResult": "train.trainer",
    "Trainer": "train.trainer",
    "ValidationMicrobatch": "train.protocol",
    "generate": "train.generation",
    "list_checkpoints": "train.checkpoint",
    "load_checkpoint": "train.checkpoint",
    "load_latest": "train.checkpoint",
    "load_model": "train.generation",
    "run": "train.run",
    "param_groups": "vwn.parameter_groups",
    "read_metrics": "train.metrics",
    "write_summary": "train.trainer",
}

__all__ = [
    "Batch",
    "CheckpointError",
    "DivergedError",
    "Loader",
    "Microbatch",
    "OptimizerConfig",
    "TrainModelConfig",
    "TrainResult",
    "Trainer",
    "TrainingConfig",
    "ValidationMicrobatch",
    "generate",
    "list_checkpoints",
    "load_checkpoint",
    "load_latest",
    "load_model",
    "param_groups",
    "read_metrics",
    "run",
    "write_summary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"widestream.{_HOMES[name]}"), name)
