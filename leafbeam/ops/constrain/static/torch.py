"""STATIC in torch, on any device: `BeamSearch(index, backend="static")`."""

from __future__ import annotations

import torch

from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.namespaces.torch import TorchNamespace
from leafbeam.ops.constrain.static import step as static_step
from leafbeam.ops.constrain.static.step import LevelTables, StaticArrays, bind_filters, launch, step

__all__ = ["LevelTables", "StaticArrays", "bind", "bind_filters", "launch", "step"]


def bind(index: Trie | Version, device: torch.device | str = "cpu", *, dense_levels: int = 2) -> StaticArrays:
    """Build STATIC's matrix of an index and copy it to a device.

    dense_levels: d, the levels with a mask over all prefixes; V^d bits and 4 V^d bytes. Cost: a few passes over the codes.
    Raises ArgumentError for a version with a delta segment or deleted items, and where the dense levels need 2^31 entries.
    """
    return static_step.bind(TorchNamespace(), index, torch.device(device), dense_levels)
