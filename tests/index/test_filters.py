import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Filter, Trie
from leafbeam.errors import FilterError, ForeignFilterError, ItemIdError
from leafbeam.index import Version
from leafbeam.index.filters import check_filter


def shop(num_items: int, duplicates: bool, seed: int = 0) -> tuple[Trie, np.ndarray]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3 if duplicates else 1000, (num_items, 3))
    ids = rng.permutation(num_items * 3)[:num_items]
    return Trie.build(codes, [1000] * 3, ids), ids


def members(chosen: Filter) -> set[int]:
    return {int(item) for item in chosen.item_ids()}


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 200), st.booleans(), st.integers(0, 2**32))
def test_filters_obey_the_laws_of_sets(num_items: int, duplicates: bool, seed: int) -> None:
    trie, ids = shop(num_items, duplicates, seed)
    rng = np.random.default_rng(seed)
    masks = [rng.random(num_items) < share for share in rng.random(3)]
    a, b, c = (trie.filter(mask) for mask in masks)
    sets = [set(ids[mask].tolist()) for mask in masks]
    assert [members(one) for one in (a, b, c)] == sets
    assert members(a & b) == sets[0] & sets[1]
    assert members(a | b) == sets[0] | sets[1]
    assert members(a - b) == sets[0] - sets[1]
    assert members(~a) == set(ids.tolist()) - sets[0]
    assert a & (b | c) == (a & b) | (a & c)
    assert ~(a | b) == ~a & ~b
    assert a - b == a & ~b
    assert len(a) + len(~a) == num_items
    assert a == trie.filter(item_ids=list(sets[0]))
    assert all((int(item) in a) == (int(item) in sets[0]) for item in ids)
    assert "nope" not in a


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([0, 1, 63, 64, 65, 1000, 200_130]),
    st.sampled_from([0.0, 0.001, 0.1, 0.13, 0.9, 1.0]),
    st.integers(0, 2**32),
)
def test_a_mask_and_ids_make_the_filter_that_numpy_makes(num_items: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trie = Trie.build(rng.integers(0, 300, (num_items, 2)), [300] * 2)
    mask = rng.random(num_items) < share
    expected = np.flatnonzero(mask[trie.items.order_N])
    before = trie.filter(mask)
    assert before.ordinals.positions().tolist() == expected.tolist()
    assert before.ordinals.count == len(expected)
    assert np.array_equal(trie.items.ordinal_N[trie.items.order_N], np.arange(num_items))
    assert trie.filter(item_ids=rng.permutation(np.flatnonzero(mask))) == before
    assert trie.filter(np.repeat(mask, 2)[::2]) == before  # a mask whose entries are apart in memory


def test_a_leaf_is_alive_while_one_of_its_items_is() -> None:
    trie = Trie.build([[0, 0], [0, 0], [1, 1]], [2, 2], ["a", "b", "c"])
    assert trie.filter(item_ids=["a"]).parts[0].leaf_positions().tolist() == [0]
    assert trie.filter(item_ids=["b", "c"]).parts[0].leaf_positions().tolist() == [0, 1]
    assert trie.filter(item_ids=["b", "c"]).deny(["b"]).parts[0].leaf_positions().tolist() == [1]
    assert (trie.filter(item_ids=["a"]) - trie.filter(item_ids=["a"])).parts[0].num_reachable() == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 200), st.booleans(), st.integers(0, 2**32))
def test_a_deny_list_equals_a_difference(num_items: int, duplicates: bool, seed: int) -> None:
    trie, ids = shop(num_items, duplicates, seed)
    rng = np.random.default_rng(seed)
    a, b = trie.filter(rng.random(num_items) < 0.7), trie.filter(rng.random(num_items) < 0.5)
    first, second = (rng.choice(ids, rng.integers(0, num_items + 1), replace=False) for _ in range(2))
    unknown = [int(ids.max()) + 1]
    for allowed in (a, trie.all_items):
        less = allowed.deny([*first.tolist(), *unknown]).deny(second)
        assert allowed.deny_located(*Version.of(trie).locate(first)) == allowed.deny(first)
        expected = allowed - trie.filter(item_ids=first) - trie.filter(item_ids=second)
        assert less == expected
        assert hash(less) == hash(expected)
        assert len(less) == len(expected)
        assert members(less) == members(expected)
        assert (less & b) == (expected & b)
        assert ~less == ~expected
        assert all((int(item) in less) == (int(item) in expected) for item in ids)
        assert less.parts[0].leaf_positions().tolist() == expected.parts[0].leaf_positions().tolist()
        assert less.parts[0].num_reachable() == expected.parts[0].num_reachable()


def test_the_truth_of_a_filter_is_an_error_and_so_is_an_operand_that_is_none() -> None:
    trie, ids = shop(20, False)
    a, b = trie.filter(item_ids=ids[:5]), Version.of(trie).filter(item_ids=ids[:5])
    for one in (a, b):
        with pytest.raises(FilterError, match=r"combine filters with & \| - ~; len\(f\) > 0"):
            bool(one)
        with pytest.raises(FilterError, match="an operand is 'x': expected a"):
            one & "x"  # type: ignore[operator]
    assert a & b == a  # a version of one trie without deleted items is that trie


def test_an_empty_index_has_filters_too() -> None:
    trie = Trie.build(np.empty((0, 2), np.int64), [4, 4])
    assert len(trie.filter([])) == 0
    assert len(~trie.filter(item_ids=[])) == 0


@pytest.mark.parametrize(
    ("mask", "message"),
    [([True], "expected \\(20,\\)"), (np.ones((20, 1), np.bool_), "expected \\(20,\\)"), (np.ones(20), "expected bool")],
)
def test_a_mask_that_is_not_one_is_refused(mask: object, message: str) -> None:
    trie, _ = shop(20, False)
    with pytest.raises(FilterError, match=message):
        trie.filter(mask)  # type: ignore[arg-type]


def test_unknown_ids_are_refused_by_name() -> None:
    trie, _ = shop(20, False)
    with pytest.raises(ItemIdError, match="1 of 1 item id is unknown, 987654 among them"):
        trie.filter(item_ids=[987654])


def test_filters_of_two_indexes_do_not_mix() -> None:
    one, _ = shop(20, False, 1)
    other, _ = shop(20, False, 2)
    with pytest.raises(ForeignFilterError, match="two indexes"):
        _ = one.filter(np.ones(20, np.bool_)) & other.filter(np.ones(20, np.bool_))
    with pytest.raises(ForeignFilterError, match="make it again with"):
        check_filter(one, other.filter(np.ones(20, np.bool_)))
