"""How many CPU threads torch multiplies with, for a while."""

from collections.abc import Generator
from contextlib import contextmanager

import torch

__all__ = ["torch_threads"]


@contextmanager
def torch_threads(count: int) -> Generator[None]:
    """Let torch use `count` threads inside the block, and as many as before after it.

    Matrices of a small model are done in a fraction of a millisecond. Threads that wait for each other that often gain
    little on idle cores and lose nearly everything on busy ones (5 to 18 times slower on two cores shared by others).
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
