"""The fixed-shape step in JAX, on CPU, GPU and TPU: arrays are pytrees, and a step is compiled once for a `Capacity`."""

from functools import partial

from leafbeam.ops.constrain.fixed_shape import arrays as device_arrays
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.fixed_shape.arrays import FilterArrays, LevelArrays, LevelFilters, VersionArrays
from leafbeam.ops.constrain.fixed_shape.filter_cache import FilterCache, bind_filters
from leafbeam.ops.constrain.fixed_shape.step import launch, step
from leafbeam.ops.constrain.namespaces.jax import JaxNamespace, register

__all__ = [
    "FilterArrays",
    "FilterCache",
    "LevelArrays",
    "LevelFilters",
    "VersionArrays",
    "bind",
    "bind_filters",
    "extend",
    "first_bad_row",
    "launch",
    "step",
]

register(LevelFilters)
register(LevelArrays, static=["capacity"])

_XP = JaxNamespace()
bind = partial(device_arrays.bind, _XP)
extend = partial(fixed_step.extend, _XP)
first_bad_row = partial(fixed_step.first_bad_row, _XP)
