"""Chooses what runs the constrained step, and keeps an index where it reads it. Optional packages are imported here only.

"cpu"        numba, on numpy arrays; no other package
"jax"        XLA, any device of jax; compiled once for each size of a catalog
"triton"     two kernels a round, on a GPU (or, to try it out, slowly under Triton's interpreter)
"torch"      torch without loops, any device; clean for torch.compile
"static"     STATIC's own transition matrix and masks, in torch, any device; without filters
"reference"  plain torch, any device; slow, and the truth
"auto"       decided by where the first logits are: "cpu" for numpy and for torch on a CPU, "triton" (or "torch" where Triton is
             not installed) for torch elsewhere, "jax" for arrays of jax
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.extras import require
from leafbeam.index import Filter, Trie, Version
from leafbeam.ops.constrain import Beams, Boosts, Scoring
from leafbeam.ops.constrain.cpu.ragged import TrieChildren
from leafbeam.ops.constrain.legal_codes import LegalCodes

_MODULES = {
    "cpu": "cpu.step",
    "jax": "fixed_shape.jax",
    "triton": "triton.step",
    "torch": "fixed_shape.torch",
    "static": "static.step",
    "reference": "reference",
}
# The package that each needs beyond the core, which is also its extra.
_PACKAGES = {"jax": "jax", "triton": "triton", "torch": "torch", "static": "torch", "reference": "torch"}


class ConstrainBackend(Protocol):
    """The functions that a backend's module has.

    `step` is specified by `leafbeam.ops.constrain.reference.step`. A backend on a device also has `launch`, which takes the
    arguments of `step` and returns (beams, bad) without waiting for the device; bad is 0, or 1 + the number of a live row that
    held NaN or +inf. Backends that can list the children of beams, which sampling needs, have `children`: (arrays, level,
    lo_SBK, hi_SBK, filters) -> (row_indptr, code_C, lo_SC, hi_SC).
    """

    def bind(self, index: Trie | Version) -> object: ...

    def bind_filters(self, arrays: object, filters: Sequence[Filter], boosts: Boosts = None) -> object: ...

    def step(
        self,
        arrays: object,
        level: int,
        beams: Beams[object],
        logits_BKV: object,
        filters: object,
        *,
        num_beams: int,
        scoring: Scoring,
    ) -> Beams[Any]: ...


@cache
def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    return importlib.util.find_spec(package) is not None


def load(name: str) -> tuple[str, ConstrainBackend]:
    """Return the name and the functions of a backend; "auto" is "cpu", because there are no logits to look at.

    Raises ArgumentError for an unknown name, MissingExtraError if its package is not installed.
    """
    resolved = "cpu" if name == "auto" else name
    if resolved not in _MODULES:
        names = [repr(known) for known in ("auto", *_MODULES)]
        raise ArgumentError(f"backend is {name!r}: expected {', '.join(names[:-1])} or {names[-1]}")
    if resolved in _PACKAGES:
        require(f"backend {resolved!r}", _PACKAGES[resolved])
    return resolved, cast(ConstrainBackend, importlib.import_module(f"leafbeam.ops.constrain.{_MODULES[resolved]}"))


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundIndex:
    """The arrays of a version, in the memory from which one backend reads them.

    Args:
        waits: Whether a step returns only when its results are on the host, so that reading them costs nothing.
    """

    name: str
    ops: ConstrainBackend
    arrays: Any
    device: object
    waits: bool

    def to_device(self, array: NDArray[Any]) -> Any:
        """Copy a numpy array to where the backend reads it; for "cpu" return the array itself."""
        if self.name == "cpu":
            return array
        if self.name == "jax":
            dtype = array.dtype if array.dtype.kind == "f" else np.int32
            return importlib.import_module("jax.numpy").asarray(array, dtype, device=self.device)
        return importlib.import_module("torch").as_tensor(array, device=self.device)

    def children(self, level: int, beams: Beams[Any], filters: object) -> TrieChildren:
        """List the legal children of every beam on the host. Cost: a few reads a child."""
        ops: Any = self.ops
        lo, hi = self.to_device(beams.lo), self.to_device(beams.hi)
        listed = ops.children(self.arrays, level, lo, hi, filters)
        indptr_R1, code_C, lo_SC, hi_SC = (to_numpy(array) for array in listed)
        legal = LegalCodes.of(indptr_R1, code_C)
        return TrieChildren(legal=legal, lo_SC=lo_SC, hi_SC=hi_SC, num_rows=beams.scores.shape[1])


class IndexBindings:
    """A version that is bound to a device when a search first runs there. All searches of a version may share one object.

    Args:
        like: The bindings of another version. They are shared if the versions differ only in which items are live, because
            filters take care of that. Otherwise what both versions have stays on the devices.
        max_filter_bytes: The bytes of a segment's filters that stay on a device; None takes the backend's default.
    """

    def __init__(
        self, index: Trie | Version, like: IndexBindings | None = None, *, max_filter_bytes: int | None = None
    ) -> None:
        self.version = Version.of(index)
        self._bound: dict[tuple[str, str], BoundIndex] = {}
        self._before: dict[tuple[str, str], BoundIndex] = {}
        self._max_filter_bytes, self._lock = max_filter_bytes, threading.Lock()
        if like is not None:
            self._max_filter_bytes, self._lock = like._max_filter_bytes, like._lock
            if self.version.has_tries_of(like.version):
                self._bound = like._bound
            else:
                self._before = dict(like._bound)

    def on(self, backend: str, device: object = "auto", logits: object = None) -> BoundIndex:
        """Return the version bound to a backend and device; "auto" is decided by the logits.

        Cost: a copy of the index, unless it is bound already or the backend is "cpu". Raises ArgumentError,
        MissingExtraError.
        """
        name, device = _resolved(backend, device, logits)
        key = (name, str(device))
        with self._lock:
            if key not in self._bound:
                self._bound[key] = self._bind(name, device, key)
                self._before.pop(key, None)
            return self._bound[key]

    def _bind(self, name: str, device: object, key: tuple[str, str]) -> BoundIndex:
        name, ops = load(name)
        try:
            arrays: Any = ops.bind(self.version, *(() if device is None else (device,)), **self._options(key, ops))
        except (RuntimeError, AssertionError) as error:  # what torch raises for a device that it does not have
            raise ArgumentError(f"device is {device!r}, and torch says: {error}") from error
        device = device if name == "jax" else getattr(arrays, "device", device or "cpu")
        return BoundIndex(name=name, ops=ops, arrays=arrays, device=device, waits=not hasattr(ops, "launch"))

    def _options(self, key: tuple[str, str], ops: ConstrainBackend) -> dict[str, object]:
        """Return the options of `bind` that only backends with filters on a device take."""
        if not hasattr(ops, "launch") or key[0] == "static":
            return {}
        options: dict[str, object] = {"like": self._before[key].arrays} if key in self._before else {}
        if self._max_filter_bytes is not None and key[0] != "jax":  # which keeps a number of filters
            options["max_filter_bytes"] = self._max_filter_bytes
        return options


class LatestBindings:
    """The bindings of the version that was searched last, for the threads that search it.

    Args:
        max_filter_bytes: As for `IndexBindings`.
    """

    def __init__(self, max_filter_bytes: int | None = None) -> None:
        self._latest: IndexBindings | None = None
        self._max_filter_bytes, self._lock = max_filter_bytes, threading.Lock()

    def of(self, version: Version) -> IndexBindings:
        """Return the bindings of a version; what it shares with the one before stays on the devices."""
        with self._lock:
            if self._latest is None or self._latest.version is not version:
                self._latest = IndexBindings(version, like=self._latest, max_filter_bytes=self._max_filter_bytes)
            return self._latest

    def release(self) -> None:
        """Free the arrays, once no search uses them."""
        with self._lock:
            self._latest = None


def _resolved(backend: str, device: object, logits: Any) -> tuple[str, object]:
    """Return (backend, device) with "auto" replaced by what the logits say; device None is the backend's default."""
    if backend == "auto":
        of_logits = getattr(logits, "device", "cpu") if device == "auto" else device
        kind = "jax" if hasattr(of_logits, "platform") or is_jax(logits) else str(of_logits).split(":")[0]
        on_gpu = "triton" if kind == "cuda" and is_installed("triton") else "torch"
        backend = {"cpu": "cpu", "jax": "jax"}.get(kind, on_gpu)
    if device == "auto":
        device = None
        if is_jax(logits) == (backend == "jax") and getattr(getattr(logits, "device", None), "type", "cpu") != "cpu":
            device = logits.device
    if backend == "cpu" and device not in (None, "cpu"):
        raise ArgumentError(f"backend 'cpu' runs on the CPU, but device is {device!r}: expected 'auto', or another backend")
    return backend, None if backend == "cpu" else device


