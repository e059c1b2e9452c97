"""Item columns: the largest number below each prefix, after any changes of some items."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from leafbeam.index import ItemColumn, Trie
from leafbeam.index.node_maxima import NodeMaxima

SHAPES = {"listings": ([3, 4, 5], 400), "columns": ([40, 40], 60), "shared": ([4, 4, 4], 300), "one level": ([9], 20)}


def trie_of(shape: str, rng: np.random.Generator) -> Trie:
    sizes, num_items = SHAPES[shape]
    return Trie.build(rng.integers(0, sizes, (num_items, len(sizes))), sizes)


def nodes(trie: Trie, maxima: NodeMaxima) -> list[NDArray[np.float32]]:
    """The maximum of every node of every level, in order, and that of the root."""
    found = [np.array([maxima.root])]
    codes_ML = np.array([trie.codes_at(np.arange(trie.num_leaves))]).reshape(trie.num_leaves, -1)
    for level in range(trie.num_levels):
        _, first_S = np.unique(codes_ML[:, : level + 1], axis=0, return_index=True)
        found.append(maxima.at(trie, level, np.sort(first_S)))
    return found


@pytest.mark.parametrize("shape", SHAPES)
@given(seed=st.integers(0, 2**32 - 1), uses=st.lists(st.booleans(), max_size=5))
def test_bounds_after_changes_are_those_of_a_new_column(shape: str, seed: int, uses: list[bool]) -> None:
    rng = np.random.default_rng(seed)
    trie = trie_of(shape, rng)
    column = ItemColumn.of(trie, rng.integers(-3, 4, trie.num_items))
    for is_used in uses:
        if is_used:
            column.bounds([trie])
            column.scaled(-1).bounds([trie])
        ordinals_n = rng.choice(trie.num_items, rng.integers(0, 5), replace=False)
        before_N = column.parts[0].copy()
        changed = column.with_values(ordinals_n, rng.integers(-5, 6, len(ordinals_n)).astype(np.float32), trie)
        np.testing.assert_array_equal(column.parts[0], before_N)
        column = changed
    for weight, sign in ((2.0, 1), (-0.5, -1)):
        found = nodes(trie, column.scaled(weight).bounds([trie])[0])
        expected = nodes(trie, NodeMaxima.of(trie, np.float32(sign) * column.parts[0].astype(np.float32)))
        for mine, best in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, best)


def test_a_few_changes_look_at_their_own_nodes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    trie = trie_of("listings", rng)
    column = ItemColumn.of(trie, rng.normal(size=trie.num_items))
    column.bounds([trie])
    changed = column.with_values(np.array([7]), np.array([9.0], np.float32), trie)
    monkeypatch.setattr(NodeMaxima, "of", None)  # a pass over all items
    assert changed.bounds([trie])[0].root == 9
    assert column.bounds([trie])[0].root < 9
