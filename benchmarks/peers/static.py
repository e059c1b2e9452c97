"""STATIC (Su et al., 2026) in numpy and plain torch: the trie as a CSR matrix of [token, next node], dense first levels.

    build: sort the SIDs; number the distinct prefixes of each length; one [token, next] row for each edge (§4.2)
    step:  a dense look-up on the first d levels, then a slice of the level's largest branch factor for every beam, masked to
           its own children (Algorithm 2)

Two forms of the deep levels. Lean: the candidates are ranked straight from the padded slice, which only makes this peer faster.
`scatter`: they are written into a [rows, V] mask that the top-k then reads, as Algorithm 2 and Appendix E say.
Exact while every request has at least K legal candidates: short answers are not part of the algorithm.

Shapes: B requests, K beams, R rows (B x K), V codes, L levels, N items, E edges, S nodes, F the level's largest branch factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.peers.csr import CsrArrays
from benchmarks.peers.peer import Offers, Selection

__all__ = ["StaticIndex", "StaticState", "build_arrays"]

_DENSE_LEVELS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticState:
    """node_BK: int64, the node of each beam, reached by `level` codes."""

    level: int
    node_BK: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticPending:
    """The next node of each offer: of every pair of codes where the level is dense, of every slot where it is sliced."""

    level: int
    node_BK: Tensor
    code_BKF: Tensor | None = None
    next_BKF: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticIndex:
    """edges_E2: int32 [token, next node]; row_S1: integers; branches: largest branch factor of each level."""

    edges_E2: Tensor
    row_S1: Tensor
    branches: tuple[int, ...]
    first_V: Tensor
    second_VV: Tensor | None
    second_node_VV: Tensor | None
    codebook_size: int
    dense_levels: int = _DENSE_LEVELS
    scatter: bool = False
    exact: bool = True

    @classmethod
    def build(cls, codes_NL: NDArray[np.integer], codebook_size: int) -> StaticIndex:
        """Build from an unsorted table with numpy; at least three levels, all of one codebook size."""
        arrays = build_arrays(codes_NL, codebook_size)
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if name != "branches"}
        branches = tuple(int(branch) for branch in arrays["branches"])
        return cls(
            edges_E2=tensors["edges_E2"],
            row_S1=tensors["row_S1"],
            branches=branches,
            first_V=tensors["first_V"],
            second_VV=tensors["second_VV"],
            second_node_VV=tensors["second_node_VV"],
            codebook_size=codebook_size,
        )

    @classmethod
    def of(cls, arrays: CsrArrays, device: torch.device | str = "cpu", *, scatter: bool = False) -> StaticIndex:
        """View (or copy to a device) arrays that were made from a sorted table."""
        second = None if arrays.second_VV is None else torch.from_numpy(arrays.second_VV).to(device)
        second_node = None if arrays.second_node_VV is None else torch.from_numpy(arrays.second_node_VV).to(device)
        return cls(
            edges_E2=torch.from_numpy(arrays.edges_E2).to(device),
            row_S1=torch.from_numpy(arrays.row_S1).to(device),
            branches=arrays.branches,
            first_V=torch.from_numpy(arrays.first_V).to(device),
            second_VV=second,
            second_node_VV=second_node,
            codebook_size=arrays.codebook_size,
            dense_levels=arrays.dense_levels,
            scatter=scatter,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, with the dense mask counted as bits (the paper's Appendix B) and row pointers as int32."""
        dense = self.first_V.numel() // 8
        if self.second_VV is not None and self.second_node_VV is not None:
            dense += self.second_VV.numel() // 8 + self.second_node_VV.nbytes
        return self.edges_E2.nbytes + self.row_S1.numel() * 4 + dense

    def root(self, batch_size: int) -> StaticState:
        """No codes yet."""
        return StaticState(level=0, node_BK=torch.zeros(batch_size, 1, dtype=torch.int64, device=self.edges_E2.device))

    def mask_step(self, state: StaticState, log_p_BKV: Tensor) -> tuple[StaticPending, Offers]:
        """A dense look-up, or the vectorised node-transition kernel (Algorithm 2)."""
        level, node_BK = state.level, state.node_BK
        if level < self.dense_levels:
            if level == 0:
                mask = self.first_V
            else:
                assert self.second_VV is not None
                mask = self.second_VV[node_BK]
            offers = Offers(log_p_BKF=torch.where(mask, log_p_BKV, -torch.inf))
            return StaticPending(level=level, node_BK=node_BK), offers
        code_BKF, next_BKF, log_p_BKF = self.transition(node_BK, log_p_BKV, self.branches[level])
        pending = StaticPending(level=level, node_BK=node_BK, code_BKF=code_BKF, next_BKF=next_BKF)
        if self.scatter:
            size = log_p_BKV.shape[2]
            masked = torch.full((*log_p_BKV.shape[:2], size + 1), -torch.inf, device=log_p_BKV.device)
            into_BKF = torch.where(log_p_BKF == -torch.inf, size, code_BKF)  # what is not legal goes to a column of its own
            return pending, Offers(log_p_BKF=masked.scatter_(2, into_BKF, log_p_BKF)[..., :size])
        return pending, Offers(log_p_BKF=log_p_BKF, code_BKF=code_BKF)

    def transition(self, node_BK: Tensor, log_p_BKV: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Algorithm 2, phases 1 to 3: (codes, next nodes, log-probabilities) of `width` slots from each node's first edge."""
        begin_BK = self.row_S1[node_BK]
        children_BK = self.row_S1[node_BK + 1] - begin_BK
        slot_F = torch.arange(width, device=node_BK.device)
        slice_BKF2 = self.edges_E2[begin_BK[:, :, None] + slot_F]
        code_BKF, next_BKF = slice_BKF2[..., 0].long(), slice_BKF2[..., 1]
        log_p_BKF = torch.where(slot_F < children_BK[:, :, None], log_p_BKV.gather(2, code_BKF), -torch.inf)
        return code_BKF, next_BKF, log_p_BKF

    def advance(self, pending: StaticPending, best: Selection) -> StaticState:
        """The node of each selected beam."""
        level = pending.level + 1
        if pending.next_BKF is not None and pending.code_BKF is not None:
            rows, width = pending.next_BKF.shape[0], pending.next_BKF.shape[2]
            slot_BK = best.slot_BK
            if self.scatter:  # an offer was a code: its slot is the first that has it, the node's own children come first
                codes_BKF = pending.code_BKF.gather(1, best.parent_BK[:, :, None].expand(-1, -1, width))
                slot_BK = (codes_BKF == best.code_BK[:, :, None]).byte().argmax(dim=2)
            at_BK = best.parent_BK * width + slot_BK
            node_BK = pending.next_BKF.reshape(rows, -1).gather(1, at_BK).long()
            return StaticState(level=level, node_BK=torch.where(best.scores_BK == -torch.inf, 0, node_BK))
        if pending.level == 0:
            return StaticState(level=level, node_BK=best.code_BK)
        assert self.second_node_VV is not None
        node_BK = self.second_node_VV[pending.node_BK.gather(1, best.parent_BK), best.code_BK]
        return StaticState(level=level, node_BK=node_BK.long())


def build_arrays(codes_NL: NDArray[np.integer], codebook_size: int) -> dict[str, NDArray[Any]]:
    """The vectorised construction: lexsort, then a few passes for each level."""
    table = codes_NL[np.lexsort(codes_NL.T[::-1])].astype(np.int32, copy=False)
    size, levels = table.shape
    assert levels > _DENSE_LEVELS
    changed = table[1:] != table[:-1]
    first_change_N = np.full(size, levels, np.int8)
    first_change_N[0] = 0
    differs = changed.any(axis=1)
    first_change_N[1:][differs] = changed[differs].argmax(axis=1)
    # Nodes of length-t prefixes are numbered level by level; a first code c is node c, the leaves need no number.
    node_N = table[:, 0].astype(np.int32)
    next_free = codebook_size
    parents: list[NDArray[np.int32]] = []
    edges: list[NDArray[np.int32]] = []
    branches = [int(np.unique(table[:, 0]).size)]
    first_V = np.zeros(codebook_size, np.bool_)
    first_V[table[:, 0]] = True
    second_VV = np.zeros((codebook_size, codebook_size), np.bool_)
    second_node_VV = np.zeros((codebook_size, codebook_size), np.int32)
    for level in range(1, levels):
        starts = first_change_N <= level
        child_N = np.cumsum(starts, dtype=np.int32) + np.int32(next_free - 1)
        parent = node_N[starts]
        branches.append(int(np.bincount(parent - parent[0]).max()))
        if level < _DENSE_LEVELS:
            second_VV[table[starts, 0], table[starts, 1]] = True
            second_node_VV[table[starts, 0], table[starts, 1]] = child_N[starts]
        else:
            parents.append(parent)
            edges.append(np.stack([table[starts, level], child_N[starts]], axis=1))
        node_N, next_free = child_N, int(child_N[-1]) + 1
    all_parents = np.concatenate(parents)
    row_S1 = np.zeros(int(all_parents[-1]) + 2, np.int64)
    np.cumsum(np.bincount(all_parents), out=row_S1[1:])
    padding = np.full((max(branches), 2), codebook_size - 1, np.int32)
    edges_E2 = np.ascontiguousarray(np.concatenate([*edges, padding]))
    return {
        "edges_E2": edges_E2,
        "row_S1": row_S1,
        "branches": np.array(branches),
        "first_V": first_V,
        "second_VV": second_VV,
        "second_node_VV": second_node_VV,
    }
