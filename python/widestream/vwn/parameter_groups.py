"""Which parameters weight decay may touch."""

from __future__ import annotations

from typing import Any

from torch import nn

from widestream.vwn.ghc import GHCMixer


def param_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two AdamW parameter groups: "decay" (matrices and the dynamic W of GHC) and "no_decay".

    Not decayed: GHC's static coefficients (decay would pull the carry to zero), its scales and gains, every
    other vector, and embedding tables. GHC parameters belong under AdamW even where Muon trains the rest.

    Args:
        model: any module, with or without GHC inside.
        weight_decay: the decay of the first group.

    Returns:
        Groups for `torch.optim.AdamW`, each with "params", "names", "weight_decay" and "name"; parameters in
        the order of `named_parameters`, each once.
    """
    undecayed: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            undecayed.add(id(module.weight))
        elif isinstance(module, GHCMixer):
            undecayed.update(id(p) for name, p in module.named_parameters() if name != "weight")
    groups: dict[str, dict[str, Any]] = {
        name: {"name": name, "params": [], "names": [], "weight_decay": decay}
        for name, decay in (("decay", weight_decay), ("no_decay", 0.0))
    }
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        group = groups["no_decay" if parameter.dim() < 2 or id(parameter) in undecayed else "decay"]
        group["params"].append(parameter)
        group["names"].append(name)
    return [group for group in groups.values() if group["params"]]
