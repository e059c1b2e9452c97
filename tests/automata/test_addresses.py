"""Named tuples of arrays that a kernel finds by their addresses."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from leafbeam.automata.addresses import addresses, arrays_at
from leafbeam.jit import njit


class Some(NamedTuple):
    bytes_T: NDArray[np.uint8]
    table_NC: NDArray[np.int64]
    yes_N: NDArray[np.bool_]
    words_W: NDArray[np.uint64]
    parent_N: NDArray[np.int32]

    KINDS = "u1 i8:2 b1 u8 i4"


def some(**changes: Any) -> Some:
    arrays = Some(
        np.arange(5, dtype=np.uint8),
        np.arange(6).reshape(2, 3),
        np.array([True, False]),
        np.full(3, 2**63 + 7, np.uint64),
        np.array([-1, 4], np.int32),
    )
    return arrays._replace(**changes)


@njit(cache=True, nogil=True)
def _copies(rows: Any) -> Any:
    arrays = arrays_at(rows, Some)
    arrays.bytes_T[0] += 1
    return arrays.bytes_T.copy(), arrays.table_NC.copy(), arrays.yes_N.copy(), arrays.words_W.copy(), arrays.parent_N.copy()


def test_a_kernel_reads_and_writes_the_arrays_of_a_table() -> None:
    arrays = some()
    for array, copy in zip(arrays, _copies(addresses(arrays)), strict=True):
        assert np.array_equal(array, copy)
        assert array.dtype == copy.dtype
    assert arrays.bytes_T[0] == 1


def test_empty_arrays_have_their_shape() -> None:
    arrays = some(table_NC=np.empty((0, 3), np.int64), parent_N=np.empty(0, np.int32))
    copies = _copies(addresses(arrays))
    assert (copies[1].shape, copies[4].shape) == ((0, 3), (0,))


@pytest.mark.parametrize(
    "changes",
    [
        {"bytes_T": np.arange(5)},
        {"table_NC": np.arange(6)},
        {"table_NC": np.arange(6).reshape(2, 3).T},
        {"words_W": np.full(6, 1, np.uint64)[::2]},
        {"parent_N": np.arange(3)},
    ],
    ids=["type", "dimensions", "order", "gaps", "size"],
)
def test_arrays_of_another_kind_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        addresses(some(**changes))
