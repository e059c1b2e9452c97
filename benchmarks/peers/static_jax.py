"""STATIC in JAX, the paper's own framework: the same arrays as `static`, its vectorised node transition under `jax.jit`.

Shapes: B requests, K beams, V codes, E edges, S nodes, F the level's largest branch factor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.csr import CsrArrays
from benchmarks.peers.jax_rounds import JaxOffers, JaxSelection

__all__ = ["StaticJax"]

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class StaticJax:
    """As `static.StaticIndex`, with int32 everywhere: JAX runs without 64-bit integers by default."""

    edges_E2: Array
    row_S1: Array
    first_V: Array
    second_VV: Array | None
    second_node_VV: Array | None
    branches: tuple[int, ...] = field(metadata={"static": True})
    dense_levels: int = field(metadata={"static": True})

    @classmethod
    def of(cls, arrays: CsrArrays) -> StaticJax:
        """View the arrays; nothing is copied on a CPU."""
        return cls(
            edges_E2=_view(arrays.edges_E2),
            row_S1=_view(arrays.row_S1),
            first_V=_view(arrays.first_V),
            second_VV=None if arrays.second_VV is None else _view(arrays.second_VV),
            second_node_VV=None if arrays.second_node_VV is None else _view(arrays.second_node_VV),
            branches=arrays.branches,
            dense_levels=arrays.dense_levels,
        )

    def root(self, batch_size: int) -> Array:
        """No codes yet: int32 [B, 1] nodes."""
        return jnp.zeros((batch_size, 1), jnp.int32)

    def mask_step(self, level: int, state: Array, log_p_BKV: Array) -> tuple[tuple[Array, Array | None], JaxOffers]:
        """A dense look-up, or the vectorised node-transition kernel (Algorithm 2)."""
        if level < self.dense_levels:
            if level == 0:
                mask = self.first_V
            else:
                assert self.second_VV is not None
                mask = self.second_VV[state]
            return (state, None), JaxOffers(log_p_BKF=jnp.where(mask, log_p_BKV, -jnp.inf))
        code_BKF, next_BKF, log_p_BKF = self.transition(state, log_p_BKV, self.branches[level])
        return (state, next_BKF), JaxOffers(log_p_BKF=log_p_BKF, code_BKF=code_BKF)

    def transition(self, node_BK: Array, log_p_BKV: Array, width: int) -> tuple[Array, Array, Array]:
        """Algorithm 2, phases 1 to 3: (codes, next nodes, log-probabilities) of `width` slots from each node's first edge."""
        begin_BK = self.row_S1[node_BK]
        children_BK = self.row_S1[node_BK + 1] - begin_BK
        slot_F = jnp.arange(width, dtype=jnp.int32)
        at_BKF = begin_BK[:, :, None] + slot_F
        slice_BKF2 = jnp.take(self.edges_E2, at_BKF, axis=0, mode="clip")
        code_BKF, next_BKF = slice_BKF2[..., 0], slice_BKF2[..., 1]
        valid_BKF = slot_F < children_BK[:, :, None]
        log_p_BKF = jnp.where(valid_BKF, jnp.take_along_axis(log_p_BKV, code_BKF, axis=2, mode="clip"), -jnp.inf)
        return code_BKF, jnp.where(valid_BKF, next_BKF, 0), log_p_BKF

    def advance(self, level: int, pending: tuple[Array, Array | None], best: JaxSelection) -> Array:
        """The node of each selected beam."""
        node_BK, next_BKF = pending
        if next_BKF is not None:
            at_BK = best.parent_BK * next_BKF.shape[2] + best.slot_BK
            return jnp.take_along_axis(next_BKF.reshape(next_BKF.shape[0], -1), at_BK, axis=1)
        if level == 0:
            return best.code_BK
        assert self.second_node_VV is not None
        return self.second_node_VV[jnp.take_along_axis(node_BK, best.parent_BK, axis=1), best.code_BK]


def _view(array: Any) -> Array:
    """A JAX array over numpy's memory where the platform allows it (an aligned array on a CPU), else a copy."""
    return jax.dlpack.from_dlpack(array)
