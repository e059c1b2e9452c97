"""A dictionary as the oracle of a live index: id -> codes, in the order in which items came."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from leafbeam import Trie
from leafbeam.index import Version
from leafbeam.live import CompactionPolicy, LiveIndex

Model = dict[Any, tuple[int, ...]]

SIZES = (3, 2, 300)
START: Model = {"a": (0, 1, 7), "b": (2, 1, 299), "c": (0, 1, 7), "d": (1, 0, 0)}
NEVER = CompactionPolicy(fraction=None)


def started(path: Path | None = None, items: Model = START, **options: Any) -> LiveIndex:
    """A live index of some items that is not compacted by itself."""
    return LiveIndex.create(path, union(items, SIZES), **{"compaction": NEVER, **options})


def content(version: Version) -> Model:
    """What a version holds, segment by segment in the order of its rows."""
    items: Model = {}
    for segment in version.segments:
        table = segment.trie.items
        rows = np.flatnonzero(segment.is_live(np.arange(table.num_items)))
        ids = table.ids_of(rows).tolist()
        codes = segment.trie.codes_at(table.leaves_of(rows)).tolist()
        assert items.keys().isdisjoint(ids)
        items.update(zip(ids, map(tuple, codes), strict=True))
    return items


def union(items: Model, sizes: Iterable[int]) -> Trie:
    """One trie of all items, built in one go; ids that are the row numbers are left to be the row numbers."""
    sizes = list(sizes)
    ids = list(items)
    codes = np.array(list(items.values()), np.int64).reshape(len(items), len(sizes))
    if ids == list(range(len(ids))):
        return Trie.build(codes, sizes, num_threads=1)
    return Trie.build(codes, sizes, ids, num_threads=1)


def agree(index: LiveIndex, items: Model) -> None:
    """The live index holds exactly these items, in this order, by every way of asking."""
    version = index.version()
    found = content(version)
    assert list(found.items()) == list(items.items())
    assert version.num_items == len(version) == len(index) == len(items)
    for codes in items.values():
        assert codes in version
