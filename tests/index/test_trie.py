from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam import Trie
from leafbeam.errors import ArgumentError, CodesError, ItemIdError
from leafbeam.index.level_builder import build_levels

DTYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@st.composite
def tables(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 7, 100, 257, 70_000, 2**31]), min_size=1, max_size=20)))
    num_items = draw(st.sampled_from([0, 1, 2, 17, 300, 5000]))
    if draw(st.booleans()):
        columns = [rng.integers(0, size, num_items) for size in sizes]
    else:
        columns = [np.minimum(rng.geometric(0.5, num_items) - 1, size - 1) for size in sizes]
    return np.stack(columns, axis=1).astype(np.int64).reshape(num_items, len(sizes)), sizes


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(1, 3))
def test_build_equals_numpy(table: tuple[np.ndarray, tuple[int, ...]], threads: int) -> None:
    codes, sizes = table
    built = build_levels(codes, sizes, threads)
    order = np.lexsort(codes.T[::-1]) if len(codes) else np.empty(0, np.int64)
    assert np.array_equal(built.order_N, order)
    distinct, counts = np.unique(codes, axis=0, return_counts=True) if len(codes) else (codes, np.empty(0, np.int64))
    assert built.num_leaves == len(distinct)
    assert (built.leaf_indptr is None) == (len(distinct) == len(codes))
    if built.leaf_indptr is not None:
        assert np.array_equal(built.leaf_indptr, np.concatenate([[0], np.cumsum(counts)]))
    starts = np.zeros(len(distinct), np.bool_)
    starts[:1] = True
    for number, level in enumerate(built.levels):
        starts[1:] |= distinct[1:, number] != distinct[:-1, number]
        assert np.array_equal(level.codes_at(np.arange(len(distinct))), distinct[:, number])
        assert level.num_nodes == starts.sum()
        if level.boundary is None:
            assert starts.all()
        else:
            assert np.array_equal(level.boundary.positions(), np.flatnonzero(starts))
        assert (level.firsts is not None) == (level.boundary is not None and level.num_nodes * 4 <= len(distinct))
        if level.firsts is not None:
            assert np.array_equal(level.firsts, np.flatnonzero(starts))


def test_a_large_build_takes_the_parallel_path_and_agrees() -> None:
    rng = np.random.default_rng(5)
    codes = np.minimum(rng.geometric(0.02, (250_000, 5)) - 1, 199)
    built = build_levels(codes, (200,) * 5, 2)
    assert np.array_equal(built.order_N, np.lexsort(codes.T[::-1]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_long_runs_of_equal_words_are_sorted_by_all_threads(threads: int) -> None:
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 3, (330_000, 6))
    codes[:, :2] = 0  # word 0 is the same in every row: one run across all parts
    built = build_levels(codes, (2**31,) * 6, threads)
    assert np.array_equal(built.order_N, np.lexsort(codes.T[::-1]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_integer_dtype_and_memory_order(dtype: type[np.integer]) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 100, (500, 3))
    expected = Trie.build(codes, [100] * 3)
    assert Trie.build(codes.astype(dtype), [100] * 3).version == expected.version
    assert Trie.build(np.asfortranarray(codes.astype(dtype)), [100] * 3).version == expected.version
    assert Trie.build(codes.astype(dtype)[::2], [100] * 3).version == Trie.build(codes[::2].copy(), [100] * 3).version


def test_what_is_in_the_index_and_what_is_not() -> None:
    codes = np.array([[3, 1], [0, 2], [3, 1], [3, 0]])
    trie = Trie.build(codes, [4, 4], ["c", "a", "d", "b"])
    assert len(trie) == 4
    assert trie.num_leaves == 3
    assert (3, 1) in trie
    assert [3, 0] in trie
    for absent in [(3, 2), (1, 1), (3,), (3, 1, 0), (-1, 0), (9, 9)]:
        assert absent not in trie
    assert trie.codes_of(["d", "a"]).tolist() == [[3, 1], [0, 2]]
    assert trie.find(["b", "nope", "c"]).tolist() == [3, -1, 0]
    assert trie.knows(["b", "nope"]).tolist() == [True, False]
    assert trie.item_ids.tolist() == ["c", "a", "d", "b"]


def test_items_without_ids_are_their_rows() -> None:
    trie = Trie.build([[1], [0], [2]], [3])
    assert trie.item_ids.tolist() == [0, 1, 2]
    assert trie.codes_of([2, 0]).tolist() == [[2], [1]]
    assert trie.find([5, -1, 1]).tolist() == [-1, -1, 1]


def test_unicode_and_long_item_ids_survive() -> None:
    ids = ["ítem", "商品-1", "x" * 300, "😀"]
    trie = Trie.build([[0], [1], [2], [3]], [4], ids)
    assert trie.item_ids.tolist() == ids
    assert trie.codes_of(["商品-1"]).tolist() == [[1]]


def test_an_integer_asked_of_string_ids_is_unknown() -> None:
    trie = Trie.build([[0], [1]], [2], ["0", "1"])
    assert trie.find([0, 1]).tolist() == [-1, -1]
    with pytest.raises(ItemIdError, match="whose ids are strings"):
        trie.codes_of([0])


@pytest.mark.parametrize(
    ("codes", "sizes", "message"),
    [
        ([[0, 5]], [4, 4], "row 0 has code 5 at level 1"),
        ([[0, 1], [-1, 0]], [4, 4], "row 1 has code -1 at level 0"),
        (np.array([[2**63 + 1]], np.uint64), [4], "level 0"),
        ([[0, 1, 2]], [4, 4], r"shape \(1, 3\): expected \(N, 2\)"),
        ([0, 1], [4], r"shape \(2,\)"),
        ([[0.5]], [4], "expected integers"),
        ([["a"]], [4], "expected integers"),
        ([[True]], [4], "expected integers"),
        ([[0]], [], "0 levels"),
        ([[0] * 66], [2] * 66, "66 levels"),
        ([[0]], [0], "0 codes"),
        ([[0]], [2**31 + 1], "expected 1 to 2\\^31"),
    ],
)
def test_a_table_that_is_not_one_is_refused(codes: object, sizes: list[int], message: str) -> None:
    with pytest.raises(CodesError, match=message):
        Trie.build(np.array(codes), sizes)


@pytest.mark.parametrize(
    ("codes", "sizes", "message"),
    [
        ([[0, 1], [2]], [4, 4], "rows of different lengths: expected 2 codes"),
        ([[0]], [4.5], r"codebook_sizes=\[4.5\]: expected whole numbers"),
        ([[0]], ["4"], "expected whole numbers"),
        ([[0]], [[4]], "expected whole numbers"),
        ([[0]], 4, "codebook_sizes=4: expected whole numbers"),
        ([[0]], None, "codebook_sizes=None: expected whole numbers"),
        (None, [4], r"shape \(\)"),
        ("01", [4], r"shape \(\)"),
    ],
)
def test_what_is_no_table_and_no_sizes_is_refused_by_name(codes: Any, sizes: Any, message: str) -> None:
    with pytest.raises(CodesError, match=message):
        Trie.build(codes, sizes)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], "expected \\(2,\\)"),
        (["a", "a"], "occurs more than once"),
        ([1.5, 2.5], "float"),
        ([["a"], ["b"]], "expected a flat|expected \\(2,\\)"),
        (np.array(["a", 1], object), "all integers or all strings"),
        (np.array([1, 2**63], np.uint64), "pass them as strings"),
    ],
)
def test_item_ids_that_cannot_be_are_refused(ids: object, message: str) -> None:
    with pytest.raises(ItemIdError, match=message):
        Trie.build([[0], [1]], [2], ids)  # type: ignore[arg-type]


