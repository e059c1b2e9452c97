"""The fixed-shape step in JAX, on CPU, GPU and TPU: arrays are pytrees, and a step is compiled once for a `Capacity`."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

from leafbeam.errors import ArgumentError
from leafbeam.index import Trie, Version
from leafbeam.ops.constrain.fixed_shape import arrays as device_arrays
from leafbeam.ops.constrain.fixed_shape import step as fixed_step
from leafbeam.ops.constrain.fixed_shape.arrays import (
    FilterArrays,
    LevelArrays,
    LevelBoosts,
    LevelFilters,
    VersionArrays,
    bind_filters,
)
from leafbeam.ops.constrain.fixed_shape.step import launch, step
from leafbeam.ops.constrain.namespaces.jax import JaxNamespace, register
from leafbeam.ops.constrain.types import Beams, Scoring

__all__ = [
    "FilterArrays",
    "Kernels",
    "LevelArrays",
    "LevelBoosts",
    "LevelFilters",
    "VersionArrays",
    "bind",
    "bind_filters",
    "extend",
    "launch",
    "namespace",
    "step",
]

Kernels = Literal["xla", "pallas"]

register(LevelBoosts)
register(LevelFilters)
register(LevelArrays, static=["capacity"])


@cache
def namespace(kernels: Kernels) -> JaxNamespace:
    """Return the array operations that a step runs on.

    "xla" leaves all to XLA. "pallas" reads the logits with a kernel of our own, once; it is for TPUs and NVIDIA GPUs, and on a
    CPU it is interpreted, slowly.

    Raises ArgumentError for another name.
    """
    if kernels == "xla":
        return JaxNamespace()
    if kernels == "pallas":
        from leafbeam.ops.constrain.namespaces.pallas import PallasNamespace

        return PallasNamespace()
    raise ArgumentError(f"kernels is {kernels!r}: expected 'xla' or 'pallas'")


def bind(
    index: Trie | Version,
    device: Any = None,
    *,
    delta_leaves: int = 0,
    num_filters: int = 1,
    like: VersionArrays | None = None,
    kernels: Kernels = "xla",
) -> VersionArrays:
    """Copy a version to a device; arguments are as for `arrays.bind` and `namespace`. Steps of `like` run on its kernels.

    No more than num_filters filters stay on the device, unless a batch needs more: their number is part of what is compiled.
    """
    xp = namespace(kernels) if like is None else like.xp
    sizes: dict[str, int] = {"delta_leaves": delta_leaves, "num_filters": num_filters, "max_filter_bytes": 0}
    return device_arrays.bind(xp, index, device, **sizes, like=like)


def extend(
    levels: Sequence[LevelArrays],
    filters: Sequence[LevelFilters],
    beams: Beams[Any],
    logits_BKV: Any,
    *,
    num_beams: int,
    scoring: Scoring,
    kernels: Kernels = "xla",
) -> tuple[Beams[Any], Any]:
    """Run `step.extend` on the operations of `namespace`."""
    return fixed_step.extend(namespace(kernels), levels, filters, beams, logits_BKV, num_beams=num_beams, scoring=scoring)
