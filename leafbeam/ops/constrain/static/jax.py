"""STATIC in JAX, the paper's own framework; each level is compiled once for a batch size, number of beams and scoring."""

from __future__ import annotations

from typing import Any

from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.namespaces.jax import JaxNamespace, register
from leafbeam.ops.constrain.static import step as static_step
from leafbeam.ops.constrain.static.step import LevelTables, StaticArrays, bind_filters, launch, step

__all__ = ["LevelTables", "StaticArrays", "bind", "bind_filters", "launch", "step"]

_XP = JaxNamespace()  # one, because it remembers what was compiled

register(LevelTables, static=["size", "max_branch", "first_in", "first_out"])


def bind(index: Trie | Version, device: Any = None, *, dense_levels: int = 2) -> StaticArrays:
    """Build STATIC's matrix of an index and copy it to a device; arguments and errors as for `static.torch.bind`."""
    return static_step.bind(_XP, index, device, dense_levels)
