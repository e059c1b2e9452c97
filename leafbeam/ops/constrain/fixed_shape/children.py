"""The children of many leaf ranges at once, in arrays of fixed shapes: their codes, which are alive, and their ranges.

    short range: the boundaries of its 32 leaves and the filter's bits there are two windows; lane i is the leaf lo + i. With
                 `own` the bits from lane i to the next boundary, the child at lane i is alive iff `filter & own` has a bit
    long range:  lane i is entry begin + i of its listing, alive iff the filter's bit of that entry is set
    wide range:  a mask over the codes in place of lanes; the entry of a code is begin + the mask's bits before it

Shapes: B requests, R rows (beams of all requests), W lanes, H words of 32 codes, D denied leaves, K selected beams.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from leafbeam.ops.constrain.fixed_shape.arrays import LevelArrays, LevelBoosts, LevelFilters
from leafbeam.ops.constrain.fixed_shape.capacity import SHORT
from leafbeam.ops.constrain.namespaces import CHUNK, NEG_INF, Array, ArrayNamespace


class Lanes(NamedTuple):
    """Candidates of each row: numbers code, start, end (the leaf range); legal: whether it is a child with an allowed leaf.

    Codes ascend along a row; lanes beyond the range have code V. boost_RW: float32, the largest boost below each child; None
    without boosts.
    """

    code_RW: Array
    start_RW: Array
    end_RW: Array
    legal_RW: Array
    boost_RW: Any = None


class Children(NamedTuple):
    """The children of R ranges in one segment; parts that the level has no ranges for are None.

    Args:
        lanes: The candidates of the short ranges and of the listed ones.
        words_RH: The legal codes of a wide range, 0 in other rows.
        begin_R, count_R, mask_R: First entry, number of entries and mask (-1 for none) of a long range.
        bound_R: float32, the largest boost below each range, -inf for an empty one; None without boosts.
    """

    lanes: Lanes | None
    words_RH: Array | None = None
    begin_R: Any = None
    count_R: Any = None
    mask_R: Any = None
    bound_R: Any = None


class Winners(NamedTuple):
    """The children that a step selects for each request: the row and the code of each.

    live_BK: whether the slot has one. lane_BK: its lane, if the candidates were the lanes of one segment; else None.
    """

    row_BK: Array
    code_BK: Array
    live_BK: Array
    lane_BK: Any = None


class RowBoosts(NamedTuple):
    """The boosts of each row: its request's row of the stacks, and its weight."""

    levels: LevelBoosts
    slot_R: Array
    weight_R: Array

    @classmethod
    def of(cls, xp: ArrayNamespace, boosts: LevelBoosts, num_parents: int) -> RowBoosts:
        return cls(boosts, xp.repeat(xp.number(boosts.slot_B), num_parents), xp.repeat(boosts.weight_B, num_parents))

    def at(self, xp: ArrayNamespace, values_FN: Array, index: Array) -> Array:
        """Return the boosts at an index (R,) or at several, (R, W)."""
        shape = (len(self.slot_R), *[1] * (len(index.shape) - 1))
        return xp.at(values_FN, self.slot_R.reshape(*shape), index) * self.weight_R.reshape(*shape)


def _bits_below(xp: ArrayNamespace, position: Array) -> Array:
    """Return words whose bits before `position` (0 to 31) are set."""
    return (1 << xp.word(position)) - 1


