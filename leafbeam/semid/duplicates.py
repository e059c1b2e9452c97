"""Vectors that are nearly equal: codes that tell them apart describe only noise. Shapes: N items, D dimensions, n rows
of a sample.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SAMPLE = 2000
_OF_SPREAD, _OF_LENGTH = 1e-3, 1e-4  # vectors nearer than that are nearly equal


@dataclass(frozen=True, kw_only=True, slots=True)
class NearDuplicates:
    """Groups of nearly equal vectors, in a sample.

    `sample` is the number of rows drawn, `distinct` the number of groups, `largest` the number of rows of the largest group,
    and `row` one of them, in the whole matrix.
    """

    sample: int
    distinct: int
    largest: int
    row: int

    @classmethod
    def of(cls, vectors_ND: NDArray[np.float32]) -> "NearDuplicates":
        """Group a sample of the rows, each with all rows that are nearly equal to the group's first; this costs n^2 D."""
        rows = np.arange(len(vectors_ND))
        if len(rows) > _SAMPLE:
            rows = np.sort(np.random.default_rng(0).choice(len(rows), _SAMPLE, replace=False))
        drawn_nD = vectors_ND[rows].astype(np.float64)
        centred_nD = drawn_nD - drawn_nD.mean(axis=0)
        spread, length = ((values**2).sum(axis=1).mean() for values in (centred_nD, drawn_nD))
        limit = max(_OF_SPREAD**2 * spread, _OF_LENGTH**2 * length)
        square_n = (centred_nD**2).sum(axis=1)
        group_n = np.full(len(rows), -1)
        for row in range(len(rows)):
            if group_n[row] < 0:
                distance_n = square_n + square_n[row] - 2 * (centred_nD @ centred_nD[row])
                group_n[(group_n < 0) & (distance_n <= limit)] = row
                group_n[row] = row
        leaders, sizes = np.unique(group_n, return_counts=True)
        return cls(
            sample=len(rows), distinct=len(leaders), largest=int(sizes.max()), row=int(rows[leaders[int(sizes.argmax())]])
        )

    @property
    def is_degenerate(self) -> bool:
        """Return whether fewer than half of the vectors differ, or more than a twentieth are nearly equal."""
        return self.largest > 10 and (self.distinct < self.sample / 2 or self.largest > self.sample / 20)
