"""The children of many leaf ranges at once, in torch: what `jax_children` does, one line for one line.

Words are widened to int64 where they are read, so that shifts bring no sign in; torch has no popcount.

Shapes: B requests, R rows (beams of all requests), W lanes, H words of 32 codes, D denied leaves, K winners of a request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leafbeam.ops.constrain.fixed_shape.capacity import SHORT
from leafbeam.ops.constrain.fixed_shape.torch_arrays import LevelArrays, LevelFilters

__all__ = ["Children", "children_of", "code_words", "has_bit", "ranges_of"]

_WORD = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True, eq=False)
class Children:
    """The children of R ranges in one segment: see `jax_children.Children`. Numbers and words are int64."""

    code_RW: Tensor | None
    start_RW: Tensor | None
    end_RW: Tensor | None
    legal_RW: Tensor | None
    words_RH: Tensor | None
    begin_R: Tensor | None
    count_R: Tensor | None
    mask_R: Tensor | None


def _words(words: Tensor) -> Tensor:
    return words.long() & _WORD


def _codes(codes: Tensor) -> Tensor:
    """int16 holds codes up to 65,535 in the bits of uint16."""
    return codes.long() & 0xFFFF if codes.dtype == torch.int16 else codes.long()


def _bits_below(position: Tensor) -> Tensor:
    return (1 << position) - 1


def has_bit(words: Tensor, position: Tensor) -> Tensor:
    """Whether bit `position % 32` of each word is set."""
    return (words >> (position & 31)) & 1 != 0


def _popcount(words: Tensor) -> Tensor:
    words = words - ((words >> 1) & 0x55555555)
    words = (words & 0x33333333) + ((words >> 2) & 0x33333333)
    words = (words + (words >> 4)) & 0x0F0F0F0F
    return ((words * 0x01010101) & _WORD) >> 24


def _given(array: Tensor | None) -> Tensor:
    assert array is not None
    return array


def children_of(level: LevelArrays, filters: LevelFilters, request_R: Tensor, lo_R: Tensor, hi_R: Tensor) -> Children:
    """The children of [lo, hi) for each row, whose request's filter is `request_R`'s."""
    capacity = level.capacity
    slot_R = filters.slot_B[request_R]
    lanes: tuple[Tensor, ...] | None = None
    if capacity.short:
        lanes = _short(level, filters, request_R, slot_R, lo_R, hi_R)
    words_RH = begin_R = count_R = mask_R = None
    if capacity.ranges:
        is_long = hi_R - lo_R > SHORT
        number_R = torch.where(is_long, _given(level.directory_M)[lo_R >> 5].long(), 0)
        entry_R3 = _given(level.ranges_G3)[number_R].long()
        begin_R, count_R = entry_R3[:, 0], entry_R3[:, 1]
        mask_R = torch.where(is_long, entry_R3[:, 2], -1)
        dead_RD3 = _given(filters.dead_BD3)[request_R].long()
        if capacity.width:
            listed = _listed(level, filters, slot_R, hi_R, begin_R, torch.where(is_long & (mask_R < 0), count_R, 0), dead_RD3)
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


def _short(
    level: LevelArrays, filters: LevelFilters, request_R: Tensor, slot_R: Tensor, lo_R: Tensor, hi_R: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(code, start, end, legal) of the leaves of each short range; a long one has none."""
    length_R = torch.where(hi_R - lo_R > SHORT, 0, hi_R - lo_R)
    inside_R = _bits_below(length_R)
    word_R, shift_R = lo_R >> 5, lo_R & 31

    def window(low_R: Tensor, high_R: Tensor) -> Tensor:
        return ((_words(low_R) | (_words(high_R) << 32)) >> shift_R) & inside_R

    boundary_W = _given(level.boundary_W)
    starts_R = window(boundary_W[word_R], boundary_W[word_R + 1])
    alive_R = window(filters.leaves_FW[slot_R, word_R], filters.leaves_FW[slot_R, word_R + 1])
    offset_RD = filters.denied_BD[request_R].long() - lo_R[:, None]
    here_RD = (offset_RD >= 0) & (offset_RD < SHORT)
    alive_R = alive_R & ~torch.where(here_RD, 1 << (offset_RD & 31), 0).sum(dim=1)  # of different bits: a sum is an or

    lane_W = torch.arange(level.capacity.short, device=lo_R.device)
    below_W = _bits_below(lane_W)
    later_RW = starts_R[:, None] & ~(below_W << 1 | 1)
    next_RW = later_RW & -later_RW  # the lowest bit: the next boundary; 0 where there is none
    own_RW = (next_RW - 1) & ~below_W
    legal_RW = has_bit(starts_R[:, None], lane_W) & (alive_R[:, None] & own_RW != 0)
    start_RW = lo_R[:, None] + lane_W
    end_RW = torch.where(next_RW == 0, hi_R[:, None], lo_R[:, None] + _popcount((next_RW - 1) & _WORD))
    code_RW = _codes(_given(level.column_M)[start_RW])
    return torch.where(lane_W < length_R[:, None], code_RW, level.capacity.size), start_RW, end_RW, legal_RW


