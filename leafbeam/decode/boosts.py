"""The boosts of a batch: a number for each item, which is added to the model's score.

The search itself is that of `bound`: the score of a prefix is the model's plus the largest boost below it, which bounds the
items below as without boosts. This is where boosts are checked, and where leaves become items, each with its own boost.

Shapes: S segments, B requests, K beams, n items found.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.config import SearchConfig, check_length
from leafbeam.errors import ArgumentError, ForeignFilterError, short_repr
from leafbeam.index import ItemColumn, Version
from leafbeam.ops.constrain import Boosts

MOST_NATS = 1000.0  # beyond it float32 scores tell apart items only if the model does so by more than 10^-4


def check_boosts(version: Version, batch_size: int, boosts: object) -> Boosts:
    """Return the boost of each request, from one for all requests or one for each; None if no request has one.

    Raises:
        ArgumentError: If they are not columns of numbers, or a boost is larger than 1,000 nats.
        ForeignFilterError: If a column was made for another index.
    """
    if boosts is None:
        return None
    given = boosts if isinstance(boosts, Sequence) else [boosts] * batch_size
    check_length("boosts", given, batch_size)
    columns: list[ItemColumn | None] = []
    tries = [segment.trie for segment in version.segments]
    for number, column in enumerate(given):
        if column is not None and not isinstance(column, ItemColumn):
            raise ArgumentError(
                f"boosts[{number}] is {short_repr(column)}: expected an ItemColumn: make one with ItemColumn.of(index, numbers)"
            )
        if column is not None:
            _check(column, version, tries, number)
        columns.append(column)
    return columns if any(column is not None for column in columns) else None


def _check(column: ItemColumn, version: Version, tries: Sequence[object], number: int) -> None:
    if column.index.identity != version.identity:
        one_trie = len(tries) == len(column.parts) == 1
        if not (one_trie and column.index.identity == version.segments[0].trie.identity):
            raise ForeignFilterError(
                f"boosts[{number}] belongs to {column.index!r}, but the search runs on {version!r}: make it again for this one"
            )
    largest = largest_boost(column, version)
    if not largest <= MOST_NATS:
        raise ArgumentError(f"boosts[{number}] has a boost of {largest:g}: expected at most {MOST_NATS:,.0f}, in nats")


def largest_boost(column: ItemColumn, version: Version) -> float:
    """Return the largest boost of an item of a version; 0 if none is positive. Cost: as for `ItemColumn.bounds`."""
    maxima = column.bounds([segment.trie for segment in version.segments])
    return max((float(part.root) for part in maxima), default=0.0) * column.weight if column.weight else 0.0


def shared_leaves(version: Version) -> int:
    """Return the number of leaves if some may have several items, and 0 if each has one."""
    if len(version.segments) == 1 and version.segments[0].trie.items.leaf_indptr is None:
        return 0
    return version.num_nodes(version.num_levels - 1)


def with_more_leaves(config: SearchConfig, num_shared: int, max_rows: int) -> SearchConfig:
    """Return the most beams of each level with boosts. A leaf may count more than its items do, whose boosts differ.

    num_shared: the `shared_leaves` of the version.
    """
    if not num_shared:
        return config
    last = min(num_shared, max(max_rows, config.num_beams[-1]))
    return replace(config, num_beams=(*config.num_beams[:-1], last))


def root_boosts(version: Version, boosts: Sequence[ItemColumn | None], hi_SB: NDArray[np.signedinteger]) -> NDArray[np.float32]:
    """Return the largest boost of the segments that each request starts from, float32 (B, 1); 0 without one."""
    roots_SB = np.full(hi_SB.shape, -np.inf, np.float32)
    weights_B = np.array([0 if column is None else column.weight for column in boosts], np.float32)
    for request, column in enumerate(boosts):
        if column is not None:
            roots_SB[:, request] = [part.root for part in column.bounds([segment.trie for segment in version.segments])]
    largest_B = np.where(hi_SB > 0, roots_SB, np.float32(-np.inf)).max(0)
    return (weights_B * np.where(np.isfinite(largest_B), largest_B, np.float32(0)))[:, None]


def leaf_boosts(
    version: Version, boosts: Sequence[ItemColumn | None], ranges: tuple[NDArray[np.int64], NDArray[np.int64]]
) -> NDArray[np.float32]:
    """Return the largest boost of the items of each leaf found, (B, K); 0 without one."""
    lo_SBK, hi_SBK = ranges
    tries = [segment.trie for segment in version.segments]
    _, batch_size, num_beams = lo_SBK.shape
    found_BK = np.zeros((batch_size, num_beams), np.float32)
    for request, column in enumerate(boosts):
        if column is not None:
            largest_SK = np.full((len(tries), num_beams), -np.inf, np.float32)
            for s, (trie, maxima) in enumerate(zip(tries, column.bounds(tries), strict=True)):
                live_k = np.flatnonzero(hi_SBK[s, request] > lo_SBK[s, request])
                largest_SK[s, live_k] = maxima.at(trie, version.num_levels - 1, lo_SBK[s, request, live_k])
            largest_K = np.max(largest_SK, 0)
            found_BK[request] = np.where(np.isfinite(largest_K), largest_K, 0) * np.float32(column.weight)
    return found_BK


def boosts_of_items(
    boosts: Sequence[ItemColumn | None], row_n: NDArray[np.int64], segment_n: NDArray[np.int64], ordinal_n: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the boost of each item found, by its request, its segment and its ordinal there."""
    found_n = np.zeros(len(row_n), np.float32)
    for request, column in enumerate(boosts):
        for s in range(0 if column is None else len(column.parts)):
            of_both = np.flatnonzero((row_n == request) & (segment_n == s))
            assert column is not None
            found_n[of_both] = column.at(ordinal_n[of_both], s)
    return found_n
