"""Collision strategies: the resulting SIDs are unique, and items without a collision keep their codes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leafbeam.errors import ArgumentError, CodesError
from leafbeam.semid.collisions import add_level, assign_free_codes, group_sizes, spread_level

tables = st.integers(0, 20).flatmap(
    lambda rows: st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=rows, max_size=rows)
)


@given(tables, st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_extra_level_makes_sids_unique_and_keeps_their_codes(rows, seed):
    codes = np.array(rows, np.int64).reshape(-1, 2)
    priority = np.random.default_rng(seed).integers(0, 3, len(codes))
    wider, size = add_level(codes, priority)
    assert (wider[:, :2] == codes).all()
    assert len(np.unique(wider, axis=0)) == len(codes)
    assert size == max(1, group_sizes(codes).max(initial=0))
    assert (wider[:, 2] < size).all()
    for i in range(len(codes)):
        for j in range(len(codes)):
            if (codes[i] == codes[j]).all() and (priority[i], -i) > (priority[j], -j):
                assert wider[i, 2] < wider[j, 2]


@pytest.mark.parametrize("assignment", ["free", "hungarian", "sinkhorn"])
@given(rows=st.integers(0, 16), size=st.integers(4, 8), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_free_codes_make_sids_unique_and_keep_their_first_codes(assignment, rows, size, seed):
    rng = np.random.default_rng(seed)
    last = rng.normal(size=(rng.integers(1, size + 1), 3)).astype(np.float32)
    codes = np.column_stack([np.arange(rows) % 4, rng.integers(0, len(last), rows)]).astype(np.int64)
    residuals = rng.normal(size=(rows, 3)).astype(np.float32)
    moved = assign_free_codes(codes, (4, size), residuals, last, assignment)
    assert (moved[:, 0] == codes[:, 0]).all()
    assert len(np.unique(moved, axis=0)) == rows
    assert (moved[:, 1] < size).all()


def test_the_nearest_item_keeps_the_code_and_the_other_gets_the_nearest_free_one():
    last = np.array([[0.0], [1.0], [5.0]], np.float32)
    codes = np.array([[0, 0], [0, 0], [1, 2]])
    residuals = np.array([[0.3], [0.1], [5.0]], np.float32)
    assert assign_free_codes(codes, (2, 3), residuals, last).tolist() == [[0, 1], [0, 0], [1, 2]]


def test_sids_without_collisions_stay():
    codes = np.array([[0, 0], [0, 1], [1, 0]])
    residuals = np.zeros((3, 1), np.float32)
    assert (assign_free_codes(codes, (2, 2), residuals, np.zeros((2, 1), np.float32)) == codes).all()
    assert add_level(codes)[0][:, 2].tolist() == [0, 0, 0]


def test_more_items_than_free_codes_is_an_error():
    codes = np.zeros((4, 2), np.int64)
    with pytest.raises(CodesError, match=r"4 items share the codes \(0,\)"):
        assign_free_codes(codes, (1, 3), np.zeros((4, 1), np.float32), np.zeros((3, 1), np.float32))


def test_priorities_of_another_length_are_an_error():
    with pytest.raises(ArgumentError, match="2 priorities for 3 items"):
        add_level(np.zeros((3, 1), np.int64), np.zeros(2))


def test_the_hungarian_assignment_has_the_least_distance_and_the_greedy_one_more():
    last = np.array([[0.0], [1.0], [9.0]], np.float32)
    codes = np.zeros((3, 2), np.int64)
    residuals = np.array([[0.1], [0.2], [0.9]], np.float32)

    def cost(assignment) -> float:
        moved = assign_free_codes(codes, (1, 3), residuals, last, assignment)
        return float(((residuals - last[moved[:, 1]]) ** 2).sum())

    best = min(((residuals - last[list(order)]) ** 2).sum() for order in itertools.permutations(range(3)))
    assert cost("hungarian") == pytest.approx(best)
    rng = np.random.default_rng(0)
    totals = dict.fromkeys(("free", "hungarian", "sinkhorn"), 0.0)
    for _ in range(20):
        last, residuals = (rng.normal(size=(count, 2)).astype(np.float32) for count in (12, 10))
        start = ((residuals[:, None] - last[None]) ** 2).sum(axis=2).argmin(axis=1)
        codes = np.column_stack([np.zeros(10, np.int64), start])
        for assignment in totals:
            moved = assign_free_codes(codes, (1, 12), residuals, last, assignment)
            totals[assignment] += float(((residuals - last[moved[:, 1]]) ** 2).sum())
    assert totals["hungarian"] < totals["free"]
    assert totals["hungarian"] <= totals["sinkhorn"] < 2 * totals["hungarian"]


def test_dead_codes_are_used_when_live_ones_run_out():
    codes, last = np.zeros((3, 2), np.int64), np.array([[0.0], [1.0]], np.float32)
    for assignment in ("free", "hungarian", "sinkhorn"):
        moved = assign_free_codes(codes, (1, 9), np.array([[0.0], [0.9], [0.4]], np.float32), last, assignment)
        assert set(moved[:, 1].tolist()) == {0, 1, 2}
    with pytest.raises(ArgumentError, match="assignment is 'best'"):
        assign_free_codes(codes, (1, 9), np.zeros((3, 1), np.float32), last, "best")


def test_spread_codes_differ_within_a_prefix_and_have_as_many_items_each():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 5, (200, 2))
    spread = spread_level(codes, 40)
    assert (spread[:, :2] == codes).all()
    assert len(np.unique(spread, axis=0)) == 200
    assert (np.bincount(spread[:, 2], minlength=40) == 5).all()
    largest = group_sizes(codes).max()
    assert len(np.unique(spread_level(codes, int(largest)), axis=0)) == 200
    with pytest.raises(CodesError, match=f"at least {largest}"):
        spread_level(codes, int(largest) - 1)
    assert spread_level(np.empty((0, 2), np.int64), 4).shape == (0, 3)