def _listed(
    level: LevelArrays,
    filters: LevelFilters,
    slot_R: Tensor,
    hi_R: Tensor,
    begin_R: Tensor,
    count_R: Tensor,
    dead_RD3: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(code, start, end, legal) of the entries of each listed range."""
    width = level.capacity.width
    lane_W = torch.arange(width, device=hi_R.device)
    inside_RW = lane_W < count_R[:, None]
    entry_RW = begin_R[:, None] + lane_W
    alive_RW = has_bit(_words(_given(filters.listed_FW)[slot_R[:, None], entry_RW >> 5]), entry_RW)
    dead_RD = dead_RD3[:, :, 0] - begin_R[:, None]
    here_RD = (dead_RD3[:, :, 0] >= 0) & (dead_RD >= 0) & (dead_RD < width)
    is_dead = torch.zeros_like(entry_RW).scatter_add(1, torch.where(here_RD, dead_RD, 0), here_RD.long())
    start_RW = _given(level.firsts_E)[entry_RW].long()
    end_RW = torch.where(lane_W + 1 < count_R[:, None], _given(level.firsts_E)[entry_RW + 1].long(), hi_R[:, None])
    code_RW = torch.where(inside_RW, _codes(_given(level.codes_E)[entry_RW]), level.capacity.size)
    return code_RW, start_RW, end_RW, inside_RW & alive_RW & (is_dead == 0)


def _either(is_long: Tensor, listed: tuple[Tensor, ...], short: tuple[Tensor, ...], size: int) -> tuple[Tensor, ...]:
    """The lanes of each row's own kind of range."""
    width = max(listed[0].shape[1], short[0].shape[1])
    rest = (size, 0, 0, False)

    def padded(lanes: tuple[Tensor, ...]) -> list[Tensor]:
        return [
            torch.nn.functional.pad(one, (0, width - one.shape[1]), value=value) for one, value in zip(lanes, rest, strict=True)
        ]

    return tuple(torch.where(is_long[:, None], a, b) for a, b in zip(padded(listed), padded(short), strict=True))


def _mask(filters: LevelFilters, slot_R: Tensor, mask_R: Tensor, dead_RD3: Tensor) -> Tensor:
    """The legal codes of each wide range; 0 for the other rows."""
    words_RH = _words(_given(filters.masks_FHW)[slot_R, mask_R.clamp(min=0)])
    words_RH = torch.where((mask_R >= 0)[:, None], words_RH, 0)
    hit_RD = (dead_RD3[:, :, 1] == mask_R[:, None]) & (mask_R >= 0)[:, None]
    return words_RH & ~code_words(torch.where(hit_RD, dead_RD3[:, :, 2], 0), hit_RD, words_RH.shape[1])


def code_words(code_RN: Tensor, chosen_RN: Tensor, num_words: int) -> Tensor:
    """Masks over the codes with the bits of the chosen codes, which are different in a row."""
    bit_RN = torch.where(chosen_RN, 1 << (code_RN & 31), 0)
    word_RN = torch.where(chosen_RN, code_RN >> 5, 0)
    return bit_RN.new_zeros(code_RN.shape[0], num_words).scatter_add(1, word_RN, bit_RN)


def ranges_of(
    level: LevelArrays,
    filters: LevelFilters,
    children: Children,
    hi_R: Tensor,
    row_BK: Tensor,
    code_BK: Tensor,
    live_BK: Tensor,
) -> tuple[Tensor, Tensor]:
    """(lo, hi) of the child of row `row` that has this code; (0, 0) where the segment has none that is alive."""
    lo_BK = hi_BK = torch.zeros_like(row_BK)
    if children.legal_RW is not None:
        is_it = children.legal_RW[row_BK] & (_given(children.code_RW)[row_BK] == code_BK[:, :, None])
        lane_W = torch.arange(is_it.shape[2], device=row_BK.device)
        lane_BK = torch.where(is_it & live_BK[:, :, None], lane_W, -1).amax(dim=2)  # one lane at most
        found_BK, lane_BK = lane_BK >= 0, lane_BK.clamp(min=0)
        lo_BK = torch.where(found_BK, _given(children.start_RW)[row_BK, lane_BK], 0)
        hi_BK = torch.where(found_BK, _given(children.end_RW)[row_BK, lane_BK], 0)
    if children.words_RH is not None:
        mask_BK, word_BK = _given(children.mask_R)[row_BK], code_BK >> 5
        found_BK = live_BK & has_bit(children.words_RH[row_BK, word_BK], code_BK)
        everything_BKH = _words(_given(filters.masks_FHW)[0, mask_BK.clamp(min=0)])
        word_H = torch.arange(everything_BKH.shape[2], device=row_BK.device)
        before_BKH = torch.where(word_H < word_BK[:, :, None], everything_BKH, 0)
        here_BKH = everything_BKH & _bits_below(code_BK & 31)[:, :, None]
        before_BKH = torch.where(word_H == word_BK[:, :, None], here_BKH, before_BKH)
        number_BK = _popcount(before_BKH).sum(dim=2)
        entry_BK = torch.where(found_BK, _given(children.begin_R)[row_BK] + number_BK, 0)
        firsts_E = _given(level.firsts_E)
        is_last = number_BK + 1 >= _given(children.count_R)[row_BK]
        lo_BK = torch.where(found_BK, firsts_E[entry_BK].long(), lo_BK)
        hi_BK = torch.where(found_BK, torch.where(is_last, hi_R[row_BK], firsts_E[entry_BK + 1].long()), hi_BK)
    return lo_BK, hi_BK
