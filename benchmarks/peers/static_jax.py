"""STATIC in JAX, the paper's own framework, as a peer, lean or with the scattered mask: see `benchmarks.peers.static`.

Shapes: B requests, K beams, V codes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.jax_rounds import JaxOffers, JaxSelection
from benchmarks.peers.static import advanced, offered, sliced
from leafbeam.ops.constrain.namespaces.jax import JaxNamespace, register
from leafbeam.ops.constrain.static.matrix import TransitionMatrix
from leafbeam.ops.constrain.static.step import LevelTables, level_tables

__all__ = ["StaticJax"]

Array = jax.Array
_XP = JaxNamespace()
register(LevelTables, static=["size", "max_branch", "first_in", "first_out"])


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True, eq=False)
class StaticJax:
    """The tables of each level, and the form."""

    levels: tuple[LevelTables, ...]
    scatter: bool = field(default=False, metadata={"static": True})

    @classmethod
    def of(cls, matrix: TransitionMatrix, *, scatter: bool = False) -> StaticJax:
        """Copy the arrays to JAX's device."""
        return cls(levels=level_tables(_XP, matrix, None), scatter=scatter)

    def root(self, batch_size: int) -> Array:
        """No codes yet: int32 [B, 1] nodes."""
        return jnp.full((batch_size, 1), self.levels[0].first_in, jnp.int32)

    def mask_step(self, level: int, state: Array, log_p_BKV: Array) -> tuple[Any, JaxOffers]:
        """A dense look-up, or the vectorised node transition kernel."""
        moves, log_p_BKF, code_BKF = offered(_XP, self.levels[level], state, log_p_BKV, self.scatter)
        return (state, moves), JaxOffers(log_p_BKF=log_p_BKF, code_BKF=code_BKF)

    def transition(self, node_BK: Array, log_p_BKV: Array, width: int) -> tuple[Array, Array, Array]:
        """See `static.sliced`, at the last level."""
        return sliced(_XP, self.levels[-1], node_BK, log_p_BKV, width)

    def advance(self, level: int, pending: Any, best: JaxSelection) -> Array:
        """The node of each selected beam."""
        node_BK, moves = pending
        return advanced(_XP, self.levels[level], node_BK, moves, best, self.scatter)
