"""The children of many leaf ranges at once, traced by JAX: which they are, which are alive, where one of them lies.

    short range: the boundaries of its 32 leaves and the filter's bits there are two windows; lane i is the leaf lo + i. With
                 `own` the bits from lane i to the next boundary, the child at lane i is alive iff `filter & own` has a bit
    long range:  lane i is entry begin + i of its listing, alive iff the filter's bit of that entry is set
    wide range:  no lanes but a mask over the codes; the entry of a code is begin + the mask's bits before it

Shapes: B requests, R rows (beams of all requests), W lanes, H words of 32 codes, D denied leaves, K winners of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from leafbeam.ops.constrain.fixed_shape.capacity import SHORT
from leafbeam.ops.constrain.fixed_shape.jax_arrays import LevelArrays
from leafbeam.ops.constrain.fixed_shape.jax_filters import LevelFilters

__all__ = ["Children", "at", "bits_below", "children_of", "code_words", "has_bit", "ranges_of"]

Array = jax.Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Children:
    """The children of R ranges in one segment.

    code_RW, start_RW, end_RW: int32, code and leaf range of each lane; legal_RW: bool, whether it is a child with a leaf alive.
    Codes ascend along a row; lanes beyond the range have code V. words_RH: uint32, the legal codes of a wide range, 0 for the
    others; begin_R, count_R, mask_R: its entries and its mask. Either half is None where the level has nothing of the kind.
    """

    code_RW: Array | None
    start_RW: Array | None
    end_RW: Array | None
    legal_RW: Array | None
    words_RH: Array | None
    begin_R: Array | None
    count_R: Array | None
    mask_R: Array | None


def at(array: Array, *indices: Array) -> Array:
    """array[indices], which are known to lie inside: no test for negative or too large ones."""
    return array.at[indices].get(mode="promise_in_bounds")


def bits_below(position: Array) -> Array:
    """A word whose bits before `position` (0 to 31) are set."""
    return (jnp.uint32(1) << position.astype(jnp.uint32)) - jnp.uint32(1)


def has_bit(words: Array, position: Array) -> Array:
    """Whether bit `position % 32` of each word is set."""
    return (words >> (position & 31).astype(jnp.uint32)) & jnp.uint32(1) != 0


def children_of(level: LevelArrays, filters: LevelFilters, request_R: Array, lo_R: Array, hi_R: Array) -> Children:
    """The children of [lo, hi) for each row, whose request's filter is `request_R`'s."""
    capacity = level.capacity
    slot_R = at(filters.slot_B, request_R)
    lanes: tuple[Array, ...] | None = None
    if capacity.short:
        lanes = _short(level, filters, request_R, slot_R, lo_R, hi_R)
    words_RH = begin_R = count_R = mask_R = None
    if capacity.ranges:
        is_long = hi_R - lo_R > SHORT
        entry_R3 = at(_given(level.ranges_G3), jnp.where(is_long, at(_given(level.directory_M), lo_R >> 5), 0))
        begin_R, count_R = entry_R3[:, 0], entry_R3[:, 1]
        mask_R = jnp.where(is_long, entry_R3[:, 2], -1)
        dead_RD3 = at(_given(filters.dead_BD3), request_R)
        if capacity.width:
            listed = _listed(level, filters, slot_R, hi_R, begin_R, jnp.where(is_long & (mask_R < 0), count_R, 0), dead_RD3)
            lanes = listed if lanes is None else _either(is_long, listed, lanes, capacity.size)
        if capacity.wide:
            words_RH = _mask(filters, slot_R, mask_R, dead_RD3)
    code, start, end, legal = (None, None, None, None) if lanes is None else lanes
    return Children(
        code_RW=code,
        start_RW=start,
        end_RW=end,
        legal_RW=legal,
        words_RH=words_RH,
        begin_R=begin_R,
        count_R=count_R,
        mask_R=mask_R,
    )


def _given(array: Array | None) -> Array:
    assert array is not None
    return array


def _short(
    level: LevelArrays, filters: LevelFilters, request_R: Array, slot_R: Array, lo_R: Array, hi_R: Array
) -> tuple[Array, Array, Array, Array]:
    """(code, start, end, legal) of the leaves of each short range; a long one has none."""
    length_R = jnp.where(hi_R - lo_R > SHORT, 0, hi_R - lo_R)
    inside_R = jnp.where(length_R == SHORT, ~jnp.uint32(0), bits_below(length_R & 31))
    word_R, shift_R = lo_R >> 5, (lo_R & 31).astype(jnp.uint32)

    def window(low_R: Array, high_R: Array) -> Array:
        # Two shifts, because a shift by 32 is not defined.
        return ((low_R >> shift_R) | (high_R << jnp.uint32(1) << (jnp.uint32(31) - shift_R))) & inside_R

    boundary_W = _given(level.boundary_W)
    starts_R = window(at(boundary_W, word_R), at(boundary_W, word_R + 1))
    alive_R = window(at(filters.leaves_FW, slot_R, word_R), at(filters.leaves_FW, slot_R, word_R + 1))
    offset_RD = at(filters.denied_BD, request_R) - lo_R[:, None]
    here_RD = (offset_RD >= 0) & (offset_RD < SHORT)
    denied_RD = jnp.where(here_RD, jnp.uint32(1) << (offset_RD & 31).astype(jnp.uint32), jnp.uint32(0))
    alive_R &= ~denied_RD.sum(axis=1, dtype=jnp.uint32)  # of different bits: a sum is an or

    # Without the barrier XLA would find both words anew for each lane.
    starts_R, alive_R = lax.optimization_barrier((starts_R, alive_R))
    lane_W = jnp.arange(level.capacity.short, dtype=jnp.int32)
    below_W = bits_below(lane_W)
    later_RW = starts_R[:, None] & ~(below_W << jnp.uint32(1) | jnp.uint32(1))
    next_RW = later_RW & (~later_RW + jnp.uint32(1))  # the lowest bit: the next boundary; 0 where there is none
    own_RW = (next_RW - jnp.uint32(1)) & ~below_W
    legal_RW = has_bit(starts_R[:, None], lane_W) & (alive_R[:, None] & own_RW != 0)
    start_RW = lo_R[:, None] + lane_W
    width_RW = lax.population_count(next_RW - jnp.uint32(1)).astype(jnp.int32)
    end_RW = jnp.where(next_RW == 0, hi_R[:, None], lo_R[:, None] + width_RW)
    code_RW = at(_given(level.column_M), start_RW).astype(jnp.int32)
    return jnp.where(lane_W < length_R[:, None], code_RW, level.capacity.size), start_RW, end_RW, legal_RW


def _listed(
    level: LevelArrays,
    filters: LevelFilters,
    slot_R: Array,
    hi_R: Array,
    begin_R: Array,
    count_R: Array,
    dead_RD3: Array,
) -> tuple[Array, Array, Array, Array]:
    """(code, start, end, legal) of the entries of each listed range."""
    width = level.capacity.width
    lane_W = jnp.arange(width, dtype=jnp.int32)
    inside_RW = lane_W < count_R[:, None]
    entry_RW = begin_R[:, None] + lane_W
    alive_RW = has_bit(at(_given(filters.listed_FW), slot_R[:, None], entry_RW >> 5), entry_RW)
    dead_RD = dead_RD3[:, :, 0] - begin_R[:, None]
    dead_RD = jnp.where((dead_RD3[:, :, 0] >= 0) & (dead_RD >= 0), dead_RD, width)  # beyond the lanes: dropped
    rows_R1 = jnp.arange(len(begin_R), dtype=jnp.int32)[:, None]
    alive_RW = alive_RW.at[rows_R1, dead_RD].set(False, mode="drop")
    start_RW = at(_given(level.firsts_E), entry_RW)
    end_RW = jnp.where(lane_W + 1 < count_R[:, None], at(_given(level.firsts_E), entry_RW + 1), hi_R[:, None])
    code_RW = at(_given(level.codes_E), entry_RW).astype(jnp.int32)
    return jnp.where(inside_RW, code_RW, level.capacity.size), start_RW, end_RW, inside_RW & alive_RW


def _either(is_long: Array, listed: tuple[Array, ...], short: tuple[Array, ...], size: int) -> tuple[Array, ...]:
    """The lanes of each row's own kind of range."""
    width = max(listed[0].shape[1], short[0].shape[1])
    rest = (size, 0, 0, False)

    def padded(lanes: tuple[Array, ...]) -> list[Array]:
        return [
            jnp.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=value)
            for one, value in zip(lanes, rest, strict=True)
        ]

    return tuple(jnp.where(is_long[:, None], a, b) for a, b in zip(padded(listed), padded(short), strict=True))


