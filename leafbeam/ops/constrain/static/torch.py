"""STATIC in torch, on any device: `BeamSearch(index, backend="static")`. See `static.step`."""

from functools import partial

from leafbeam.ops.constrain.namespaces.torch import TorchNamespace
from leafbeam.ops.constrain.static import step as static_step
from leafbeam.ops.constrain.static.step import LevelTables, StaticArrays, bind_filters, launch, step

__all__ = ["LevelTables", "StaticArrays", "bind", "bind_filters", "launch", "step"]

bind = partial(static_step.bind, TorchNamespace())
