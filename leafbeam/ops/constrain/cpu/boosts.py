"""The boosts of a batch in compiled loops: the largest boost below a beam, and what a child adds to its beam's score.

    a child's score = beam score + log probability + (largest boost below the child - largest below the beam)

What is added is never positive, so that a score without it bounds the score with it, and nothing else of a round changes. A
batch without boosts runs kernels that are compiled without them.

Shapes: S segments, B requests, K beams.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from leafbeam.index import ItemColumn, Trie
from leafbeam.index.bit_kernels import float32_at, rank
from leafbeam.index.node_maxima import NodeMaxima
from leafbeam.jit import njit
from leafbeam.ops.constrain.cpu.children import children_bounds, find_alive
from leafbeam.ops.constrain.levels import LISTING, LevelView
from leafbeam.ops.constrain.types import LOWEST


class BoostAddresses(NamedTuple):
    """The boosts of a batch at one level.

    Args:
        tables_SB: int64, the address of each request's float32 table for base and delta, 0 without a boost.
        weights_B: float32, what the values of the tables are multiplied with.
        bounds_BK: float32, the largest boost below each beam.
    """

    tables_SB: NDArray[np.int64]
    weights_B: NDArray[np.float32]
    bounds_BK: NDArray[np.float32]


class Boost(NamedTuple):
    """The boost of one request at one level: the tables of base and delta by the index of a child."""

    table: NDArray[np.float32]
    table_1: NDArray[np.float32]
    weight: float
    bounds_K: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchBoosts:
    """The boosts of a batch at all levels.

    Args:
        tables_LSB: int64, addresses as in `BoostAddresses`.
        roots_SB: float32, the largest value of each segment, not multiplied.
        weights_B: float32.
        held: Keeps the tables to which the addresses point.
    """

    tables_LSB: NDArray[np.int64]
    roots_SB: NDArray[np.float32]
    weights_B: NDArray[np.float32]
    held: tuple[tuple[NodeMaxima, ...], ...]

    @classmethod
    def of(cls, boosts: Sequence[ItemColumn | None], tries: Sequence[Trie]) -> "BatchBoosts":
        """Collect the addresses of a batch's boosts. Cost: a few passes over the items for a column that is new."""
        tables_LSB = np.zeros((tries[0].num_levels, 2, len(boosts)), np.int64)
        roots_SB, weights_B = np.zeros((2, len(boosts)), np.float32), np.zeros(len(boosts), np.float32)
        held: list[tuple[NodeMaxima, ...]] = []
        for request, column in enumerate(boosts):
            if column is None:
                continue
            maxima = column.bounds(tries)
            held.append(maxima)
            weights_B[request] = column.weight
            for number in range(2):  # one segment stands for both
                part = maxima[min(number, len(tries) - 1)]
                roots_SB[number, request] = part.root
                tables_LSB[:, number, request] = [table_n.ctypes.data for table_n in part.levels]
        return cls(tables_LSB=tables_LSB, roots_SB=roots_SB, weights_B=weights_B, held=tuple(held))

    def bounds(
        self, levels: Sequence[tuple[tuple[object, ...], ...]], level: int, lo_SBK: NDArray[np.int64], hi_SBK: NDArray[np.int64]
    ) -> NDArray[np.float32]:
        """Return the largest boost below the beams after a level (-1: the root), (B, K); 0 without one. Cost: a rank a beam."""
        bounds_BK = np.zeros(lo_SBK.shape[1:], np.float32)
        if level >= 0:
            bounds_of_beams(levels[level], self.tables_LSB[level], self.weights_B, lo_SBK, hi_SBK, bounds_BK)
            return bounds_BK
        roots_SB1 = self.roots_SB[: len(lo_SBK), :, None]
        largest_BK = np.where(hi_SBK > lo_SBK, roots_SB1, np.float32(-np.inf)).max(0)
        return self.weights_B[:, None] * np.where(np.isfinite(largest_BK), largest_BK, np.float32(0))

    def at(self, level: int, bounds_BK: NDArray[np.float32]) -> tuple[NDArray[np.generic], ...]:
        """Return the fields of `BoostAddresses` of a level."""
        return tuple(BoostAddresses(tables_SB=self.tables_LSB[level], weights_B=self.weights_B, bounds_BK=bounds_BK))


