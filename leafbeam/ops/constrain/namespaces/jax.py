"""`ArrayNamespace` in jax.numpy: numbers are int32, words uint32."""

# Each namespace takes only the arrays of its own library.
# pyright: reportIncompatibleMethodOverride=false
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.extras import optional_imports
from leafbeam.ops.constrain.namespaces import ArrayNamespace
from leafbeam.ops.constrain.types import Beams

with optional_imports("backend 'jax'"):
    import jax
    import jax.numpy as jnp
    from jax import lax

Array = jax.Array


class JaxNamespace(ArrayNamespace):
    """`ArrayNamespace` in JAX. All functions may be traced."""

    library: Any = jnp
    full_word: Any = np.uint32(0xFFFFFFFF)

    def at(self, array: Array, *indices: Any) -> Array:
        return array.at[indices].get(mode="promise_in_bounds")

    def number(self, array: Array) -> Array:
        return array.astype(jnp.int32) if jnp.issubdtype(array.dtype, jnp.unsignedinteger) else array

    def arange(self, size: int, like: Array) -> Array:
        return jnp.arange(size, dtype=jnp.int32)

    def word(self, numbers: Array) -> Array:
        return numbers.astype(jnp.uint32)

    def popcount(self, words: Array) -> Array:
        return lax.population_count(words).astype(jnp.int32)

    def unpack_bits(self, bytes_RH: Array) -> Array:
        bit_8 = jnp.uint8(1) << jnp.arange(8, dtype=jnp.uint8)
        return (bytes_RH[:, None, :] & bit_8[:, None] != 0).reshape(len(bytes_RH), -1)

    def sum(self, array: Array, axis: int) -> Array:
        return array.sum(axis, dtype=jnp.uint32 if array.dtype == jnp.uint32 else jnp.int32)

    def max(self, array: Array, axis: int) -> Array:
        if array.dtype != jnp.float32:
            return array.max(axis)
        # As integers of the same order: on CPUs XLA vectorises their maximum, which takes a fifth of the time of floats.
        return lax.bitcast_convert_type(_ordered(_ordered(lax.bitcast_convert_type(array, jnp.int32)).max(axis)), jnp.float32)

    def log_sum_exp(self, values_RN: Array) -> Array:
        # A CPU waits for memory, so a pass less is worth a branch; on accelerators a branch waits for the host.
        return lax.platform_dependent(values_RN, cpu=_log_sum_exp_in_one_pass, default=_log_sum_exp)

    def top_k(self, values_RN: Array, count: int) -> tuple[Array, Array]:
        # Without barriers XLA may merge the results with their uses, and then sorts whole rows instead of selecting from them:
        # 330 µs instead of 29 for 70 of 2,240. One barrier for both fails to compile over a mesh.
        values, positions = lax.top_k(values_RN, count)
        return lax.optimization_barrier(values), lax.optimization_barrier(positions)

    def sort(self, numbers_RN: Array) -> Array:
        return lax.sort(numbers_RN, dimension=1)

    def search_sorted(self, sorted_N: Array, numbers: Array) -> Array:
        return jnp.searchsorted(sorted_N, numbers).astype(jnp.int32)

    def scatter(self, index_RN: Array, values_RN: Array, size: int, fill: float) -> Array:
        rows_R1 = self.arange(len(index_RN), index_RN)[:, None]
        empty_RM = jnp.full((len(index_RN), size), fill, values_RN.dtype)
        return empty_RM.at[rows_R1, index_RN].set(values_RN, mode="promise_in_bounds", unique_indices=True)

    def scatter_sum(self, index_RN: Array, values_RN: Array, size: int) -> Array:
        rows_R1 = self.arange(len(index_RN), index_RN)[:, None]
        empty_RM = jnp.zeros((len(index_RN), size), values_RN.dtype)
        return empty_RM.at[rows_R1, index_RN].add(values_RN, mode="promise_in_bounds")

    def pad(self, array: Array, count: int, value: float) -> Array:
        return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, count)], constant_values=value)

    def float32(self, array: Array) -> Array:
        return array.astype(jnp.float32)

    def barrier(self, *arrays: Array) -> tuple[Array, ...]:
        return lax.optimization_barrier(arrays)

    def asarray(self, array: NDArray[np.generic], device: object) -> Array:
        return jax.device_put(array, device)

    def inputs(self, beams: Beams[Any], logits: object, device: object) -> tuple[Beams[Any], Any]:
        names = "lo", "hi", "parent", "code", "num_valid"
        numbers = {name: _as_dtype(getattr(beams, name), jnp.int32) for name in names}
        return Beams(scores=_as_dtype(beams.scores, jnp.float32), **numbers), logits

    def set_rows(self, stacks: dict[str, Array], rows_n: Array, fresh: dict[str, Array]) -> dict[str, Array]:
        return _set_rows(stacks, rows_n, fresh)

    def copy_row(
        self, stacks: dict[str, Array], row: int, source: int, changed: dict[str, tuple[Array, ...]]
    ) -> dict[str, Array]:
        return _copy_row(stacks, np.int32(row), np.int32(source), changed)

    @cache  # noqa: B019  the namespace has no state
    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(partial(function, self), static_argnames=("num_beams", "scoring"))


def _log_sum_exp(values_RN: Array) -> Array:
    top_R = values_RN.max(1, initial=-jnp.inf)
    safe_R = jnp.where(top_R == -jnp.inf, 0.0, top_R)
    return safe_R + jnp.log(jnp.exp(values_RN - safe_R[:, None]).sum(1))


def _log_sum_exp_in_one_pass(values_RN: Array) -> Array:
    """Sum the exponentials as they are; if a sum may have left float32's range, subtract the maxima and sum again."""
    sum_R = jnp.exp(values_RN).sum(1)
    safe = ((sum_R > 1e-20) & (sum_R < 1e20)).all()
    return lax.cond(safe, lambda: jnp.log(sum_R), lambda: _log_sum_exp(values_RN))


def _as_dtype(array: Any, dtype: type) -> Array:
    """Return the array itself if it has the dtype: a conversion that changes nothing costs 20 µs."""
    return array if isinstance(array, jax.Array) and array.dtype == dtype else jnp.asarray(array, dtype)


def _ordered(bits: Array) -> Array:
    """Return the bits of floats as integers of the same order; its own inverse."""
    return bits ^ ((bits >> 31) & jnp.int32(0x7FFFFFFF))


@jax.jit
def _set_rows(stacks: dict[str, Array], rows_n: Array, fresh: dict[str, Array]) -> dict[str, Array]:
    return {name: stack.at[rows_n].set(fresh[name]) for name, stack in stacks.items()}


@jax.jit
def _copy_row(stacks: dict[str, Array], row: Array, source: Array, changed: dict[str, tuple[Array, ...]]) -> dict[str, Array]:
    copies: dict[str, Array] = {}
    for name, stack in stacks.items():
        positions_n, elements_n = changed[name]
        flat = stack[source].reshape(-1).at[positions_n].set(elements_n)
        copies[name] = stack.at[row].set(flat.reshape(stack.shape[1:]))
    return copies


def register(kind: type, static: Sequence[str] = ()) -> None:
    """Make a dataclass a pytree; the fields in `static` become part of what is compiled."""
    names = [field.name for field in fields(kind) if field.name not in static]
    jax.tree_util.register_dataclass(kind, names, list(static))


register(Beams)
