"""Offsets of codes that count on from level to level (`code + level * size`), as one vocabulary for all levels needs.

Shapes: N items, L levels.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FEWEST = 16  # with fewer items, or codes of a level, equal distances may be chance


def offsets_of(numbers_NL: NDArray[np.int64], sizes: Sequence[int] | None) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the numbers added to the codes of each level, and the codebook sizes; None for plain codes.

    If the codebook `sizes` are known, offsets are sums of these sizes, if plain codes would not fit. Without sizes, each level
    must begin exactly one size after the level before, or where that level ends; the last of three or more levels may be plain,
    such as a level that numbers collisions.
    """
    num_levels = numbers_NL.shape[1]
    if num_levels < 2 or len(numbers_NL) == 0:
        return None
    low, high = (values.tolist() for values in (numbers_NL.min(axis=0), numbers_NL.max(axis=0)))
    if sizes is not None:
        return _of_sizes(low, high, tuple(sizes))
    if len(numbers_NL) < _FEWEST:
        return None
    found = _of_ranges(low, high)
    if found is None and num_levels > 2 and low[-1] == 0:
        before = _of_ranges(low[:-1], high[:-1])
        found = before and ((*before[0], 0), (*before[1], high[-1] + 1))
    return found


def possible_offsets(numbers_NL: NDArray[np.int64]) -> bool:
    """Return whether all codes of each level are above those of the level before, as with offsets."""
    below, above = numbers_NL.max(axis=0)[:-1], numbers_NL.min(axis=0)[1:]
    return numbers_NL.shape[1] > 1 and bool((below < above).all())


def _of_sizes(
    low: Sequence[int], high: Sequence[int], sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    if len(sizes) != len(low) or all(largest < size for largest, size in zip(high, sizes, strict=True)):
        return None
    begins = [0, *np.cumsum(sizes)[:-1].tolist()]
    for base in {0, low[0]}:  # numbers may begin behind special tokens
        offsets = tuple(base + begin for begin in begins)
        ranges = zip(low, high, offsets, sizes, strict=True)
        if all(offset <= smallest and largest < offset + size for smallest, largest, offset, size in ranges):
            return offsets, sizes
    return None


def _of_ranges(low: Sequence[int], high: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return offsets if the levels' smallest codes have equal distances, or if each level ends where the next begins."""
    step, count = low[1] - low[0], len(low)
    if step < _FEWEST or low[0] >= step:
        return None
    if all(low[level] == low[0] + level * step and high[level] < low[level] + step for level in range(count)):
        return tuple(low), (step,) * count
    if all(low[level + 1] == high[level] + 1 for level in range(count - 1)):
        return tuple(low), tuple(largest + 1 - smallest for smallest, largest in zip(low, high, strict=True))
    return None
