"""A context with a given number of torch CPU threads."""

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Generator[None]:
    """Let torch use `count` threads inside the block; more than one seldom pays for small matrices."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
