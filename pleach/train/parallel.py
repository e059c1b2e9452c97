"""Training by several processes: each takes its part of every batch, and gradients are summed before each step.

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

from pleach.errors import ArgumentError

__all__ = ["DataParallel"]

Number = TypeVar("Number", bound=np.integer)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataParallel:
    """One process of several that train one model (`torch.distributed`, any backend; gloo on CPUs, nccl on GPUs).

    Think of it as one trainer with several pairs of hands: every process holds the whole model and goes through the same
    batches, each with every `size`-th history of them; the gradients are weighted by how many items each had, and summed.
    With dropout 0 the weights are those of a single process, to rounding. The models here fit many times over into any
    GPU, so nothing is sharded.

    >>> # torchrun --nproc-per-node 2 this.py
    >>> train(log, split, sids, recipe, "runs/beauty", parallel=DataParallel.join())
    """

    rank: int
    size: int

    @classmethod
    def join(cls) -> "DataParallel":
        """This process of the default group; ArgumentError where `torch.distributed.init_process_group` was not called."""
        if not dist.is_available() or not dist.is_initialized():
            raise ArgumentError(
                "there is no process group to join: start with torchrun and call torch.distributed.init_process_group first"
            )
        return cls(rank=dist.get_rank(), size=dist.get_world_size())

    def part(self, rows: NDArray[Number]) -> tuple[NDArray[Number], float]:
        """This process's rows of a batch, and their share of it; where it has none, one row that counts 0."""
        mine = rows[self.rank :: self.size]
        return (mine, len(mine) / len(rows)) if len(mine) else (rows[:1], 0.0)

    def sum_gradients(self, weights: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over the processes, in one message."""
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
