"""A context with a given number of torch CPU threads."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import torch

from leafbeam.ops.openmp import Spread


@contextmanager
def torch_threads(count: int, *, apart: bool = False) -> Generator[None]:
    """Let torch use `count` threads inside the block; more than one seldom pays for small matrices.

    apart: each on cores of its own where that is possible, see `openmp.Spread`.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with Spread(count) if apart else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)
