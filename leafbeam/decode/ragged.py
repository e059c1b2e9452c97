"""A round over ragged children: what searches that read scores of legal codes alone share.

Shapes: S segments, B requests, K beams, R = B x K rows, C children of all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.ops.backend import BoundIndex, to_numpy
from leafbeam.ops.constrain import Beams


@dataclass(frozen=True, kw_only=True, eq=False)
class Children:
    """The legal children of every beam, by row (request x beams + beam), ascending by code. shape: (B, K).

    indptr_R1: where each row's children begin, int64.
    """

    indptr_R1: NDArray[np.int64]
    row_C: NDArray[np.int64]
    code_C: NDArray[np.int64]
    lo_SC: NDArray[np.int64]
    hi_SC: NDArray[np.int64]
    shape: tuple[int, int]

    @classmethod
    def of(cls, bound: BoundIndex, level: int, beams: Beams[Any], filters: Any) -> Children:
        """Those of a level. Cost: a few reads a child, on the host after."""
        ops: Any = bound.ops
        lo, hi = bound.to_device(beams.lo), bound.to_device(beams.hi)
        children = ops.children(bound.arrays, level, lo, hi, filters)
        indptr_R1, code_C, lo_SC, hi_SC = (to_numpy(array) for array in children)
        row_C = np.repeat(np.arange(len(indptr_R1) - 1), np.diff(indptr_R1))
        return cls(indptr_R1=indptr_R1, row_C=row_C, code_C=code_C, lo_SC=lo_SC, hi_SC=hi_SC, shape=beams.scores.shape)

    def best(self, values_C: NDArray[np.floating[Any]], num_beams: int) -> NDArray[np.int64]:
        """(B, num_beams): each request's children of the largest values, ties by (beam, code); -1 where fewer exceed -inf."""
        batch_size, num_rows = self.shape
        slots = np.full((batch_size, num_beams), -1, np.int64)
        bounds = self.indptr_R1[::num_rows].tolist()
        for request, (begin, end) in enumerate(pairwise(bounds)):
            values_c = values_C[begin:end]
            kept = np.flatnonzero(values_c > -np.inf)
            cut = len(kept) - num_beams
            if cut > 0:
                kth = np.partition(values_c[kept], cut)[cut]
                above, equal = kept[values_c[kept] > kth], kept[values_c[kept] == kth]
                kept = np.concatenate([above, equal[: num_beams - len(above)]])
            slots[request, : len(kept)] = begin + kept[np.lexsort((kept, -values_c[kept]))]
        return slots

    def beams(self, slots_BK: NDArray[np.int64], scores_C: NDArray[np.floating[Any]]) -> Beams[NDArray[Any]]:
        """The children at these slots as beams; -1 is a dead one. There is at least one child: a live beam has one."""
        live = slots_BK >= 0
        num_rows = self.shape[1]
        return Beams(
            scores=np.where(live, scores_C[slots_BK], -np.inf).astype(scores_C.dtype),
            parent=np.where(live, self.row_C[slots_BK] % num_rows, 0),
            code=np.where(live, self.code_C[slots_BK], 0),
            lo=np.where(live, self.lo_SC[:, slots_BK], 0),
            hi=np.where(live, self.hi_SC[:, slots_BK], 0),
            num_valid=live.sum(axis=1),
        )


def log_softmax(values_C: NDArray[np.float64], row_C: NDArray[np.int64], temperature: float = 1.0) -> NDArray[np.float64]:
    """log-softmax of the values / temperature within each run of equal rows; all -inf where a row has nothing else."""
    if len(values_C) == 0:
        return values_C
    starts = np.flatnonzero(np.diff(row_C, prepend=-1))
    sizes = np.diff(np.append(starts, len(row_C)))
    top = np.maximum.reduceat(values_C, starts)
    top = np.where(top > -np.inf, top, 0.0)
    with np.errstate(over="ignore"):  # at a tiny temperature -inf for all but the best, which is then certain
        shifted_C = (values_C - np.repeat(top, sizes)) / temperature
    total = np.add.reduceat(np.exp(shifted_C), starts)
    return shifted_C - np.repeat(np.log(np.where(total > 0, total, 1.0)), sizes)
