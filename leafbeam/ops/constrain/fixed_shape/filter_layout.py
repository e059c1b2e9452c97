"""Host layout of a request's filter: which leaves it allows and, computed ahead, which listed children have an allowed leaf.

    short range: the bits of its leaves are one 32-bit window; a child is alive if one of its own bits is set
    long range: one bit for each listed child; a wide range also has a mask of V bits

A step therefore computes no rank and its cost does not depend on the filter. Denied leaves stay a short list: their bits are
cleared in windows, and the listed children that lose their last leaf are named.

Shapes: M leaves, B requests, W words, G long ranges, E their children (entries), H masks, D denied leaves of a request.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.index import Bitmap
from leafbeam.index.bit_kernels import rank
from leafbeam.index.filters import ItemSet
from leafbeam.jit import njit
from leafbeam.ops.constrain.fixed_shape.capacity import SegmentCapacity, bucket
from leafbeam.ops.constrain.fixed_shape.layout import LevelLayout, SegmentLayout, window_words

MIN_DENIED = 8  # a batch without a deny list runs the same compiled code as one with a short list


def filter_words(segment: SegmentLayout, leaves: Bitmap | None, capacity: SegmentCapacity) -> dict[str, NDArray[np.uint32]]:
    """Return a filter's words, padded to `capacity`; None allows everything.

    leaves_W: a bit for each leaf. listed_W{t}, masks_HW{t}: for each level t with long ranges, a bit for each entry and, for
    its wide ranges, a bit for each code. Cost: 1 to 3 ns for each entry, and a pass over the leaves' words.
    """
    allowed = Bitmap.full(segment.trie.num_leaves) if leaves is None else leaves
    arrays = {"leaves_W": window_words(allowed, capacity.leaves)}
    for t, (level, sizes) in enumerate(zip(segment.levels, capacity.levels, strict=True)):
        if sizes.ranges:
            listed_W = np.zeros((sizes.entries + sizes.width) // 32 + 1, np.uint32)
            masks_HW = np.zeros((sizes.wide, sizes.words), np.uint32)
            ranges = level.lo_G, level.hi_G, level.indptr_G1, level.mask_G, level.firsts_E, level.codes_E
            _set_alive(allowed.words_W, allowed.before_W, *ranges, listed_W, masks_HW)
            arrays[f"listed_W{t}"] = listed_W
            if sizes.wide:
                arrays[f"masks_HW{t}"] = masks_HW
    return arrays


@njit(cache=True, nogil=True)
def _set_alive(words_W, before_W, lo_G, hi_G, indptr_G1, mask_G, firsts_E, codes_E, listed_W, masks_HW):
    """Set the bits of the children that have an allowed leaf."""
    for number in range(lo_G.size):
        before = rank(words_W, before_W, lo_G[number])
        end = indptr_G1[number + 1]
        mask = mask_G[number]
        for entry in range(indptr_G1[number], end):
            after = rank(words_W, before_W, firsts_E[entry + 1] if entry + 1 < end else hi_G[number])
            if after > before:
                listed_W[entry >> 5] |= np.uint32(1) << np.uint32(entry & 31)
                if mask >= 0:
                    code = codes_E[entry]
                    masks_HW[mask, code >> 5] |= np.uint32(1) << np.uint32(code & 31)
            before = after


class ChangedWords(NamedTuple):
    """The words of an array of `filter_words` that a change may have changed: where they are in the flat array, and they."""

    positions_n: NDArray[np.int32]
    words_n: NDArray[np.uint32]


def changed_words(
    segment: SegmentLayout, leaves: Bitmap, words_n: NDArray[np.int64], capacity: SegmentCapacity
) -> dict[str, ChangedWords]:
    """Return the words of a filter that differ from those of one whose bitmap differs in these 64-bit words.

    The names are those of `filter_words`. Cost: a few ranks for each leaf of the changed words and each level.
    """
    halves_n = np.unique(np.stack([2 * words_n, 2 * words_n + 1]))
    changed = {"leaves_W": ChangedWords(halves_n.astype(np.int32), leaves.words_W.view(np.dtype("<u4"))[halves_n])}
    for t, (level, sizes) in enumerate(zip(segment.levels, capacity.levels, strict=True)):
        if sizes.ranges:
            first_n, last_n = (np.searchsorted(level.firsts_E, 64 * words_n + end, side="right") - 1 for end in (0, 63))
            touched_n = _united(np.maximum(first_n, 0), last_n)
            words = np.unique(touched_n >> 5)
            changed[f"listed_W{t}"] = ChangedWords(words.astype(np.int32), _listed_words(level, leaves, words))
            if sizes.wide:
                changed[f"masks_HW{t}"] = _mask_words(level, leaves, touched_n, sizes.words)
    return changed


def _united(first_n: NDArray[np.int64], last_n: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers of ranges that may overlap, ascending; a range ends with its last number."""
    ranges = [np.arange(first, last + 1) for first, last in zip(first_n.tolist(), last_n.tolist(), strict=True)]
    return np.unique(np.concatenate(ranges))


