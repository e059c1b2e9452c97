"""Training by several processes: each takes its part of every batch, and of the weights too, where they are sharded.

Shapes: B histories of a batch, T items of each.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model import AnyModel, Transformer

__all__ = ["DataParallel", "like", "whole"]

Number = TypeVar("Number", bound=np.integer)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallel:
    """One process of several that train one model (`torch.distributed`, any backend; gloo on CPUs, nccl on GPUs).

    Think of it as one trainer with several pairs of hands: every process holds the whole model and goes through the same
    batches, each with every `size`-th history of them; the gradients are weighted by how many items each had, and summed.
    With dropout 0 the weights are those of a single process, to rounding.

    shard: every process keeps only its part of each weight and of AdamW's moments between steps, and layers are put together
    as they are needed (torch's `fully_shard`): for models that do not fit otherwise. An encoder-decoder is put together
    whole for each step, since its halves are not called as modules. Small models, which the presets are, gain nothing by it.

    >>> # torchrun --nproc-per-node 2 this.py
    >>> train(log, split, sids, recipe, "runs/beauty", parallel=DataParallel.join())
    """

    rank: int
    size: int
    shard: bool = False

    @classmethod
    def join(cls, *, shard: bool = False) -> "DataParallel":
        """This process of the default group; ArgumentError where `torch.distributed.init_process_group` was not called."""
        if not _in_group():
            raise ArgumentError(
                "there is no process group to join: start with torchrun and call torch.distributed.init_process_group first"
            )
        return cls(rank=dist.get_rank(), size=dist.get_world_size(), shard=shard)

    def prepare(self, model: AnyModel) -> None:
        """Shard the weights where that is asked for; before an optimizer is made of them."""
        if not self.shard:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # a second to import, for those who shard

        mesh = init_device_mesh(model.device.type, (self.size,))
        for layer in model.model.layers if isinstance(model, Transformer) else ():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def backward(self, loss: Tensor) -> None:
        """Derive this process's part of a loss. Sharded gradients come averaged over the processes: the sum is meant."""
        (loss * self.size if self.shard else loss).backward()

    def part(self, rows: NDArray[Number]) -> tuple[NDArray[Number], float]:
        """This process's rows of a batch, and their share of it; where it has none, one row that counts 0."""
        mine = rows[self.rank :: self.size]
        return (mine, len(mine) / len(rows)) if len(mine) else (rows[:1], 0.0)

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over the processes, in one message; sharded ones have been summed on their way."""
        if self.shard:
            return
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def sum_of(self, value: Tensor) -> Tensor:
        """A number summed over the processes."""
        total = value.detach().clone()
        dist.all_reduce(total)
        return total

    def latest(self, seconds: float, device: torch.device) -> float:
        """The latest of the processes' clocks, so that all of them see the same share of a budget in minutes."""
        value = torch.tensor(seconds, dtype=torch.float64, device=device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)


def whole(tensor: Tensor) -> Tensor:
    """A tensor put together from its shards, by all processes at once; one that is not sharded as it is."""
    if not _in_group():
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def like(tensor: Tensor, other: Tensor) -> Tensor:
    """A whole tensor on the device of another one and, where that one is sharded, sharded like it."""
    tensor = tensor.to(other.device)
    if not _in_group():
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    return distribute_tensor(tensor, other.device_mesh, other.placements) if isinstance(other, DTensor) else tensor


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()
