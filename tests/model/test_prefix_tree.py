"""Longest stored prefixes against a search of a plain set."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leafbeam.model.prefix_tree import PrefixTree

sequences = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)


def as_bytes(tokens: tuple[int, ...]) -> bytes:
    return np.array(tokens, np.int64).tobytes()


@given(st.lists(st.tuples(st.booleans(), sequences), max_size=60), st.lists(sequences, max_size=30))
def test_the_longest_prefix_is_that_of_a_plain_set_after_any_changes(
    changes: list[tuple[bool, tuple[int, ...]]], asked: list[tuple[int, ...]]
) -> None:
    tree, members = PrefixTree(), set[tuple[int, ...]]()
    for adds, tokens in changes:
        if adds:
            tree.add(as_bytes(tokens))
            members.add(tokens)
        elif members:
            gone = sorted(members)[sum(tokens) % len(members)]
            tree.remove(as_bytes(gone))
            members.remove(gone)
        for key in [*asked, tokens]:
            truth = max((len(member) for member in members if key[: len(member)] == member), default=0)
            assert tree.longest_prefix(as_bytes(key)) == truth


def test_a_tree_whose_members_are_removed_holds_nothing() -> None:
    tree = PrefixTree()
    members = [as_bytes(tuple(range(length))) for length in range(1, 30)] + [as_bytes((0, 1, 9, n)) for n in range(5)]
    for member in members:
        tree.add(member)
    for member in members[::2] + members[1::2]:
        tree.remove(member)
    assert not tree._root.children  # pyright: ignore[reportPrivateUsage]
