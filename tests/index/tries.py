"""A comparison of tries in every part."""

import numpy as np

from leafbeam import Trie


def same(one: Trie, other: Trie) -> None:
    assert one.version == other.version
    assert one.num_leaves == other.num_leaves
    assert np.array_equal(one.items.order_N, other.items.order_N)
    assert one.item_ids.tolist() == other.item_ids.tolist()
    for ours, theirs in zip(one.levels, other.levels, strict=True):
        assert (ours.layout, ours.width, ours.codes.dtype) == (theirs.layout, theirs.width, theirs.codes.dtype)
        assert np.array_equal(ours.codes, theirs.codes)
        assert ours.boundary == theirs.boundary
