"""Many arrays as one argument of a kernel: a table of their addresses and shapes.

numba checks and unpacks each array that Python passes, which takes a quarter of a microsecond, and the kernel of a mask reads
fifty. So Python passes `addresses(arrays)`, and the kernel has the named tuple back by `arrays_at`. A kernel may choose among
several tables at run time.

A named tuple of this kind says the types of its arrays in `KINDS`: one of numpy's names for each, with a number of dimensions
if there are several, such as "u1 i8:2".
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

_COLUMNS = 3  # the address, and at most two lengths


class Arrays(Protocol):
    """A named tuple of arrays."""

    @property
    def KINDS(self) -> str: ...

    def __iter__(self) -> Any: ...


def addresses(arrays: Arrays) -> NDArray[np.int64]:
    """Return the address and the shape of each array. The caller keeps the arrays while a kernel may use the table.

    An array that is not as `KINDS` says, or whose memory is not contiguous, is a mistake of this package: AssertionError.
    """
    rows: list[tuple[int, ...]] = []
    for array, (dtype, ndim) in zip(arrays, _kinds(arrays.KINDS), strict=True):
        if (array.dtype, array.ndim) != (dtype, ndim) or not array.flags.c_contiguous:
            raise AssertionError(f"array {len(rows)} of {type(arrays).__name__} is {array.dtype} {array.shape}")
        rows.append((array.__array_interface__["data"][0], *array.shape, *[0] * (_COLUMNS - 1 - ndim)))
    return np.array(rows, np.int64)


def _kinds(text: str) -> Sequence[tuple[np.dtype[Any], int]]:
    """Return the type and the number of dimensions of each array."""
    parts = [part.partition(":") for part in text.split()]
    return [(np.dtype(name), int(ndim or 1)) for name, _, ndim in parts]


def _arrays_at(context: Any, table: Any, kind: Any) -> Any:  # pyright: ignore[reportUnusedParameter]
    """Return, in a kernel, the named tuple of class `kind` whose addresses are in a table."""
    arrays = [types.Array(from_dtype(dtype), ndim, "C") for dtype, ndim in _kinds(kind.instance_class.KINDS)]
    result = types.NamedTuple(arrays, kind.instance_class)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = arrayobj.make_array(signature.args[0])(context, builder, args[0])
        values = [_array_of(context, builder, array, rows.data, number * _COLUMNS) for number, array in enumerate(arrays)]
        return context.make_tuple(builder, result, values)

    return result(table, kind), generate


arrays_at: Any = intrinsic(_arrays_at)


def _array_of(context: Any, builder: Any, array: Any, rows: Any, first: int) -> Any:
    """Return the code of one array from the numbers of its row."""

    def number(column: int) -> Any:
        return builder.load(builder.gep(rows, [cgutils.intp_t(first + column)]))

    value = arrayobj.make_array(array)(context, builder)
    shape = [number(1 + axis) for axis in range(array.ndim)]
    itemsize = cgutils.intp_t(context.get_abi_sizeof(context.get_data_type(array.dtype)))
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    arrayobj.populate_array(
        value,
        data=builder.inttoptr(number(0), value.data.type),
        shape=shape,
        strides=strides,
        itemsize=itemsize,
        meminfo=None,
    )
    return value._getvalue()
