"""The log-sum-exp of one row: one pass, exact enough, settled by the row's content alone, and every NaN is found."""

import numpy as np
import pytest
from numba import njit

from leafbeam.ops.constrain.cpu.logsumexp import CHUNK, log_sum_exp


@njit
def _run(row_V, chunks):
    return log_sum_exp(row_V, chunks)


def _rows(size: int, count: int = 60):
    rng = np.random.default_rng(size)
    for turn in range(count):
        row_V = (rng.normal(size=size) * 10 ** rng.uniform(-2, 2)).astype(np.float32)
        if turn % 5 == 0:
            row_V[rng.random(size) < 0.5] = -np.inf
        if turn % 7 == 0:
            row_V[:CHUNK] = -np.inf  # no reference in the first chunk
        if turn % 11 == 0:
            row_V[:CHUNK] -= 1000  # one far below the maximum
        if turn % 13 == 0:
            row_V[rng.integers(size)] += 40
        yield rng, row_V


SIZES = [1, 5, 63, 64, 65, 127, 128, 200, 2048, 4097]


@pytest.mark.parametrize("size", SIZES)
def test_it_agrees_with_float64_and_is_never_below_the_maximum(size):
    for _, row_V in _rows(size):
        chunks = np.full(size // CHUNK + 1, np.nan, np.float32)
        top, lse = _run(row_V, chunks)
        assert top == row_V.max()
        assert lse >= top
        num_chunks = -(-size // CHUNK)
        np.testing.assert_array_equal(chunks[:num_chunks], [row_V[c * CHUNK :][:CHUNK].max() for c in range(num_chunks)])
        if top > -np.inf:
            exact = np.log(np.sum(np.exp(row_V.astype(np.float64) - top))) + top
            assert abs(lse - exact) <= 3e-6 * max(1.0, abs(exact))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_anywhere_is_found(size, bad):
    for rng, row_V in _rows(size):
        row_V[rng.integers(size)] = bad
        assert np.isnan(_run(row_V, np.empty(size // CHUNK + 1, np.float32))[1])


def test_equal_rows_have_equal_sums_wherever_they_lie():
    for _, row_V in _rows(300):
        lying = np.empty(301, np.float32)
        lying[1:] = row_V  # another alignment
        assert _run(row_V, np.empty(8, np.float32)) == _run(lying[1:], np.empty(8, np.float32))