def children_of(xp: ArrayNamespace, level: LevelArrays, filters: LevelFilters, lo_R: Array, hi_R: Array) -> Children:
    """Return the children of [lo, hi) in each row, under the filter of its request."""
    capacity, num_parents = level.capacity, len(lo_R) // len(filters.slot_B)
    slot_R = xp.repeat(xp.number(filters.slot_B), num_parents)
    boosts = None if filters.boosts is None else RowBoosts.of(xp, filters.boosts, num_parents)
    lanes, bound_R = None, None
    if capacity.short:
        lanes, bound_R = _short(xp, level, filters, slot_R, lo_R, hi_R, boosts)
    if not capacity.ranges:
        return Children(lanes, bound_R=bound_R)
    is_long_R = hi_R - lo_R > SHORT
    number_R = xp.where(is_long_R, xp.take(level.directory_M, lo_R >> 5), 0)
    range_R3 = xp.take(level.ranges_G3, number_R)
    begin_R, count_R, mask_R = xp.barrier(range_R3[:, 0], range_R3[:, 1], xp.where(is_long_R, range_R3[:, 2], -1))
    dead_RD3 = xp.repeat(xp.number(filters.dead_BD3), num_parents)
    if capacity.width:
        listed_R = xp.where(is_long_R & (mask_R < 0), count_R, 0)
        listed = _listed(xp, level, filters, slot_R, hi_R, begin_R, listed_R, dead_RD3)
        if boosts is not None:
            entry_RW = begin_R[:, None] + xp.arange(capacity.width, hi_R)
            listed = listed._replace(boost_RW=boosts.at(xp, boosts.levels.entries_FE, entry_RW))
        lanes = listed if lanes is None else _either(xp, is_long_R, listed, lanes, capacity.size)
    words_RH = _mask(xp, filters, slot_R, mask_R, dead_RD3) if capacity.wide else None
    if boosts is not None:
        of_short_R = NEG_INF if bound_R is None else bound_R
        bound_R = xp.where(is_long_R, boosts.at(xp, boosts.levels.ranges_FG, number_R), of_short_R)
    return Children(lanes, words_RH, begin_R, count_R, mask_R, bound_R)


