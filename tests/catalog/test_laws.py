"""The laws of a live index on thousands of small random ones: cheap cases, many of them, the same ones every time."""

import numpy as np
import pytest

from leafbeam.live.live_index import LiveIndex
from tests.live.live import SIZES, Model, content, started, union

CASES = 800  # of each law; test_histories has 1,500 longer ones


def some_items(rng: np.random.Generator, first: int, count: int) -> Model:
    codes = np.stack([rng.integers(0, size, count) for size in SIZES], axis=1)
    return {f"i{first + row}": tuple(one) for row, one in enumerate(codes.tolist())}


def some_of(rng: np.random.Generator, items: Model, most: int = 6) -> list[str]:
    keys = sorted(items)
    return rng.choice(keys, min(len(keys), int(rng.integers(0, most))), replace=False).tolist() if keys else []


def insert(segments: LiveIndex, items: Model) -> None:
    if items:
        segments.insert(list(items.values()), list(items))


def grown(rng: np.random.Generator) -> tuple[LiveIndex, Model]:
    """A base and a delta, some of each deleted and some replaced."""
    base, delta = some_items(rng, 0, int(rng.integers(0, 40))), some_items(rng, 100, int(rng.integers(0, 12)))
    segments = started(items=base)
    insert(segments, delta)
    items = base | delta
    for one in (gone := some_of(rng, items)):
        del items[one]
    moved = dict(zip(some_of(rng, items), some_items(rng, 0, 6).values(), strict=False))
    with segments.transaction() as change:
        if gone:
            change.delete(gone)
        if moved:
            change.replace(list(moved.values()), list(moved))
    return segments, items | moved


@pytest.mark.parametrize("part", range(4))
def test_the_merge_of_segments_is_a_build_of_their_union(part: int) -> None:
    rng = np.random.default_rng([1, part])
    for _ in range(CASES // 4):
        segments, items = grown(rng)
        assert content(segments.version()) == items
        segments.compact(wait=True)
        (merged,) = segments.version().segments
        in_order = {one: items[one] for one in content(segments.version())}
        assert merged.trie.version == union(in_order, SIZES).version
        assert in_order == items


@pytest.mark.parametrize("part", range(4))
def test_an_insert_and_its_delete_leave_what_was_there(part: int) -> None:
    rng = np.random.default_rng([2, part])
    for _ in range(CASES // 4):
        segments, items = grown(rng)
        before, new = segments.version(), some_items(rng, 1_000, int(rng.integers(1, 8)))
        insert(segments, new)
        assert content(segments.version()) == items | new
        segments.delete(list(new))
        assert content(segments.version()) == items
        gone = some_of(rng, items)
        if gone:
            segments.delete(gone)
            insert(segments, {one: items[one] for one in gone})
        assert content(segments.version()) == items
        with segments.transaction() as change:  # nothing in the end: no version either
            change.insert(list(new.values()), list(new))
            change.delete(list(new))
        assert content(before) == items
        segments.compact(wait=True)
        assert content(segments.version()) == items


@pytest.mark.parametrize("part", range(4))
def test_filters_are_sets(part: int) -> None:
    rng = np.random.default_rng([3, part])
    for _ in range(CASES // 4):
        segments, items = grown(rng)
        version, everything = segments.version(), set(items)
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