def _mask(filters: LevelFilters, slot_R: Array, mask_R: Array, dead_RD3: Array) -> Array:
    """The legal codes of each wide range; 0 for the other rows."""
    words_RH = at(_given(filters.masks_FHW), slot_R, jnp.maximum(mask_R, 0))
    words_RH = jnp.where((mask_R >= 0)[:, None], words_RH, jnp.uint32(0))
    hit_RD = (dead_RD3[:, :, 1] == mask_R[:, None]) & (mask_R >= 0)[:, None]
    return words_RH & ~code_words(jnp.where(hit_RD, dead_RD3[:, :, 2], 0), hit_RD, words_RH.shape[1])


def code_words(code_RN: Array, chosen_RN: Array, num_words: int) -> Array:
    """Masks over the codes with the bits of the chosen codes, which are different in a row."""
    bit_RN = jnp.where(chosen_RN, jnp.uint32(1) << (code_RN & 31).astype(jnp.uint32), jnp.uint32(0))
    word_RN = jnp.where(chosen_RN, code_RN >> 5, 0)
    rows_R1 = jnp.arange(code_RN.shape[0], dtype=jnp.int32)[:, None]
    return jnp.zeros((code_RN.shape[0], num_words), jnp.uint32).at[rows_R1, word_RN].add(bit_RN, mode="promise_in_bounds")


