"""What can run the constrained step here: optional packages are imported in this file only.

"cpu"        numba, on numpy arrays; no other package
"jax"        XLA, any device of jax; compiled once for each size of a catalog
"triton"     two kernels a round, on a GPU (or, to try it out, slowly under Triton's interpreter)
"torch"      torch without loops, any device; clean for torch.compile
"reference"  plain torch, any device; slow, and the truth
"auto"       the fastest that is installed: today always "cpu"
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.extras import require
from leafbeam.index import Trie, Version
from leafbeam.ops.constrain import Beams, RequestFilter, Scoring

__all__ = ["BackendName", "ConstrainBackend", "available", "load", "to_kind_of", "to_numpy", "to_torch"]

BackendName = Literal["auto", "cpu", "jax", "triton", "torch", "reference"]
# What each needs beyond the core, which is also its extra.
_PACKAGES = {"jax": "jax", "triton": "triton", "torch": "torch", "reference": "torch"}
_MODULES = {
    "cpu": "cpu.step",
    "jax": "fixed_shape.jax",
    "triton": "triton.step",
    "torch": "fixed_shape.torch",
    "reference": "reference",
}


class ConstrainBackend(Protocol):
    """The verbs that every file of `ops.constrain` has, with the same names and arguments."""

    def bind(self, index: Trie | Version) -> Any: ...

    def bind_filters(self, arrays: Any, filters: Sequence[tuple[RequestFilter, ...]]) -> Any: ...

    def children(self, arrays: Any, level: int, lo_SBK: Any, hi_SBK: Any, filters: Any) -> tuple[Any, Any, Any, Any]: ...

    def step(
        self,
        arrays: Any,
        level: int,
        lo_SBK: Any,
        hi_SBK: Any,
        scores_BK: Any,
        logits_BKV: Any,
        filters: Any,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> Beams[Any]: ...


def available() -> tuple[str, ...]:
    """The backends that can run on this machine, fastest first."""
    return ("cpu", *(name for name, package in _PACKAGES.items() if importlib.util.find_spec(package)))


def load(name: str) -> tuple[str, ConstrainBackend]:
    """The backend of this name and the name it goes by ("auto" is resolved).

    Raises ArgumentError for an unknown name, MissingExtraError where its package is not installed.
    """
    resolved = available()[0] if name == "auto" else name
    if resolved not in ("cpu", *_PACKAGES):
        raise ArgumentError(f"backend is {name!r}: expected 'auto', 'cpu', 'jax', 'triton', 'torch' or 'reference'")
    if resolved != "cpu":
        require(f"backend {resolved!r}", _PACKAGES[resolved])
    return resolved, cast(ConstrainBackend, importlib.import_module(f"leafbeam.ops.constrain.{_MODULES[resolved]}"))


def to_numpy(array: Any) -> NDArray[Any]:
    """A numpy view (or copy, from a device) of a numpy array or a torch tensor; half precisions become float32."""
    # The type is quoted because to make it takes longer than the rest.
    if isinstance(array, np.ndarray):
        return cast("NDArray[Any]", array)
    if hasattr(array, "detach"):
        tensor = array.detach()
        return cast("NDArray[Any]", (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy())
    return np.asarray(array)


def to_torch(array: Any) -> Any:
    """A torch tensor of a numpy array or torch tensor."""
    import torch

    return torch.as_tensor(array)


def to_kind_of(array: Any, sample: Any) -> Any:
    """The array as numpy or as torch on the same device, as `sample` is."""
    if isinstance(sample, np.ndarray):
        return to_numpy(array)
    return to_torch(array).to(sample.device)
