from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.index import Bitmap
from leafbeam.index import bit_kernels as bits

masks = st.integers(0, 300).flatmap(
    lambda size: st.tuples(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.5, 0.98, 1.0])).map(
        lambda seed: np.random.default_rng(seed[0]).random(size) < seed[1]
    )
)


@given(masks)
def test_rank_counts_what_lies_before(mask: np.ndarray) -> None:
    bitmap = Bitmap.from_mask(mask)
    before = np.concatenate([[0], np.cumsum(mask)])
    assert [bitmap.rank(position) for position in range(len(mask) + 1)] == before.tolist()
    positions = np.arange(len(mask) + 1, dtype=np.uint32)
    many = np.empty(len(positions), np.int64)
    bits.rank_many(bitmap.words_W, bitmap.before_W, positions, many)
    assert many.tolist() == before.tolist()


@given(masks)
def test_next_and_previous_set_bit(mask: np.ndarray) -> None:
    bitmap = Bitmap.from_mask(mask)
    size = len(mask)
    for position in range(size):
        after = np.flatnonzero(mask[position:])
        assert bits.next_set(bitmap.words_W, position, size) == (position + after[0] if len(after) else size)
        before = np.flatnonzero(mask[: position + 1])
        if len(before):
            assert bits.prev_set(bitmap.words_W, position) == before[-1]


@given(masks, st.integers(0, 2**32))
def test_algebra_is_that_of_boolean_arrays(mask: np.ndarray, seed: int) -> None:
    other = np.random.default_rng(seed).random(len(mask)) < 0.5
    a, b = Bitmap.from_mask(mask), Bitmap.from_mask(other)
    assert a & b == Bitmap.from_mask(mask & other)
    assert a | b == Bitmap.from_mask(mask | other)
    assert a - b == Bitmap.from_mask(mask & ~other)
    assert ~a == Bitmap.from_mask(~mask)
    assert (~a).count == len(mask) - a.count
    assert np.array_equal(a.positions(), np.flatnonzero(mask))


def test_positions_may_come_in_any_order_and_twice() -> None:
    bitmap = Bitmap.from_positions(np.array([70, 3, 70, 0]), 100)
    assert bitmap.positions().tolist() == [0, 3, 70]
    assert 70 in bitmap
    assert 71 not in bitmap
    assert -1 not in bitmap
    assert 1000 not in bitmap


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 128])
def test_full_has_every_position_and_none_beyond(size: int) -> None:
    assert Bitmap.full(size).count == size
    assert (~Bitmap.full(size)).count == 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([1, 1, 1, 2, 63, 64, 65, 130]), max_size=400),
    st.sampled_from([0.0, 0.001, 0.02, 0.5, 1.0]),
    st.integers(0, 2**32),
)
def test_a_group_is_set_iff_one_of_its_positions_is(sizes: list[int], share: float, seed: int) -> None:
    leaf_indptr = np.cumsum([0, *sizes]).astype(np.uint32)
    mask = np.random.default_rng(seed).random(int(leaf_indptr[-1])) < share
    groups = Bitmap.from_mask(mask).any_by_group(leaf_indptr)
    expected = [bool(mask[begin:end].any()) for begin, end in pairwise(leaf_indptr)]
    assert groups == Bitmap.from_mask(np.array(expected, np.bool_))
    assert [groups.rank(one) for one in range(len(sizes) + 1)] == np.cumsum([0, *expected]).tolist()


@pytest.mark.parametrize("kind", [int, np.int64, np.int32, np.uint32, np.uint64])
@pytest.mark.parametrize("position", [62, 63, 127, 191])
def test_positions_may_be_numbers_of_numpy(kind: type, position: int) -> None:
    """T1: the last bit of a word, whose value is above numpy's int64."""
    bitmap = Bitmap.from_mask(np.ones(192, np.bool_))
    assert kind(position) in bitmap
    assert kind(192) not in bitmap
    assert bitmap.rank(kind(position)) == position
