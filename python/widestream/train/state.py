"""Weights and optimizer state of a run, whole in a checkpoint, in whatever parts the ranks hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from widestream.train.checkpoint import Checkpoint, CheckpointError, check_tensors
from widestream.train.parallel import ParallelModel

_SLOTS = ("step", "exp_avg", "exp_avg_sq")
_RANDOM = "rng/"


def gather_state(model: ParallelModel, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(parameters, "<parameter>/<slot>" of AdamW), whole on rank 0 and empty elsewhere. A collective."""
    slots = {
        f"{name}/{slot}": value
        for name, parameter in model.parameters.items()
        for slot, value in optimizer.state[parameter].items()
    }
    return model.gather(model.parameters), model.gather(slots)


def random_state(device: torch.device) -> dict[str, Tensor]:
    """torch's generators, as a checkpoint names them."""
    state = {_RANDOM + "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state[_RANDOM + "cuda"] = torch.cuda.get_rng_state(device)
    return state


def check_state(checkpoint: Checkpoint, meta: Mapping[str, Any], model: ParallelModel, counts: Tensor) -> None:
    """Raises CheckpointError unless the checkpoint is of this model and whole.

    Args:
        checkpoint: as read.
        meta: of this run; "model" must be equal.
        model: whose parameters must be there.
        counts: the token counts that must be there.
    """
    old, new = checkpoint.meta.get("model"), meta["model"]
    if old != new:
        changed = [name for name in new if (old or {}).get(name) != new[name]]
        differences = ", ".join(f"{name} was {(old or {}).get(name)!r}, is {new[name]!r}" for name in changed)
        raise CheckpointError(
            f"the checkpoint of step {checkpoint.step} is of another model: {differences}. "
            "Restore the model: section, or set another run_dir"
        )
    check_tensors(checkpoint.model, model.parameters, "model")
    saved = {key: value for key, value in checkpoint.optimizer.items() if not key.startswith(_RANDOM)}
    check_tensors(saved, _expected(model), "optimizer")
    check_tensors(checkpoint.train, {"unigram_counts": counts}, "token count")


def restore_state(
    checkpoint: Checkpoint | None, model: ParallelModel, optimizer: torch.optim.Optimizer, device: torch.device
) -> None:
    """Weights and optimizer state of rank 0's checkpoint on all ranks; others give None. A collective."""
    saved = checkpoint.optimizer if checkpoint else {}
    with torch.no_grad():
        for name, parameter in model.parameters.items():
            parameter.copy_(model.scatter(checkpoint.model[name] if checkpoint else None, parameter))
    expected = _expected(model)
    for name, parameter in model.parameters.items():
        keys = {slot: f"{name}/{slot}" for slot in _SLOTS}
        optimizer.state[parameter] = {slot: model.scatter(saved.get(key), expected[key]) for slot, key in keys.items()}
    if checkpoint is not None:
        torch.set_rng_state(saved[_RANDOM + "torch"])
        if _RANDOM + "cuda" in saved and device.type == "cuda":
            torch.cuda.set_rng_state(saved[_RANDOM + "cuda"], device)


def _expected(model: ParallelModel) -> dict[str, Tensor]:
    """Tensors of the shapes and dtypes of AdamW's state, by the names of a checkpoint."""
    expected: dict[str, Tensor] = {}
    for name, parameter in model.parameters.items():
        expected[f"{name}/step"] = torch.zeros(())
        expected[f"{name}/exp_avg"] = expected[f"{name}/exp_avg_sq"] = parameter
    return expected
