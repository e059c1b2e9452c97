"""Items with equal codes, and the strategies that make their SIDs unique.

Shapes: N items, L levels, V codes of a level, D dimensions, M items of a prefix.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from leafbeam.errors import ArgumentError, CodesError, check_choice, counted

_ROUNDS, _SHARPNESS = 50, 20.0  # of the transport plan

Assignment = Literal["free", "hungarian", "sinkhorn"]


def group_sizes(codes_NL: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the number of items of each SID that occurs."""
    if len(codes_NL) == 0:
        return np.empty(0, np.int64)
    return np.unique(codes_NL, axis=0, return_counts=True)[1].astype(np.int64)


def add_level(codes_NL: NDArray[np.int64], priority_N: NDArray[np.number] | None = None) -> tuple[NDArray[np.int64], int]:
    """Return the codes with one more level, and that level's size. The level numbers the items of each SID by
    descending priority, then by row.

    (TIGER, section 3.1.)
    """
    num_items = len(codes_NL)
    if num_items == 0:
        return np.concatenate([codes_NL, np.empty((0, 1), np.int64)], axis=1), 1
    if priority_N is not None and len(priority_N) != num_items:
        raise ArgumentError(
            f"{counted(len(priority_N), 'priority', 'priorities')} for {counted(num_items, 'item')}: expected one for each item"
        )
    group_N = np.unique(codes_NL, axis=0, return_inverse=True)[1].reshape(-1)
    key_N = np.zeros(num_items) if priority_N is None else -np.asarray(priority_N, np.float64)
    sort_N = np.lexsort((key_N, group_N))  # stable: equal priorities keep the order of rows
    sizes = np.bincount(group_N)
    starts = np.cumsum(sizes) - sizes
    number_N = np.empty(num_items, np.int64)
    number_N[sort_N] = np.arange(num_items) - np.repeat(starts, sizes)
    return np.column_stack([codes_NL, number_N]), int(sizes.max())


def spread_level(codes_NL: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the codes with one more level of `size` codes. They differ within a prefix, and all are used about equally
    often.

        for the number i of each item in the order of its prefix: last code = i modulo size

    The codes of a residual are shared by similar items, which a model can then hardly tell apart. The codes of this
    level are shared by items that have nothing in common. Raises CodesError if more items share a prefix than there are
    codes.
    """
    largest = int(group_sizes(codes_NL).max(initial=0))
    if largest > size:
        raise CodesError(
            f"{counted(largest, 'item shares', 'items share')} a prefix, but the level has {counted(size, 'code')}: "
            f"give it at least {largest:,}"
        )
    last_N = np.empty(len(codes_NL), np.int64)
    last_N[np.lexsort(codes_NL.T[::-1])] = np.arange(len(codes_NL)) % size
    return np.column_stack([codes_NL, last_N])


def assign_free_codes(
    codes_NL: NDArray[np.int64],
    codebook_sizes: tuple[int, ...],
    residuals_ND: NDArray[np.float32],
    last_centroids_VD: NDArray[np.float32],
    assignment: Assignment = "free",
) -> NDArray[np.int64]:
    """Give the colliding items of each prefix different last codes that are near their residuals. The first L - 1 codes
    stay.

    Prefixes without a collision keep their codes. Dead codes are used only when no others are free.

    Args:
        codes_NL: The codes.
        codebook_sizes: The number of codes of each level.
        residuals_ND: The residuals before the last level.
        last_centroids_VD: The centroids of the last level.
        assignment: "free" takes the nearest (item, code) pairs first; "hungarian" minimises the sum of squared distances;
            "sinkhorn" spreads items evenly by entropic optimal transport, then takes each item's most likely free code
            (LC-Rec). For M items of a prefix they cost M V log(M V), M^2 V and 50 M V.

    Raises:
        CodesError: If more items share a prefix than the last level has codes.
    """
    check_choice("assignment", assignment, Assignment)
    size, live = codebook_sizes[-1], len(last_centroids_VD)
    moved_NL = codes_NL.copy()
    if len(codes_NL) == 0:
        return moved_NL
    prefixes, prefix_N = np.unique(codes_NL[:, :-1], axis=0, return_inverse=True)
    prefix_N = prefix_N.reshape(-1)
    counts = np.bincount(prefix_N)
    if counts.max() > size:
        raise CodesError(
            f"{counted(counts.max(), 'item shares', 'items share')} the codes "
            f"{tuple(prefixes[counts.argmax()].tolist())}, but the last level has "
            f"{counted(size, 'code')}: use larger codebooks, or collision_strategy='level'"
        )
    for members in np.split(np.argsort(prefix_N, kind="stable"), np.cumsum(counts)[:-1]):
        if len(np.unique(codes_NL[members, -1])) == len(members):
            continue
        distance_MV = np.empty((len(members), size), np.float32)
        distance_MV[:, :live] = ((residuals_ND[members, None, :] - last_centroids_VD[None]) ** 2).sum(axis=2)
        distance_MV[:, live:] = 1e6 * (1 + distance_MV[:, :live].max())  # dead codes last
        if assignment == "hungarian":
            moved_NL[members, -1] = linear_sum_assignment(distance_MV)[1]
        else:
            cost_MV = distance_MV if assignment == "free" else -_sinkhorn(distance_MV, live)
            moved_NL[members, -1] = _greedy(cost_MV)
    return moved_NL


def _greedy(cost_MV: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return a different code for each row, with pairs taken in ascending order of cost."""
    code_M = np.full(len(cost_MV), -1, np.int64)
    taken_V = np.zeros(cost_MV.shape[1], np.bool_)
    for flat in np.argsort(cost_MV, axis=None, kind="stable"):
        row, code = divmod(int(flat), len(taken_V))
        if code_M[row] < 0 and not taken_V[code]:
            code_M[row], taken_V[code] = code, True
    return code_M


def _sinkhorn(distance_MV: NDArray[np.float32], live: int) -> NDArray[np.float64]:
    """Return the entropic transport plan of rows to columns with equal column loads; `live` marks columns with a centroid."""
    scale = float(np.median(distance_MV[:, :live])) or 1.0
    plan_MV = np.exp(-_SHARPNESS * (distance_MV - distance_MV.min(axis=1, keepdims=True)).astype(np.float64) / scale)
    for _ in range(_ROUNDS):
        plan_MV /= np.maximum(plan_MV.sum(axis=0, keepdims=True), 1e-300)
        plan_MV /= np.maximum(plan_MV.sum(axis=1, keepdims=True), 1e-300)
    return plan_MV
