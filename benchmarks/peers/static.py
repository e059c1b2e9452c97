"""STATIC (Su et al., 2026) as a peer: `leafbeam.ops.constrain.static` in the peers' protocols.

Two forms of the sparse levels. Lean: the candidates are ranked straight from the padded slice, which is not in the paper and
only makes this peer faster. `scatter`: they are projected into a [rows, V] mask that the top-k then reads, as in Algorithm 2
and Appendix E. Exact while every request has at least K legal candidates.

Shapes: B requests, K beams, R rows (B x K), V codes, F the level's largest branch factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.peers.peer import Offers, Selection
from leafbeam.ops.constrain.namespaces import NEG_INF, ArrayNamespace
from leafbeam.ops.constrain.namespaces.torch import TorchNamespace
from leafbeam.ops.constrain.static.matrix import TransitionMatrix
from leafbeam.ops.constrain.static.step import (
    LevelTables,
    Transitions,
    dense_lookup,
    level_tables,
    next_nodes,
    project,
    transition,
)

__all__ = ["StaticPeer", "StaticState", "advanced", "offered", "sliced"]

_XP = TorchNamespace()


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticState:
    """node_BK: int64, the node of each beam, reached by `level` codes."""

    level: int
    node_BK: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticPeer:
    """STATIC in torch. nbytes: the bytes of the matrix's arrays."""

    levels: tuple[LevelTables, ...]
    nbytes: int
    scatter: bool = False
    exact: bool = True

    @classmethod
    def of(cls, matrix: TransitionMatrix, device: torch.device | str = "cpu", *, scatter: bool = False) -> StaticPeer:
        """View the arrays, or copy them to a device."""
        return cls(levels=level_tables(_XP, matrix, torch.device(device)), nbytes=matrix.nbytes, scatter=scatter)

    def root(self, batch_size: int) -> StaticState:
        """No codes yet."""
        tables = self.levels[0]
        array = tables.edges_E2 if tables.mask_PH is None else tables.mask_PH
        return StaticState(level=0, node_BK=torch.full((batch_size, 1), tables.first_in, device=array.device))

    def mask_step(self, state: StaticState, log_p_BKV: Tensor) -> tuple[Any, Offers]:
        """A dense look-up, or the vectorised node transition kernel."""
        moves, log_p_BKF, code_BKF = offered(_XP, self.levels[state.level], state.node_BK, log_p_BKV, self.scatter)
        return (state, moves), Offers(log_p_BKF=log_p_BKF, code_BKF=code_BKF)

    def transition(self, node_BK: Tensor, log_p_BKV: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `sliced`, at the last level."""
        return sliced(_XP, self.levels[-1], node_BK, log_p_BKV, width)

    def advance(self, pending: Any, best: Selection) -> StaticState:
        """The node of each selected beam; 0 for a dead one."""
        state, moves = pending
        node_BK = advanced(_XP, self.levels[state.level], state.node_BK, moves, best, self.scatter)
        return StaticState(level=state.level + 1, node_BK=torch.where(best.scores_BK == NEG_INF, 0, node_BK))


def offered(
    xp: ArrayNamespace, tables: LevelTables, node_BK: Any, log_p_BKV: Any, scatter: bool
) -> tuple[Transitions | None, Any, Any]:
    """(slices of a sparse level, log-probabilities [B, K, offers], the codes of the offers, None for all codes in order)."""
    shape, node_R = log_p_BKV.shape[:2], node_BK.reshape(-1)
    log_p_RV = log_p_BKV.reshape(-1, log_p_BKV.shape[2])
    if tables.mask_PH is not None:
        return None, xp.where(dense_lookup(xp, tables, node_R), log_p_RV, NEG_INF).reshape(*shape, -1), None
    moves = transition(xp, tables, node_R)
    log_p_RF = xp.where(moves.legal_RF, xp.take_along(log_p_RV, moves.code_RF), NEG_INF)
    if scatter:
        return moves, project(xp, moves, log_p_RF, tables.size).reshape(*shape, -1), None
    return moves, log_p_RF.reshape(*shape, -1), moves.code_RF.reshape(*shape, -1)


def sliced(xp: ArrayNamespace, tables: LevelTables, node_BK: Any, log_p_BKV: Any, width: int) -> tuple[Any, Any, Any]:
    """Algorithm 2, phases 1 to 3: (codes, next nodes, log-probabilities) of `width` slots from each node's first edge."""
    shape, log_p_RV = log_p_BKV.shape[:2], log_p_BKV.reshape(-1, log_p_BKV.shape[2])
    moves = transition(xp, tables, node_BK.reshape(-1), width)
    log_p_RF = xp.where(moves.legal_RF, xp.take_along(log_p_RV, moves.code_RF), NEG_INF)
    return moves.code_RF.reshape(*shape, -1), moves.next_RF.reshape(*shape, -1), log_p_RF.reshape(*shape, -1)


def advanced(xp: ArrayNamespace, tables: LevelTables, node_BK: Any, moves: Transitions | None, best: Any, scatter: bool) -> Any:
    """The node of each selected beam. best: what a peer's `select` gave."""
    batch_size, num_beams = node_BK.shape
    row_BK = best.parent_BK + (xp.arange(batch_size, best.parent_BK) * num_beams)[:, None]
    if moves is not None and not scatter:  # an offer is a slot
        return xp.take(moves.next_RF, row_BK, best.slot_BK)
    return next_nodes(xp, tables, node_BK.reshape(-1), moves, row_BK, best.code_BK)
