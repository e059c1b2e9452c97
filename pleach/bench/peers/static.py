"""STATIC (Su et al., 2026) in numpy and plain torch: the trie as a CSR matrix of [token, next node], dense first two layers.

    build: sort the SIDs; number the distinct prefixes of each length; one [token, next] row for each edge (§4.2)
    step:  log-softmax; dense look-up on the first two levels, then a slice of the level's largest branch factor for every
           beam, masked to its own children (Algorithm 2); top-K over beams x slice (Algorithm 1)

The candidates are ranked straight from the padded slice; the paper's scatter to a [rows, V] mask is left out, which only makes
this peer faster. Exact while every request has at least K legal candidates: short answers are not part of the algorithm.

Shapes: B requests, K beams, V codes, L levels, N items, E edges, S nodes, F the level's largest branch factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["StaticIndex", "StaticState", "build_arrays", "step"]

_DENSE_LEVELS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticIndex:
    """edges_E2: int32 [token, next node]; row_S1: int64; branches: largest branch factor of each level."""

    edges_E2: Tensor
    row_S1: Tensor
    branches: tuple[int, ...]
    first_V: Tensor
    second_VV: Tensor
    second_node_VV: Tensor
    codebook_size: int

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

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, with the dense mask counted as bits (the paper's Appendix B) and row pointers as int32."""
        dense = self.second_VV.numel() // 8 + self.second_node_VV.nbytes + self.first_V.numel() // 8
        return self.edges_E2.nbytes + self.row_S1.numel() * 4 + dense


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


@dataclass(frozen=True, kw_only=True, eq=False)
class StaticState:
    """Beams: node_BK (int64), scores_BK, and how they came about."""

    node_BK: Tensor
    scores_BK: Tensor
    parent_BK: Tensor
    code_BK: Tensor

    @classmethod
    def root(cls, batch_size: int) -> StaticState:
        zero = torch.zeros(batch_size, 1, dtype=torch.int64)
        return cls(node_BK=zero, scores_BK=torch.zeros(batch_size, 1), parent_BK=zero, code_BK=zero)


@torch.inference_mode()
def step(index: StaticIndex, level: int, state: StaticState, logits_BKV: Tensor, num_beams: int) -> StaticState:
    """One round: log-softmax, constrain, select."""
    batch_size, rows = state.node_BK.shape
    log_p_RV = torch.log_softmax(logits_BKV, dim=-1).reshape(batch_size * rows, -1)
    node_R = state.node_BK.reshape(-1)
    if level < _DENSE_LEVELS:
        mask = index.first_V if level == 0 else index.second_VV[node_R]
        # The best K of each row contain the best K of all rows.
        width = min(num_beams, index.codebook_size)
        scores_RF, code_RF = torch.where(mask, log_p_RV, -torch.inf).topk(width, dim=-1)
        next_RF = code_RF if level == 0 else index.second_node_VV[node_R[:, None], code_RF]
    else:
        width = index.branches[level]
        begin_R = index.row_S1[node_R]
        children_R = index.row_S1[node_R + 1] - begin_R
        slot_F = torch.arange(width)
        slice_RF2 = index.edges_E2[begin_R[:, None] + slot_F]
        code_RF, next_RF = slice_RF2[..., 0].long(), slice_RF2[..., 1]
        scores_RF = torch.where(slot_F < children_R[:, None], log_p_RV.gather(1, code_RF), -torch.inf)
    scores = (state.scores_BK[:, :, None] + scores_RF.view(batch_size, rows, width)).view(batch_size, -1)
    best, at = scores.topk(min(num_beams, scores.shape[1]), dim=-1)
    return StaticState(
        node_BK=next_RF.reshape(batch_size, -1).gather(1, at).long(),
        scores_BK=best,
        parent_BK=at // width,
        code_BK=code_RF.reshape(batch_size, -1).gather(1, at),
    )