def _short(
    xp: ArrayNamespace,
    level: LevelArrays,
    filters: LevelFilters,
    slot_R: Array,
    lo_R: Array,
    hi_R: Array,
    boosts: RowBoosts | None,
) -> tuple[Lanes, Any]:
    """Return the leaves of each short range, and the largest boost below it; a long range has none."""
    length_R = xp.where(hi_R - lo_R > SHORT, 0, hi_R - lo_R)
    inside_R = xp.where(length_R == SHORT, xp.full_word, _bits_below(xp, length_R & 31))
    word_R, shift_R = lo_R >> 5, xp.word(lo_R & 31)

    word_R2 = word_R[:, None] + xp.arange(2, lo_R)

    def window(words_R2: Array) -> Array:
        # Two shifts, because a shift by 32 is not defined.
        return ((words_R2[:, 0] >> shift_R) | (words_R2[:, 1] << 1 << (31 - shift_R))) & inside_R

    starts_R = window(xp.take_words(level.boundary_W, word_R2))
    alive_R = window(xp.take_words(filters.leaves_FW, slot_R[:, None], word_R2))
    offset_RD = xp.repeat(xp.number(filters.denied_BD), len(lo_R) // len(filters.slot_B)) - lo_R[:, None]
    here_RD = (offset_RD >= 0) & (offset_RD < SHORT)
    denied_RD = xp.where(here_RD, 1 << xp.word(offset_RD & 31), 0)
    alive_R = alive_R & ~xp.sum(denied_RD, 1)  # the bits differ: their sum is their union
    starts_R, alive_R = xp.barrier(starts_R, alive_R)
    lane_W = xp.arange(level.capacity.short, lo_R)
    below_W = _bits_below(xp, lane_W)
    later_RW = starts_R[:, None] & ~(below_W << 1 | 1)
    next_RW = later_RW & (~later_RW + 1)  # the lowest bit: the next boundary; 0 if there is none
    own_RW = (next_RW - 1) & ~below_W
    start_RW = lo_R[:, None] + lane_W
    end_RW = xp.where(next_RW == 0, hi_R[:, None], lo_R[:, None] + xp.popcount(next_RW - 1))
    is_child_RW, boost_RW, bound_R = xp.has_bit(starts_R[:, None], lane_W), None, None
    if boosts is not None:
        boost_RW = boosts.at(xp, boosts.levels.leaves_FM, start_RW)
        bound_R = xp.max(xp.where(is_child_RW, boost_RW, NEG_INF), 1)
    lanes = Lanes(
        code_RW=xp.where(lane_W < length_R[:, None], xp.take(level.column_M, start_RW), level.capacity.size),
        start_RW=start_RW,
        end_RW=end_RW,
        legal_RW=is_child_RW & (alive_R[:, None] & own_RW != 0),
        boost_RW=boost_RW,
    )
    return lanes, bound_R


def _listed(
    xp: ArrayNamespace,
    level: LevelArrays,
    filters: LevelFilters,
    slot_R: Array,
    hi_R: Array,
    begin_R: Array,
    count_R: Array,
    dead_RD3: Array,
) -> Lanes:
    """Return the entries of each listed range."""
    width = level.capacity.width
    lane_W = xp.arange(width, hi_R)
    inside_RW = lane_W < count_R[:, None]
    entry_RW = begin_R[:, None] + lane_W
    alive_RW = xp.has_bit(xp.take_words(filters.listed_FW, slot_R[:, None], entry_RW >> 5), entry_RW)
    dead_RD = dead_RD3[:, :, 0] - begin_R[:, None]
    here_RD = (dead_RD3[:, :, 0] >= 0) & (dead_RD >= 0) & (dead_RD < width)
    dead_RW = xp.scatter_sum(xp.where(here_RD, dead_RD, 0), xp.where(here_RD, 1, 0), width)
    next_RW = xp.take(level.firsts_E, entry_RW + 1)
    return Lanes(
        code_RW=xp.where(inside_RW, xp.take(level.codes_E, entry_RW), level.capacity.size),
        start_RW=xp.take(level.firsts_E, entry_RW),
        end_RW=xp.where(lane_W + 1 < count_R[:, None], next_RW, hi_R[:, None]),
        legal_RW=inside_RW & alive_RW & (dead_RW == 0),
    )


def _either(xp: ArrayNamespace, is_long_R: Array, listed: Lanes, short: Lanes, size: int) -> Lanes:
    """Return each row's lanes of its own kind of range."""
    width = max(listed.code_RW.shape[1], short.code_RW.shape[1])
    padding = (size, 0, 0, False, 0)

    def padded(lanes: Lanes) -> list[Array]:
        parts = [(lane, value) for lane, value in zip(lanes, padding, strict=True) if lane is not None]
        return [xp.pad(lane, width - lane.shape[1], value) for lane, value in parts]

    pairs = zip(padded(listed), padded(short), strict=True)
    return Lanes(*[xp.where(is_long_R[:, None], long_RW, short_RW) for long_RW, short_RW in pairs])


def _mask(xp: ArrayNamespace, filters: LevelFilters, slot_R: Array, mask_R: Array, dead_RD3: Array) -> Array:
    """Return the legal codes of each wide range; 0 in other rows."""
    is_wide_R1 = (mask_R >= 0)[:, None]
    words_RH = xp.where(is_wide_R1, xp.take_words(filters.masks_FHW, slot_R, xp.where(mask_R >= 0, mask_R, 0)), 0)
    hit_RD = (dead_RD3[:, :, 1] == mask_R[:, None]) & is_wide_R1
    return words_RH & ~code_words(xp, dead_RD3[:, :, 2], hit_RD, words_RH.shape[1])


def code_words(xp: ArrayNamespace, code_RN: Array, chosen_RN: Array, num_words: int) -> Array:
    """Return masks over the codes with the bits of the chosen codes, which differ within a row."""
    bit_RN = xp.where(chosen_RN, 1 << xp.word(code_RN & 31), 0)
    return xp.scatter_sum(xp.where(chosen_RN, code_RN >> 5, 0), bit_RN, num_words)


def child_boosts(xp: ArrayNamespace, filters: LevelFilters, children: Children, num_words: int) -> Array:
    """Return the largest boost below the legal child of each code, float32 [R, H x 32]; -inf for other codes."""
    assert filters.boosts is not None
    num_rows, like, parts = len(children.bound_R), children.bound_R, list[Array]()
    boosts = RowBoosts.of(xp, filters.boosts, num_rows // len(filters.slot_B))
    if children.lanes is not None:
        lanes, lane_W = children.lanes, xp.arange(children.lanes.code_RW.shape[1], like)
        size = num_words * CHUNK
        slot_RW = xp.where(lanes.legal_RW, lanes.code_RW, size + lane_W)  # the slots of a row differ
        values_RW = xp.where(lanes.legal_RW, lanes.boost_RW, NEG_INF)
        parts.append(xp.scatter(slot_RW, values_RW, size + len(lane_W), NEG_INF)[:, :size])
    if children.words_RH is not None:
        mask_R, lane_C = children.mask_R, xp.arange(CHUNK, like)
        all_RH = xp.take_words(filters.masks_FHW[0], xp.where(mask_R >= 0, mask_R, 0))
        count_RH = xp.popcount(all_RH)
        before_RH = xp.running_sum(count_RH, 1) - count_RH
        here_RHC = all_RH[:, :, None] & _bits_below(xp, lane_C)
        position_RHC = before_RH[:, :, None] + xp.popcount(here_RHC)
        legal_RHC = xp.has_bit(children.words_RH[:, :, None], lane_C)
        entry_RHC = xp.where(legal_RHC, children.begin_R[:, None, None] + position_RHC, 0)
        values_RHC = xp.where(legal_RHC, boosts.at(xp, filters.boosts.entries_FE, entry_RHC), NEG_INF)
        parts.append(values_RHC.reshape(num_rows, -1))
    return functools.reduce(xp.larger, parts)


def ranges_of(
    xp: ArrayNamespace, level: LevelArrays, filters: LevelFilters, children: Children, hi_R: Array, winners: Winners
) -> tuple[Array, Array]:
    """Return (lo_BK, hi_BK) of the child of row `row` with this code; (0, 0) where the segment has none that is alive."""
    row_BK, code_BK, live_BK, lane_BK = winners
    lo_BK = hi_BK = xp.where(live_BK, 0, 0)
    if children.lanes is not None:
        lanes, found_BK = children.lanes, live_BK
        if lane_BK is None:
            match_BKW = xp.take(lanes.legal_RW, row_BK) & (xp.take(lanes.code_RW, row_BK) == code_BK[:, :, None])
            lane_W = xp.arange(match_BKW.shape[2], row_BK)
            lane_BK = xp.max(xp.where(match_BKW & live_BK[:, :, None], lane_W, -1), 2)  # at most one lane matches
            found_BK, lane_BK = lane_BK >= 0, xp.where(lane_BK >= 0, lane_BK, 0)
        lo_BK = xp.where(found_BK, xp.take(lanes.start_RW, row_BK, lane_BK), 0)
        hi_BK = xp.where(found_BK, xp.take(lanes.end_RW, row_BK, lane_BK), 0)
    if children.words_RH is not None:
        mask_BK, word_BK = xp.take(children.mask_R, row_BK), code_BK >> 5
        found_BK = live_BK & xp.has_bit(xp.take_words(children.words_RH, row_BK, word_BK), code_BK)
        all_BKH = xp.take_words(filters.masks_FHW[0], xp.where(mask_BK >= 0, mask_BK, 0))
        word_H = xp.arange(all_BKH.shape[2], row_BK)
        here_BKH = all_BKH & _bits_below(xp, code_BK & 31)[:, :, None]
        before_BKH = xp.where(word_H < word_BK[:, :, None], all_BKH, 0)
        before_BKH = xp.where(word_H == word_BK[:, :, None], here_BKH, before_BKH)
        position_BK = xp.sum(xp.popcount(before_BKH), 2)
        entry_BK = xp.where(found_BK, xp.take(children.begin_R, row_BK) + position_BK, 0)
        is_last_BK = position_BK + 1 >= xp.take(children.count_R, row_BK)
        end_BK = xp.where(is_last_BK, xp.take(hi_R, row_BK), xp.take(level.firsts_E, entry_BK + 1))
        lo_BK = xp.where(found_BK, xp.take(level.firsts_E, entry_BK), lo_BK)
        hi_BK = xp.where(found_BK, end_BK, hi_BK)
    return lo_BK, hi_BK
