"""STATIC in JAX, the paper's own framework; each level is compiled once for a batch size, number of beams and scoring.

See `static.step`.
"""

from functools import partial

from leafbeam.ops.constrain.namespaces.jax import JaxNamespace, register
from leafbeam.ops.constrain.static import step as static_step
from leafbeam.ops.constrain.static.step import LevelTables, StaticArrays, bind_filters, launch, step

__all__ = ["LevelTables", "StaticArrays", "bind", "bind_filters", "launch", "step"]

register(LevelTables, static=["size", "max_branch", "first_in", "first_out"])
bind = partial(static_step.bind, JaxNamespace())  # one namespace, because it remembers what was compiled
