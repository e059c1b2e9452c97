"""The fixed-shape step in torch, on any device; `torch.compile(extend, fullgraph=True)` takes it without graph breaks."""

from functools import partial

from leafbeam.ops.constrain.fixed_shape import arrays as device_arrays
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, LevelArrays, LevelFilters, VersionArrays, bind_filters
from leafbeam.ops.constrain.fixed_shape.step import launch, step
from leafbeam.ops.constrain.namespaces.torch import TorchNamespace

__all__ = [
    "FilterArrays",
    "LevelArrays",
    "LevelFilters",
    "VersionArrays",
    "bind",
    "bind_filters",
    "extend",
    "launch",
    "step",
]

_XP = TorchNamespace()
bind = partial(device_arrays.bind, _XP)
extend = partial(fixed_step.extend, _XP)
