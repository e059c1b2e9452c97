"""The legal codes of every row of a batch, as a constraint lists them and a head takes them.

Shapes: R rows (beams of all requests), C legal codes of all rows together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import CodesError, counted

Array = TypeVar("Array")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LegalCodes(Generic[Array]):
    """The legal codes of each row (of each beam), in CSR form.

    `LegalCodes.of` checks host arrays. Arrays that a kernel has just written on a device go straight into the constructor:
    checking them would synchronise the device.

    Args:
        indptr_R1: Shape (R + 1,), int64. Row r may take code_C[indptr_R1[r] : indptr_R1[r + 1]].
        code_C: Shape (C,), int64. The codes of all rows, ascending within a row.
        max_row: The number of codes of the longest row, or more.
    """

    indptr_R1: Array
    code_C: Array
    max_row: int

    def __repr__(self) -> str:
        return f"LegalCodes(num_rows={self.num_rows}, count={self.count}, max_row={self.max_row})"

    @classmethod
    def of(
        cls, indptr_R1: NDArray[np.integer], code_C: NDArray[np.integer], num_codes: int, *, may_be_empty: bool = False
    ) -> LegalCodes[NDArray[np.int64]]:
        """Check legal codes against a codebook. Cost: a few passes over them.

        Args:
            indptr_R1: Shape (R + 1,), any integer dtype.
            code_C: Shape (C,), any integer dtype.
            num_codes: The number of codes of the codebook.
            may_be_empty: Allow rows without a legal code, as dead beams have.

        Raises:
            CodesError: If the arrays do not describe ascending, distinct codes of the codebook.
        """
        for name, array in (("indptr_R1", indptr_R1), ("code_C", code_C)):
            if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
                raise CodesError(f"{name} has shape {array.shape} and dtype {array.dtype}: expected one row of integers")
        sizes_R = np.diff(indptr_R1.astype(np.int64))
        if len(indptr_R1) < 1 or indptr_R1[0] != 0 or indptr_R1[-1] != len(code_C) or (sizes_R < 0).any():
            ends = (int(indptr_R1[0]), int(indptr_R1[-1])) if len(indptr_R1) else ()
            raise CodesError(
                f"indptr_R1 runs {ends} over {counted(len(code_C), 'code')}: expected ascending from 0 to {len(code_C):,}"
            )
        if not may_be_empty and (sizes_R == 0).any():
            raise CodesError(
                f"row {int(np.flatnonzero(sizes_R == 0)[0])} has no legal code at all: leave it out, or pass may_be_empty=True "
                f"where rows may be dead beams"
            )
        codes_C = np.ascontiguousarray(code_C, np.int64)
        if len(codes_C) and not 0 <= int(codes_C.min()) <= int(codes_C.max()) < num_codes:
            raise CodesError(
                f"legal codes run from {int(codes_C.min()):,} to {int(codes_C.max()):,}: expected 0 to {num_codes - 1:,}, the "
                f"rows of the weight"
            )
        starts_row = np.zeros(len(codes_C) + 1, np.bool_)
        starts_row[indptr_R1] = True
        if not (np.diff(codes_C, prepend=-1)[~starts_row[:-1]] > 0).all():
            raise CodesError("the legal codes of a row must be ascending and distinct: sort each row, without duplicates")
        return LegalCodes(
            indptr_R1=np.ascontiguousarray(indptr_R1, np.int64), code_C=codes_C, max_row=int(sizes_R.max(initial=0))
        )

    @classmethod
    def of_rows(cls, indptr_R1: NDArray[np.int64], code_C: NDArray[np.int64]) -> LegalCodes[NDArray[np.int64]]:
        """Return the legal codes that a constraint has listed on the host; nothing is checked or copied."""
        return LegalCodes(indptr_R1=indptr_R1, code_C=code_C, max_row=int(np.diff(indptr_R1).max(initial=0)))

    def map(self, move: Callable[[Array], Any]) -> LegalCodes[Any]:
        """Return the same codes with `move` applied to both arrays, such as a copy to a device."""
        return LegalCodes(indptr_R1=move(self.indptr_R1), code_C=move(self.code_C), max_row=self.max_row)

    @property
    def num_rows(self) -> int:
        return len(self.indptr_R1) - 1  # type: ignore[arg-type]

    @property
    def row_C(self: LegalCodes[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Return the row of each code, for codes on the host."""
        return np.repeat(np.arange(self.num_rows), np.diff(self.indptr_R1))

    @property
    def count(self) -> int:
        """Return C, the number of legal codes of all rows together."""
        return len(self.code_C)  # type: ignore[arg-type]
