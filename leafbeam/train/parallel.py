"""Data-parallel training with `torch.distributed`, with optional sharding of weights and optimizer state."""

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

Number = TypeVar("Number", bound=np.integer)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallel:
    """One of `size` processes that train one model together (gloo on CPUs, nccl on GPUs); `DataParallel()` is a single process.

    Every process takes every `size`-th window of each batch. With dropout 0 the weights equal those of a single process up to
    rounding.

    Args:
        rank: The number of this process.
        size: The number of processes.
        shard: If true, each process keeps only its part of the weights and of AdamW's moments (torch's `fully_shard`, a decoder
            layer by layer, an encoder-decoder as a whole).

    Examples:
        >>> # torchrun --nproc-per-node 2 this.py
        >>> train(log, split, sids, recipe, "runs/beauty", TrainOptions(parallel=DataParallel.join()))
    """

    rank: int = 0
    size: int = 1
    shard: bool = False

    @classmethod
    def join(cls, *, shard: bool = False) -> "DataParallel":
        """Return this process of the default group.

        Raises:
            ArgumentError: If `torch.distributed.init_process_group` was not called.
        """
        if not _in_group():
            raise ArgumentError("there is no process group: use torchrun and torch.distributed.init_process_group first")
        return cls(rank=dist.get_rank(), size=dist.get_world_size(), shard=shard)

    def prepare(self, model: AnyModel) -> None:
        """Shard the weights if `shard` is set; call it before an optimizer is made of them."""
        if not self.shard:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # takes a second to import

        mesh = init_device_mesh(model.device.type, (self.size,))
        for layer in model.model.layers if isinstance(model, Transformer) else ():
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def backward(self, loss: Tensor) -> None:
        """Backpropagate this process's part of the loss. torch averages sharded gradients, so the loss is scaled."""
        (loss * self.size if self.shard else loss).backward()

    def local_rows(self, rows: NDArray[Number]) -> tuple[NDArray[Number], float]:
        """Return this process's rows of a batch and their share of it; one row of weight 0 if it has none."""
        local = rows[self.rank :: self.size]
        return (local, len(local) / len(rows)) if len(local) else (rows[:1], 0.0)

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """All-reduce the gradients in one message; sharded ones are reduced already."""
        if self.shard or self.size == 1:
            return
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a scalar over the processes."""
        total = value.detach().clone()
        if self.size > 1:
            dist.all_reduce(total)
        return total

    def max_seconds(self, seconds: float, device: torch.device) -> float:
        """Return the maximum over the processes, so that all of them agree on the share of a budget in minutes."""
        if self.size == 1:
            return seconds
        value = torch.tensor(seconds, dtype=torch.float64, device=device)
        dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return float(value)


def full_tensor(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor (a collective call); other tensors are returned unchanged."""
    if not _in_group():
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """Return a full tensor on the device of `other`, sharded like it if that one is sharded."""
    tensor = tensor.to(other.device)
    if not _in_group():
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    return distribute_tensor(tensor, other.device_mesh, other.placements) if isinstance(other, DTensor) else tensor


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()
