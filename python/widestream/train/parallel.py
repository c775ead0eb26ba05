"""Data-parallel training of one model: DDP, or FSDP2 with sharded parameters.

Gradients are summed over ranks, not averaged: the loss is divided by global counts already, so the sum over ranks and
microbatches is the gradient of the whole step, however unequal the ranks' token counts are.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from widestream.train.loss import Targets, loss_sums
from widestream.train.ranks import Ranks
from widestream.vwn.model import VWNTransformer


class LossSums(nn.Module):
    """A model with its loss: the forward pass uses every parameter, so that wrappers of modules see all of them."""

    def __init__(self, model: VWNTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        position_ids: Tensor,
        cu_seqlens: Tensor,
        targets: Targets,
        matmul_dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, ...]:
        """Summed cross-entropy of every prediction depth, in nats: `loss_sums` of a microbatch."""
        output = self.model(tokens, position_ids, cu_seqlens)
        return loss_sums(self.model, output, targets, matmul_dtype=matmul_dtype)


class ParallelModel:
    """A model on all ranks. Construct and use it on every rank alike; not thread-safe.

    Attributes:
        sharded: parameters and gradients are DTensors, a part on each rank.
        parameters: of the model by name, as the optimizer takes them.
    """

    def __init__(self, model: VWNTransformer, ranks: Ranks, device: torch.device, how: str) -> None:
        """Args:
        model: on `device`, with the same values on every rank.
        ranks: all ranks; in a world of one the model stays as it is.
        device: of this rank.
        how: "ddp" or "fsdp2".
        """
        self.sharded = ranks.parallel and how == "fsdp2"
        self._ranks, self._device = ranks, device
        self._losses = LossSums(model)
        self._ddp: DistributedDataParallel | None = None
        if self.sharded:
            # The wide state is a view of a block's output; nothing is done to it in place.
            warnings.filterwarnings("ignore", message=r"FSDP2-wrapped module .* returned a view", category=UserWarning)
            self._mesh = init_device_mesh(device.type, (ranks.world,), mesh_dim_names=("dp",))
            for block in (*model.layers, *model.mtp):
                fully_shard(block, mesh=self._mesh)
            fully_shard(self._losses, mesh=self._mesh)
            for module in self._losses.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
                    module.set_gradient_divide_factor(1.0)
        elif ranks.parallel:
            ids = [device.index] if device.type == "cuda" else None
            self._ddp = DistributedDataParallel(self._losses, device_ids=ids)
            self._ddp.register_comm_hook(None, lambda _, bucket: _sum_gradients(bucket))
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())

    @property
    def losses(self) -> Callable[..., tuple[Tensor, ...]]:
        """`LossSums.forward` for training."""
        return self._ddp or self._losses

    @property
    def evaluation_losses(self) -> Callable[..., tuple[Tensor, ...]]:
        """`LossSums.forward` without gradients. Sharded: all ranks call it equally often."""
        return self._losses

    def accumulating(self, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a microbatch: gradients travel with the last one only."""
        if self._ddp is not None and not last:
            return cast(AbstractContextManager[None], self._ddp.no_sync())
        if self.sharded:
            root = cast(FSDPModule, self._losses)
            root.set_requires_gradient_sync(last)
            root.set_is_last_backward(last)
        return contextlib.nullcontext()

    def end_evaluation(self) -> None:
        """Gives back what an evaluation has gathered."""
        if self.sharded:
            for module in self._losses.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()

    def clip(self, limit: float) -> float:
        """Scales the gradients so that their norm over all parameters of all ranks is at most `limit`.

        Returns the norm before. It is summed in float64: a float32 sum of millions of squares on a CPU is off by 1e-5,
        differently for every way to shard.
        """
        gradients = [parameter.grad for parameter in self.parameters.values() if parameter.grad is not None]
        local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
        norms = [torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in local]
        square = torch.stack(norms).square().sum().cpu() if norms else torch.zeros((), dtype=torch.float64)
        norm = math.sqrt(float(self._ranks.sum(square) if self.sharded else square))
        scale = limit / (norm + 1e-6)
        if scale < 1:
            torch._foreach_mul_(local, scale)
        return norm

    # ---- whole tensors ------------------------------------------------------------------------------------

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors on the CPU of rank 0; empty elsewhere. A collective where sharded."""
        whole: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            value = tensor.detach()
            if isinstance(value, DTensor):
                value = value.full_tensor()
            if self._ranks.main:
                whole[name] = value.cpu()
        return whole

    def scatter(self, whole: Tensor | None, like: Tensor) -> Tensor:
        """Rank 0's whole tensor as this rank's part, on its device. A collective.

        Args:
            whole: on rank 0 only; of the shape and dtype of `like`.
            like: a parameter, or a plain tensor that every rank holds whole.
        """
        if not self._ranks.parallel:
            assert whole is not None
            return whole.to(self._device)
        shape, dtype = like.shape, like.dtype
        value = whole.contiguous() if whole is not None else torch.empty(shape, dtype=dtype)
        value = self._ranks.share(value).to(self._device)
        if isinstance(like, DTensor):
            # Every rank has the whole values: each cuts its own part.
            return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
        return value


def _sum_gradients(bucket: Any) -> torch.futures.Future[Tensor]:
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return cast("torch.futures.Future[Tensor]", future.then(lambda done: done.value()[0]))
