"""The cost model that picks the cheapest way to compute the logits of legal codes.

    dense    all V codes of the level for all rows, then a gather          V x D weights read once
    gather   one dot product for each legal code of each row               C x D, each read by the row that needs it
    tokens   the same, ordered by code: a code's weights are read once     (distinct codes) x D, and C x D from the cache

normalize="full" needs every code, so it is always dense, without a table of R x V. A device takes "dense" or "gather".

Shapes: R rows, V codes, D hidden, C legal codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from leafbeam.ops.head.types import Normalize

HeadPath = Literal["dense", "gather", "tokens"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The size of one call.

    Args:
        distinct: The number of distinct legal codes; None leaves "tokens" out.
    """

    rows: int
    codes: int
    hidden: int
    legal: int
    distinct: int | None = None


@dataclass(frozen=True, kw_only=True)
class HeadCosts:
    """Nanoseconds per weight on one machine; benchmarks/head_costs.py measures them.

    The defaults approximate a server core of 2023.

    Args:
        dense: The time of a dense product, at each measured number of rows.
        gather: The time of a dot product whose row picks its own codes.
        token: The time for each weight of a distinct code.
        shared: The time for each further product with that weight.
        call: The fixed nanoseconds of a product, or of a kernel.
        margin: Another path is taken only if it needs less than this share of the dense product's time.
    """

    dense: tuple[tuple[int, float], ...] = ((1, 0.25), (16, 0.35), (128, 2.0))
    gather: float = 0.1
    token: float = 0.2
    shared: float = 0.05
    call: float = 5_000.0
    margin: float = 0.9

    def dense_at(self, rows: int) -> float:
        """Return the nanoseconds per weight of a dense product, interpolated between the measured numbers of rows."""
        below = self.dense[0]
        for above in self.dense:
            if rows <= above[0]:
                share = (rows - below[0]) / max(1, above[0] - below[0])
                return below[1] + share * (above[1] - below[1]) if rows > below[0] else above[1]
            below = above
        return below[1] * rows / below[0]

    def nanoseconds(self, work: Workload) -> Mapping[HeadPath, float]:
        """Return the expected time of each path."""
        expected: dict[HeadPath, float] = {
            "dense": self.call + self.dense_at(work.rows) * work.codes * work.hidden,
            "gather": self.call + self.gather * work.legal * work.hidden,
        }
        if work.distinct is not None:
            products = (self.token * work.distinct + self.shared * work.legal) * work.hidden
            expected["tokens"] = 2 * self.call + work.codes + products
        return expected


def cheapest_path(costs: HeadCosts, work: Workload, normalize: Normalize) -> HeadPath:
    """Return the path of the smallest expected time."""
    if normalize == "full":
        return "dense"
    expected = costs.nanoseconds(work)
    best = min(expected, key=lambda path: expected[path])
    return best if expected[best] < costs.margin * expected["dense"] else "dense"
