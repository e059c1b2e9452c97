"""PPV and the hash bitmap in JAX, the framework that STATIC's baselines ran in: as `ppv` and `hash_bitmap`, a table for each.

The dictionaries of `cpu_trie` and the keys of `marisa` have no form here: they are Python on the host, to which JAX would only
add a callback in each step.

Shapes: B requests, K beams, F candidates or bytes of bits a beam, V codes, M SIDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.hash_bitmap import SEED, WORD, HashBitmap, mixed
from benchmarks.peers.jax_rounds import JaxOffers, JaxSelection

__all__ = ["HashBitmapJax", "PpvJax", "columns_of"]

Array = jax.Array


def columns_of(codes_LM: NDArray[np.integer]) -> tuple[Array, ...]:
    """Copy sorted, distinct SIDs to JAX's device: an array a level, each with a code of padding."""
    return tuple(jnp.asarray(np.append(codes_M, codes_M.dtype.type(0))) for codes_M in codes_LM)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class PpvJax:
    """columns: of `columns_of`. num_candidates: the best logits of a beam that are verified; None for all V codes."""

    columns: Sequence[Array]
    num_candidates: int | None = field(default=None, metadata={"static": True})

    @property
    def exact(self) -> bool:
        """Return whether every code is verified."""
        return self.num_candidates is None

    def root(self, batch_size: int) -> tuple[Array, Array]:
        """All rows: int32 [B, 1] each."""
        lo_BK = jnp.zeros((batch_size, 1), jnp.int32)
        return lo_BK, jnp.full_like(lo_BK, len(self.columns[0]) - 1)

    def mask_step(self, level: int, state: tuple[Array, Array], log_p_BKV: Array) -> tuple[Any, JaxOffers]:
        """Search every candidate between the first and the last row of its prefix; keep those that are found."""
        column_M1, (lo_BK, hi_BK) = self.columns[level], state
        code_BKF: Array | None = None
        if self.num_candidates is not None and self.num_candidates < log_p_BKV.shape[2]:
            log_p_BKV, code_BKF = jax.lax.top_k(log_p_BKV, self.num_candidates)
        shape = log_p_BKV.shape
        wanted = jnp.broadcast_to(jnp.arange(shape[2], dtype=jnp.int32), shape) if code_BKF is None else code_BKF
        first_BKF = _lower_bound(
            column_M1, jnp.broadcast_to(lo_BK[:, :, None], shape), jnp.broadcast_to(hi_BK[:, :, None], shape), wanted
        )
        found = (first_BKF < hi_BK[:, :, None]) & (_at(column_M1, first_BKF) == wanted)
        return (hi_BK, first_BKF), JaxOffers(log_p_BKF=jnp.where(found, log_p_BKV, -jnp.inf), code_BKF=code_BKF)

    def advance(self, level: int, pending: tuple[Array, Array], best: JaxSelection) -> tuple[Array, Array]:
        """The rows of each kept beam: from its first row, already found, to the first of the next code."""
        hi_BK, first_BKF = pending
        requests, _, width = first_BKF.shape
        lo_BK = jnp.take_along_axis(first_BKF.reshape(requests, -1), best.parent_BK * width + best.slot_BK, axis=1)
        hi_BK = jnp.take_along_axis(hi_BK, best.parent_BK, axis=1)
        hi_BK = _lower_bound(self.columns[level], lo_BK, hi_BK, best.code_BK + 1)
        dead_BK = best.scores_BK == -jnp.inf
        return jnp.where(dead_BK, 0, lo_BK), jnp.where(dead_BK, 0, hi_BK)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class HashBitmapJax:
    """The arrays of a `HashBitmap`. A state is a hash of 32 bits for each beam."""

    bytes_W: Array

    @classmethod
    def of(cls, bitmap: HashBitmap) -> HashBitmapJax:
        """Copy a bitmap to JAX's device."""
        return cls(bytes_W=jnp.asarray(bitmap.bytes_W.cpu().numpy()))

    def root(self, batch_size: int) -> Array:
        """The hash of nothing, uint32 [B, 1]."""
        return jnp.full((batch_size, 1), SEED, jnp.uint32)

    def mask_step(self, level: int, state: Array, log_p_BKV: Array) -> tuple[Array, JaxOffers]:
        """Probe the bitmap for every code of every beam."""
        requests, beams, num_codes = log_p_BKV.shape
        byte_BKF = (state[:, :, None] + jnp.arange(-(-num_codes // 8), dtype=jnp.uint32)) & jnp.uint32(len(self.bytes_W) - 1)
        probed_BKF = _at(self.bytes_W, byte_BKF.astype(jnp.int32))[..., None]
        bit_8 = jnp.left_shift(jnp.uint8(1), jnp.arange(8, dtype=jnp.uint8))
        allowed_BKV = (probed_BKF & bit_8).reshape(requests, beams, -1)[:, :, :num_codes] != 0
        return state, JaxOffers(log_p_BKF=jnp.where(allowed_BKV, log_p_BKV, -jnp.inf))

    def advance(self, level: int, pending: Array, best: JaxSelection) -> Array:
        """Hash the kept codes onto their parents' hashes."""
        hash_BK = jnp.take_along_axis(pending, best.parent_BK, axis=1)
        return mixed(hash_BK ^ (best.code_BK + 1).astype(jnp.uint32), jnp.uint32(WORD))


def _lower_bound(column_M1: Array, lo: Array, hi: Array, wanted: Array) -> Array:
    """The first place of [lo, hi) whose code is at least `wanted`, else hi; as many halvings as the widest range takes."""

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        lo, hi = bounds
        middle = (lo + hi) >> 1
        less = (_at(column_M1, middle) < wanted) & (lo < hi)
        return jnp.where(less, middle + 1, lo), jnp.where(less, hi, middle)

    return jax.lax.while_loop(lambda bounds: jnp.any(bounds[0] < bounds[1]), halve, (lo, hi))[0]


def _at(array: Array, index: Array) -> Array:
    return array.at[index].get(mode="promise_in_bounds")