@njit(cache=True, nogil=True, _nrt=False)
def bounds_of_beams(levels, tables_SB, weights_B, lo_SBK, hi_SBK, bounds_BK):
    """Write the largest boost below each beam that ends at a level; one segment stands for both."""
    last = lo_SBK.shape[0] - 1
    for b in range(lo_SBK.shape[1]):
        if tables_SB[0, b] != 0:
            for k in range(lo_SBK.shape[2]):
                largest = _largest_below(levels[0], tables_SB[0, b], lo_SBK[0, b, k], hi_SBK[0, b, k])
                other = _largest_below(levels[1], tables_SB[1, b], lo_SBK[last, b, k], hi_SBK[last, b, k])
                largest = max(largest, other)
                bounds_BK[b, k] = np.float32(0.0) if largest == np.float32(-np.inf) else weights_B[b] * largest


@njit(nogil=True, _nrt=False)
def _largest_below(level, table, lo, hi):
    """Return the largest boost below a range of one segment, -inf if it is empty."""
    if lo >= hi:
        return np.float32(-np.inf)
    view, index = LevelView(*level), lo
    if view.layout == LISTING:
        index = rank(view.words, view.before, lo)
    return float32_at(table, index + 1)[index]


def boost_of(boosts, levels, request):
    """Return the `Boost` of a request; None without boosts."""
    raise NotImplementedError("compiled code only")


@overload(boost_of, jit_options={"_nrt": False})
def _boost_of(boosts, levels, request):
    def none(boosts, levels, request):
        return None

    def some(boosts, levels, request):
        given = BoostAddresses(*boosts)
        has_table = given.tables_SB[0, request] != 0
        table = float32_at(given.tables_SB[0, request], levels[0].num_leaves if has_table else 0)
        table_1 = float32_at(given.tables_SB[1, request], levels[1].num_leaves if has_table else 0)
        return Boost(table, table_1, given.weights_B[request], given.bounds_BK[request])

    return none if isinstance(boosts, types.NoneType) else some


def has_boost(search: types.NamedTuple) -> bool:
    """Return whether a kernel's `Search` is compiled with a boost, from its type."""
    return not isinstance(dict(zip(search.fields, search.types, strict=True))["boost"], types.NoneType)


def with_boost(search, ranges, beam, code, index, score, threshold):
    """Return the score of a child with its boost; -inf if it is then not above the threshold."""
    raise NotImplementedError("compiled code only")


@overload(with_boost, jit_options={"_nrt": False})
def _with_boost(search, ranges, beam, code, index, score, threshold):
    def same(search, ranges, beam, code, index, score, threshold):
        return score

    def boosted(search, ranges, beam, code, index, score, threshold):
        boost = search.boost
        if score == np.float32(-np.inf) or boost.weight == np.float32(0.0):
            return score
        value = _value_of(search, ranges, code, index)
        score = max(score + (boost.weight * value - boost.bounds_K[beam.number]), np.float32(LOWEST))
        return score if score > threshold else np.float32(-np.inf)

    return boosted if has_boost(search) else same


@njit(nogil=True, _nrt=False)
def _value_of(search, ranges, code, index):
    """Return the largest value below a child, which may be in both segments."""
    if index < 0:
        return search.boost.table_1[-1 - index]
    value = search.boost.table[index]
    if ranges.lo_1 < ranges.hi_1:
        begin, end = children_bounds(search.levels[1], ranges.lo_1, ranges.hi_1)
        found = find_alive(search.levels[1], search.allowed[1], begin, end, code)
        if found >= 0:
            return max(value, search.boost.table_1[found])
    return value
