"""The laws of a live index on thousands of small random ones: cheap cases, many of them, the same ones every time."""

import numpy as np
import pytest

from leafbeam.live import LiveIndex
from tests.live.dictionary import SIZES, Model, content, started, union

CASES = 800  # of each law; test_histories has 1,500 longer ones


def some_items(rng: np.random.Generator, first: int, count: int) -> Model:
    codes = np.stack([rng.integers(0, size, count) for size in SIZES], axis=1)
    return {f"i{first + row}": tuple(one) for row, one in enumerate(codes.tolist())}


def some_of(rng: np.random.Generator, items: Model, most: int = 6) -> list[str]:
    keys = sorted(items)
    return rng.choice(keys, min(len(keys), int(rng.integers(0, most))), replace=False).tolist() if keys else []


def insert(index: LiveIndex, items: Model) -> None:
    if items:
        index.insert(list(items.values()), list(items))


def grown(rng: np.random.Generator) -> tuple[LiveIndex, Model]:
    """A base and a delta, some of each deleted and some replaced."""
    base, delta = some_items(rng, 0, int(rng.integers(0, 40))), some_items(rng, 100, int(rng.integers(0, 12)))
    index = started(items=base)
    insert(index, delta)
    items = base | delta
    for one in (gone := some_of(rng, items)):
        del items[one]
    moved = dict(zip(some_of(rng, items), some_items(rng, 0, 6).values(), strict=False))
    with index.transaction() as transaction:
        if gone:
            transaction.delete(gone)
        if moved:
            transaction.replace(list(moved.values()), list(moved))
    return index, items | moved


@pytest.mark.parametrize("part", range(4))
def test_the_merge_of_segments_is_a_build_of_their_union(part: int) -> None:
    rng = np.random.default_rng([1, part])
    for _ in range(CASES // 4):
        index, items = grown(rng)
        assert content(index.version()) == items
        index.compact(wait=True)
        (merged,) = index.version().segments
        in_order = {one: items[one] for one in content(index.version())}
        assert merged.trie.version == union(in_order, SIZES).version
        assert in_order == items


@pytest.mark.parametrize("part", range(4))
def test_an_insert_and_its_delete_leave_what_was_there(part: int) -> None:
    rng = np.random.default_rng([2, part])
    for _ in range(CASES // 4):
        index, items = grown(rng)
        before, new = index.version(), some_items(rng, 1_000, int(rng.integers(1, 8)))
        insert(index, new)
        assert content(index.version()) == items | new
        index.delete(list(new))
        assert content(index.version()) == items
        gone = some_of(rng, items)
        if gone:
            index.delete(gone)
            insert(index, {one: items[one] for one in gone})
        assert content(index.version()) == items
        with index.transaction() as transaction:  # nothing in the end: no version either
            transaction.insert(list(new.values()), list(new))
            transaction.delete(list(new))
        assert content(before) == items
        index.compact(wait=True)
        assert content(index.version()) == items


@pytest.mark.parametrize("part", range(4))
def test_filters_are_sets(part: int) -> None:
    rng = np.random.default_rng([3, part])
    for _ in range(CASES // 4):
        index, items = grown(rng)
        version, everything = index.version(), set(items)
        sets = [set(some_of(rng, items, 30)) for _ in range(3)]
        a, b, c = (version.filter(item_ids=sorted(one)) for one in sets)

        def ids(chosen) -> set:
            found = chosen.item_ids().tolist()
            assert len(found) == len(chosen)
            return set(found)

        assert [ids(one) for one in (a, b, c)] == sets
        assert ids(a & b) == sets[0] & sets[1]
        assert ids(a | b) == sets[0] | sets[1]
        assert ids(a - b) == sets[0] - sets[1]
        assert ids(~a) == everything - sets[0]
        assert ids(~(a | b) & ~c) == everything - sets[0] - sets[1] - sets[2]
        assert a & (b | c) == (a & b) | (a & c)
        assert ~(a & b) == ~a | ~b
        assert (a - b) - c == a - (b | c)
        assert ~~a == a