def _listed_words(level: LevelLayout, leaves: Bitmap, words_n: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return these words of the bits of listed children."""
    entry_nC = 32 * words_n[:, None] + np.arange(32)
    is_entry_nC = entry_nC < len(level.firsts_E)
    alive_nC = np.zeros(entry_nC.shape, np.bool_)
    alive_nC[is_entry_nC] = _are_alive(level, leaves, entry_nC[is_entry_nC])
    return np.packbits(alive_nC, axis=1, bitorder="little").view(np.dtype("<u4"))[:, 0]


def _mask_words(level: LevelLayout, leaves: Bitmap, touched_n: NDArray[np.int64], num_words: int) -> ChangedWords:
    """Return the words of masks that have one of these children. The children of a word are among 63 that follow each other."""
    number_n = np.searchsorted(level.indptr_G1, touched_n, side="right") - 1
    position_n = level.mask_G[number_n].astype(np.int64) * num_words + (level.codes_E[touched_n] >> 5)
    is_wide_n = level.mask_G[number_n] >= 0
    position_m, chosen_m = np.unique(position_n[is_wide_n], return_index=True)
    number_m, entry_m = number_n[is_wide_n][chosen_m], touched_n[is_wide_n][chosen_m]
    entry_mC = entry_m[:, None] + np.arange(-31, 32)
    begin_m1, end_m1 = level.indptr_G1[number_m][:, None], level.indptr_G1[number_m + 1][:, None]
    inside_mC = (entry_mC >= begin_m1) & (entry_mC < end_m1)
    entry_mC = np.where(inside_mC, entry_mC, begin_m1)
    code_mC = level.codes_E[entry_mC].astype(np.int64)
    inside_mC &= code_mC >> 5 == (level.codes_E[entry_m] >> 5)[:, None]
    inside_mC[inside_mC] = _are_alive(level, leaves, entry_mC[inside_mC])
    bits_mC = np.where(inside_mC, np.uint32(1) << (code_mC & 31).astype(np.uint32), np.uint32(0))
    return ChangedWords(position_m.astype(np.int32), np.bitwise_or.reduce(bits_mC, axis=1).astype(np.uint32))


def _are_alive(level: LevelLayout, leaves: Bitmap, entry_n: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which listed children have an allowed leaf."""
    _, begin_n, end_n = _spans(level, entry_n)
    return leaves.ranks(end_n) > leaves.ranks(begin_n)


def _spans(level: LevelLayout, entry_n: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """Return the long ranges of listed children, and where the leaves of each child begin and end."""
    number_n = np.searchsorted(level.indptr_G1, entry_n, side="right") - 1
    end_n, inner_n = level.hi_G[number_n], entry_n + 1 < level.indptr_G1[number_n + 1]
    end_n[inner_n] = level.firsts_E[entry_n[inner_n] + 1]
    return number_n, level.firsts_E[entry_n], end_n


def denied_arrays(segment: SegmentLayout, requests: Sequence[ItemSet | None]) -> dict[str, NDArray[np.int32]]:
    """Return a batch's denied leaves and the listed children that are dead without them, padded with -1 to a power of two.

    denied_BD: leaves. dead_BD3{t}: (entry, mask or -1, code) for each level t.
    """
    longest = max((len(request.denied_D) for request in requests if request is not None), default=0)
    shape = (len(requests), bucket(max(1, longest), MIN_DENIED))
    arrays = {"denied_BD": np.full(shape, -1, np.int32)}
    arrays |= {f"dead_BD3{t}": np.full((*shape, 3), -1, np.int32) for t in range(len(segment.levels))}
    for number, request in enumerate(requests):
        if request is None or len(request.denied_D) == 0:
            continue
        arrays["denied_BD"][number, : len(request.denied_D)] = request.denied_D
        for t, level in enumerate(segment.levels):
            dead_n3 = _dead_children(level, request.leaves, request.denied_D)
            arrays[f"dead_BD3{t}"][number, : len(dead_n3)] = dead_n3
    return arrays


def _dead_children(level: LevelLayout, leaves: Bitmap | None, denied_D: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return (entry, mask or -1, code) of the listed children all of whose allowed leaves are denied (ascending leaves).

    At most one for each denied leaf. Cost: two binary searches for each denied leaf.
    """
    if len(level.lo_G) == 0:
        return np.empty((0, 3), np.int32)
    entry_D = np.searchsorted(level.firsts_E, denied_D.astype(np.int32), side="right") - 1
    number_D = np.searchsorted(level.lo_G, denied_D, side="right") - 1
    inside_D = (number_D >= 0) & (denied_D < level.hi_G[number_D])
    entry_n, denied_n = np.unique(entry_D[inside_D], return_counts=True)
    number_n, begin_n, end_n = _spans(level, entry_n)
    allowed_n = end_n - begin_n
    if leaves is not None:
        allowed_n = leaves.ranks(end_n) - leaves.ranks(begin_n)
    dead_n = allowed_n <= denied_n
    entry_n, number_n = entry_n[dead_n], number_n[dead_n]
    return np.stack([entry_n, level.mask_G[number_n], level.codes_E[entry_n]], axis=1).astype(np.int32)
