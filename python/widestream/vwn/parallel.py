"""VWN models under FSDP2. DistributedDataParallel and distributed checkpoints need nothing special."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from widestream.vwn.ghc import GHCMixer
from widestream.vwn.model import VWNLayer


def shard_model(model: nn.Module, mesh: Any = None, *, parameter_dtype: torch.dtype | None = None) -> nn.Module:
    """Applies FSDP2 (`fully_shard`) in place: each layer a unit, and each GHC's parameters a float32 unit in it.

    FSDP2 casts a unit to one dtype; inside the layer's unit GHC's float32 coefficients would become bfloat16
    without an error. They stay gathered between forward and backward: they are few, and both halves of a GHC
    and block recompute read them.

    Args:
        model: a `VWNTransformer`, or any module with GHC inside; other layers than `VWNLayer` belong to the root
            unit unless they were sharded before.
        mesh: a one-dimensional DeviceMesh. Default: all ranks.
        parameter_dtype: dtype of the gathered backbone, such as bfloat16; gradients are reduced in float32.

    Returns:
        `model`.
    """
    exact = MixedPrecisionPolicy(param_dtype=torch.float32 if parameter_dtype else None, cast_forward_inputs=False)
    policy = MixedPrecisionPolicy(
        param_dtype=parameter_dtype,
        reduce_dtype=torch.float32 if parameter_dtype else None,
        cast_forward_inputs=False,
    )
    for module in model.modules():
        if isinstance(module, GHCMixer):
            fully_shard(module, mesh=mesh, mp_policy=exact, reshard_after_forward=False)
            # Whichever the model calls first: the fused operators read the parameters in `enter`.
            for method in ("enter", "coefficients"):
                register_fsdp_forward_method(module, method)
    for module in model.modules():
        if isinstance(module, VWNLayer):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    return model