def test_the_version_changes_with_codes_ids_and_order() -> None:
    base = Trie.build([[0, 1], [1, 0]], [2, 2], ["a", "b"])
    same = Trie.build(np.array([[0, 1], [1, 0]], np.uint8), [2, 2], ["a", "b"])
    others = [
        Trie.build([[0, 1], [1, 1]], [2, 2], ["a", "b"]),
        Trie.build([[0, 1], [1, 0]], [2, 2], ["b", "a"]),
        Trie.build([[0, 1], [1, 0]], [2, 2]),
        Trie.build([[1, 0], [0, 1]], [2, 2], ["a", "b"]),
        Trie.build([[0, 1], [1, 0]], [2, 3], ["a", "b"]),
    ]
    assert same.version == base.version
    assert len({base.version, *(other.version for other in others)}) == 6


def test_bytes_an_item_at_the_papers_shape() -> None:
    rng = np.random.default_rng(0)
    trie = Trie.build(rng.integers(0, 2048, (300_000, 8)), [2048] * 8)
    assert trie.bytes_per_item < 16
    assert [level.layout for level in trie.levels][:2] == ["listing", "column"]
    assert trie.levels[-1].layout == "leaves"


def test_filter_takes_one_of_its_two_arguments() -> None:
    trie = Trie.build([[0]], [1])
    with pytest.raises(ArgumentError, match="one of the two"):
        trie.filter()
    with pytest.raises(ArgumentError, match="one of the two"):
        trie.filter([True], item_ids=[0])


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 7, 256, 257, 2048, 70_000, 2**31]), st.integers(0, 300))
def test_packed_codes_are_the_same_codes(seed: int, size: int, num_items: int) -> None:
    rng = np.random.default_rng(seed)
    codes = np.stack(
        [rng.integers(0, min(size, 9), num_items), rng.integers(0, size, num_items), np.arange(num_items) % size], 1
    )
    plain = Trie.build(codes, [size] * 3)
    packed = plain.packed()
    packed.verify()
    assert packed.packed().version == packed.version
    assert (packed.version == plain.version) == all(level.width == 0 for level in packed.levels)
    assert np.array_equal(packed.codes_at(np.arange(plain.num_leaves)), plain.codes_at(np.arange(plain.num_leaves)))
    for one, other in zip(plain.levels, packed.levels, strict=True):
        assert np.array_equal(one.codes, other.plain_codes)
        assert one.codes.dtype == other.plain_codes.dtype
    for row in rng.integers(0, max(1, num_items), 20 if num_items else 0):
        assert packed.leaf_of(codes[row]) == plain.leaf_of(codes[row]) >= 0
        stranger = [*codes[row][:2], int(rng.integers(0, size))]
        assert packed.leaf_of(stranger) == plain.leaf_of(stranger)


def test_packing_2048_codes_saves_five_bits_each() -> None:
    codes = np.random.default_rng(0).integers(0, 2048, (20_000, 8))
    plain, packed = Trie.build(codes, [2048] * 8), Trie.build(codes, [2048] * 8, packed=True)
    assert packed.bytes_per_item < plain.bytes_per_item - 7 * 5 / 8 + 0.1
    assert Trie.build(codes % 256, [256] * 8, packed=True).bytes_per_item == Trie.build(codes % 256, [256] * 8).bytes_per_item