def is_jax(array: object) -> bool:
    """Return whether an array is one of jax, traced or not, without importing jax."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def namespace_of(array: object) -> Any:
    """Return the module whose functions take this array: numpy, torch or jax.numpy."""
    if isinstance(array, np.ndarray):
        return np
    return importlib.import_module("torch" if hasattr(array, "detach") else "jax.numpy")


def to_numpy(array: Any) -> NDArray[Any]:
    """Return a numpy view of a numpy, torch or jax array, or a copy from a device; torch's half precisions become float32."""
    # The type is quoted because to make it takes longer than the rest.
    if isinstance(array, np.ndarray):
        return cast("NDArray[np.generic]", array)
    if hasattr(array, "detach"):
        tensor = array.detach()
        return cast("NDArray[np.generic]", (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy())
    return np.asarray(array)


def to_kind_of(array: Any, sample: Any) -> Any:
    """Return the array as the kind that `sample` is: numpy, torch on the same device, or jax."""
    if isinstance(sample, np.ndarray):
        return to_numpy(array)
    if not hasattr(sample, "detach"):
        return array if is_jax(array) else importlib.import_module("jax.numpy").asarray(to_numpy(array))
    if hasattr(array, "detach"):
        return array if array.device == sample.device else array.to(sample.device)
    torch = importlib.import_module("torch")
    if sample.device.type == "cpu" and isinstance(array, np.ndarray) and array.flags.writeable:
        return torch.from_numpy(array)  # in a third of the time
    return torch.as_tensor(to_numpy(array), device=sample.device)
