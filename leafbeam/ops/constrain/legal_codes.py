"""The legal codes of every row of a batch, as a constraint lists them and a head takes them.

Shapes: R rows (beams of all requests), C legal codes of all rows together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = TypeVar("Array")
Moved = TypeVar("Moved")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LegalCodes(Generic[Array]):
    """The legal codes of each row (of each beam), in CSR form, as a constraint lists them.

    Nothing is checked, because checking arrays on a device would synchronise it.

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
    def of(cls, indptr_R1: NDArray[np.int64], code_C: NDArray[np.int64]) -> LegalCodes[NDArray[np.int64]]:
        """Return the legal codes that a constraint has listed on the host; nothing is checked or copied."""
        return LegalCodes(indptr_R1=indptr_R1, code_C=code_C, max_row=int(np.diff(indptr_R1).max(initial=0)))

    def map(self, move: Callable[[Array], Moved]) -> LegalCodes[Moved]:
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
