"""`ArrayNamespace` in jax.numpy: numbers are int32, words uint32."""

# Each namespace takes only the arrays of its own library.
# pyright: reportIncompatibleMethodOverride=false
import math
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
_MAX_INT32 = 2**31 - 1
# 2^x for x from -.5 to .5, from the highest power down: a polynomial with the least relative error, 1e-7.
_POWERS = [
    np.float32(factor)
    for factor in (1.327647181e-03, 9.675541370e-03, 5.550713274e-02, 2.402211972e-01, 6.931469671e-01, 1.000000072e00)
]
_SMALL = 2**14  # values of an array whose passes take less time than a branch
_CACHED = 2**20  # values of an array that stays in the cache of a CPU, so that it may be written


class JaxNamespace(ArrayNamespace):
    """`ArrayNamespace` in JAX. All functions may be traced."""

    library: Any = jnp
    full_word: Any = np.uint32(0xFFFFFFFF)

    def at(self, array: Array, *indices: Any) -> Array:
        # XLA writes several indices side by side before it gathers; one of the flattened array it computes in place.
        num_rows = math.prod(array.shape[: len(indices)])
        if num_rows <= _MAX_INT32:
            index = indices[0]
            for number, size in zip(indices[1:], array.shape[1:], strict=False):
                index = index * size + number
            # Of signed indices, negative ones would be counted from the end.
            array, indices = array.reshape(num_rows, *array.shape[len(indices) :]), (index.astype(jnp.uint32),)
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

    def log_sum_exp(self, values_RN: Array, words_RH: Array | None = None) -> Array:
        words = () if words_RH is None else (words_RH,)
        if values_RN.size <= _SMALL:
            return self._log_sum_exp(values_RN, *words)
        # A CPU waits for memory, so a pass less is worth a branch; on accelerators a branch waits for the host.
        return lax.platform_dependent(values_RN, *words, cpu=self._log_sum_exp_in_one_pass, default=self._log_sum_exp)

    def _rows(self, values_RN: Array, *words: Array) -> Array:
        """Return the values, under masks if there are any."""
        return self.masked(values_RN, *words).reshape(len(values_RN), -1) if words else values_RN

    def _log_sum_exp(self, values_RN: Array, *words: Array) -> Array:
        rows_RN = self._rows(values_RN, *words)
        top_R = rows_RN.max(1, initial=-jnp.inf)
        safe_R = jnp.where(top_R == -jnp.inf, 0.0, top_R)
        return safe_R + jnp.log(jnp.exp(rows_RN - safe_R[:, None]).sum(1))

    def _log_sum_exp_in_one_pass(self, values_RN: Array, *words: Array) -> Array:
        """Sum the exponentials as they are; if a sum may have left float32's range, subtract the maxima and sum again."""
        exp = _bounded_exp if values_RN.size <= _CACHED else jnp.exp
        sum_R = exp(self._rows(values_RN, *words)).sum(1)
        safe = ((sum_R > 1e-20) & (sum_R < 1e20)).all()
        # The branch masks again, so that masked values need not be written.
        return lax.cond(safe, lambda *_: jnp.log(sum_R), self._log_sum_exp, values_RN, *words)

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


def _bounded_exp(values: Array) -> Array:
    """Return exp(x), at least e^-80 and at most e^80, with a relative error of 4e-6; e^80 for NaN.

    As 2^(whole + part): part by a polynomial, whole by bits. XLA writes it before it sums it, and both take two thirds of
    the time of its own exp, which it sums in place.
    """
    values = jnp.where(values < 80, values, np.float32(80))
    values = jnp.where(values > -80, values, np.float32(-80))
    scaled = values * np.float32(1 / math.log(2))
    whole = lax.round(scaled, lax.RoundingMethod.TO_NEAREST_EVEN)
    part = scaled - whole
    power = jnp.full_like(part, _POWERS[0])
    for factor in _POWERS[1:]:
        power = power * part + factor
    shift = lax.bitcast_convert_type(whole + np.float32(1.5 * 2**23), jnp.int32) << 23  # whole is in the lowest bits
    return lax.bitcast_convert_type(lax.bitcast_convert_type(power, jnp.int32) + shift, jnp.float32)


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
