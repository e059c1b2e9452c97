"""Items that were given the same codes, and ways to tell them apart.

Shapes: N items, L levels, V codes of a level, D dimensions.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from leafbeam.errors import ArgumentError, CodesError

__all__ = ["Assignment", "add_level", "group_sizes", "move_to_free_codes"]

Assignment = Literal["greedy", "hungarian", "sinkhorn"]


def group_sizes(codes_NL: NDArray[np.integer]) -> NDArray[np.int64]:
    """How many items share each SID that occurs."""
    if len(codes_NL) == 0:
        return np.empty(0, np.int64)
    return np.unique(codes_NL, axis=0, return_counts=True)[1].astype(np.int64)


def add_level(codes_NL: NDArray[np.int64], priority_N: NDArray[np.number] | None = None) -> tuple[NDArray[np.int64], int]:
    """Number the items of each SID 0, 1, 2, ... in a level of their own; returns the wider codes and that level's size.

    Within a SID the item of the highest priority (popularity, say) is 0, so that a low code means the same everywhere;
    without priorities, and among equal ones, the earlier row comes first. (TIGER, section 3.1.)
    """
    num_items = len(codes_NL)
    if num_items == 0:
        return np.concatenate([codes_NL, np.empty((0, 1), np.int64)], axis=1), 1
    if priority_N is not None and len(priority_N) != num_items:
        raise ArgumentError(f"{len(priority_N):,} priorities for {num_items:,} items: one an item")
    group_N = np.unique(codes_NL, axis=0, return_inverse=True)[1].reshape(-1)
    first = np.zeros(num_items) if priority_N is None else -np.asarray(priority_N, np.float64)
    sort_N = np.lexsort((first, group_N))  # stable: equal priorities keep the order of rows
    sizes = np.bincount(group_N)
    starts = np.cumsum(sizes) - sizes
    number_N = np.empty(num_items, np.int64)
    number_N[sort_N] = np.arange(num_items) - np.repeat(starts, sizes)
    return np.column_stack([codes_NL, number_N]), int(sizes.max())


def move_to_free_codes(
    codes_NL: NDArray[np.int64],
    codebook_sizes: tuple[int, ...],
    residuals_ND: NDArray[np.float32],
    last_centroids_VD: NDArray[np.float32],
    assignment: Assignment = "greedy",
) -> NDArray[np.int64]:
    """Give the items of each crowded prefix different last codes, near to what is left of their vectors.

    residuals_ND: what is left of each item's vector before the last level. Every item keeps its first L - 1 codes, so
    what it resembles does not change; prefixes without a collision are left alone. Dead codes are given last.

    assignment: "greedy" gives the nearest pairs first, so an item without a rival keeps its code; "hungarian" makes the sum
    of the squared distances least; "sinkhorn" shares the codes out evenly by optimal transport with entropy, then takes each
    item's most likely free one (LC-Rec's uniform semantic mapping). M items of a prefix cost M V log(M V), M^2 V and
    50 M V.
    Raises CodesError where more items share a prefix than the last level has codes.
    """
    if assignment not in get_args(Assignment):
        raise ArgumentError(f"assignment={assignment!r}: choose one of {', '.join(map(repr, get_args(Assignment)))}")
    size = codebook_sizes[-1]
    moved_NL = codes_NL.copy()
    if len(codes_NL) == 0:
        return moved_NL
    parents, parent_N = np.unique(codes_NL[:, :-1], axis=0, return_inverse=True)
    parent_N = parent_N.reshape(-1)
    crowd = np.bincount(parent_N)
    if crowd.max() > size:
        raise CodesError(
            f"{crowd.max():,} items share the codes {tuple(parents[crowd.argmax()].tolist())}, but the last level has "
            f"{size} codes: use larger codebooks, or repair='level'"
        )
    free_V = np.full((size, last_centroids_VD.shape[1]), 0.0, np.float32)
    free_V[: len(last_centroids_VD)] = last_centroids_VD
    sort_N = np.argsort(parent_N, kind="stable")
    for members in np.split(sort_N, np.cumsum(crowd)[:-1]):
        if len(np.unique(codes_NL[members, -1])) == len(members):
            continue
        distance_MV = ((residuals_ND[members, None, :] - free_V[None]) ** 2).sum(axis=2)
        distance_MV[:, len(last_centroids_VD) :] = 1e6 * (1 + distance_MV[:, : len(last_centroids_VD)].max())  # dead: last
        if assignment == "hungarian":
            moved_NL[members, -1] = linear_sum_assignment(distance_MV)[1]
        else:
            moved_NL[members, -1] = _greedy(
                distance_MV if assignment == "greedy" else -_sinkhorn(distance_MV, len(last_centroids_VD))
            )
    return moved_NL


def _greedy(distance_MV: NDArray[np.floating]) -> NDArray[np.int64]:
    """A different code for each row, taken in the order of distance."""
    rows, columns = distance_MV.shape
    given_M = np.full(rows, -1, np.int64)
    taken_V = np.zeros(columns, np.bool_)
    for flat in np.argsort(distance_MV, axis=None, kind="stable"):
        row, code = divmod(int(flat), columns)
        if given_M[row] < 0 and not taken_V[code]:
            given_M[row], taken_V[code] = code, True
    return given_M


def _sinkhorn(distance_MV: NDArray[np.float32], live: int, *, rounds: int = 50, sharpness: float = 20.0) -> NDArray[np.float64]:
    """How much of each row goes to each column when all live ones are loaded alike: optimal transport with entropy."""
    scale = float(np.median(distance_MV[:, :live])) or 1.0
    plan_MV = np.exp(-sharpness * (distance_MV - distance_MV.min(axis=1, keepdims=True)).astype(np.float64) / scale)
    for _ in range(rounds):
        plan_MV /= np.maximum(plan_MV.sum(axis=0, keepdims=True), 1e-300)
        plan_MV /= np.maximum(plan_MV.sum(axis=1, keepdims=True), 1e-300)
    return plan_MV