def ranges_of(
    level: LevelArrays, filters: LevelFilters, children: Children, hi_R: Array, row_BK: Array, code_BK: Array, live_BK: Array
) -> tuple[Array, Array]:
    """(lo, hi) of the child of row `row` that has this code; (0, 0) where the segment has none that is alive."""
    lo_BK = hi_BK = jnp.zeros(row_BK.shape, jnp.int32)
    if children.legal_RW is not None:
        is_it = at(children.legal_RW, row_BK) & (at(_given(children.code_RW), row_BK) == code_BK[:, :, None])
        lane_W = jnp.arange(is_it.shape[2], dtype=jnp.int32)
        lane_BK = jnp.where(is_it & live_BK[:, :, None], lane_W, -1).max(axis=2)  # one lane at most
        found_BK, lane_BK = lane_BK >= 0, jnp.maximum(lane_BK, 0)
        lo_BK = jnp.where(found_BK, at(_given(children.start_RW), row_BK, lane_BK), 0)
        hi_BK = jnp.where(found_BK, at(_given(children.end_RW), row_BK, lane_BK), 0)
    if children.words_RH is not None:
        mask_BK, word_BK = at(_given(children.mask_R), row_BK), code_BK >> 5
        found_BK = live_BK & has_bit(at(children.words_RH, row_BK, word_BK), code_BK)
        everything_BKH = at(_given(filters.masks_FHW)[0], jnp.maximum(mask_BK, 0))
        word_H = jnp.arange(everything_BKH.shape[2], dtype=jnp.int32)
        before_BKH = jnp.where(word_H < word_BK[:, :, None], everything_BKH, jnp.uint32(0))
        before_BKH = jnp.where(word_H == word_BK[:, :, None], everything_BKH & bits_below(code_BK & 31)[:, :, None], before_BKH)
        number_BK = lax.population_count(before_BKH).sum(axis=2, dtype=jnp.int32)
        entry_BK = jnp.where(found_BK, at(_given(children.begin_R), row_BK) + number_BK, 0)
        firsts_E = _given(level.firsts_E)
        is_last = number_BK + 1 >= at(_given(children.count_R), row_BK)
        lo_BK = jnp.where(found_BK, at(firsts_E, entry_BK), lo_BK)
        hi_BK = jnp.where(found_BK, jnp.where(is_last, at(hi_R, row_BK), at(firsts_E, entry_BK + 1)), hi_BK)
    return lo_BK, hi_BK
