"""What goes into and comes out of an allowed-only head, the same for every backend.

Shapes: R rows (beams), V codes, D hidden, C legal codes of all rows together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError, LogitsError

__all__ = ["HeadLogits", "LegalCodes", "Normalize", "check_normalize", "check_shapes"]

Normalize = Literal["full", "allowed"]
Array = TypeVar("Array")


@dataclass(frozen=True, kw_only=True, eq=False)
class LegalCodes(Generic[Array]):
    """The legal codes of each row, ragged: row r may take code_C[indptr_R1[r] : indptr_R1[r + 1]], ascending.

    What `ops.constrain.children` returns, or the rows of an automaton. `LegalCodes.of` checks host arrays. Arrays that a kernel
    has just written on a device go straight into the constructor: checking them would synchronise the device.

    indptr_R1, code_C: int64 (numpy, or torch on the device of the head). max_row: the longest row, or more.
    """

    indptr_R1: Array
    code_C: Array
    max_row: int

    @classmethod
    def of(
        cls, indptr_R1: NDArray[np.integer], code_C: NDArray[np.integer], num_codes: int, *, may_be_empty: bool = False
    ) -> LegalCodes[NDArray[np.int64]]:
        """Check ragged rows against a codebook of `num_codes`. Cost: a few passes over them.

        may_be_empty: whether a row without any legal code is expected, as dead beams have; otherwise it is an error, because
        nothing can be chosen from it. Raises CodesError.
        """
        for name, array in (("indptr_R1", indptr_R1), ("code_C", code_C)):
            if array.ndim != 1 or not (np.issubdtype(array.dtype, np.integer) or array.size == 0):
                raise CodesError(f"{name} has shape {array.shape} and dtype {array.dtype}: expected one row of integers")
        sizes_R = np.diff(indptr_R1.astype(np.int64))
        if len(indptr_R1) < 1 or indptr_R1[0] != 0 or indptr_R1[-1] != len(code_C) or (sizes_R < 0).any():
            ends = (int(indptr_R1[0]), int(indptr_R1[-1])) if len(indptr_R1) else ()
            raise CodesError(f"indptr_R1 runs {ends} over {len(code_C):,} codes: expected ascending from 0 to {len(code_C):,}")
        if not may_be_empty and (sizes_R == 0).any():
            raise CodesError(
                f"row {int(np.flatnonzero(sizes_R == 0)[0])} has no legal code at all: leave it out, or say may_be_empty=True "
                f"where rows may be dead"
            )
        codes_C = np.ascontiguousarray(code_C, np.int64)
        if len(codes_C) and not 0 <= int(codes_C.min()) <= int(codes_C.max()) < num_codes:
            raise CodesError(
                f"legal codes run from {int(codes_C.min()):,} to {int(codes_C.max()):,}: expected 0 to {num_codes - 1:,}, the "
                f"rows of the weight"
            )
        begins = np.zeros(len(codes_C) + 1, np.bool_)
        begins[indptr_R1] = True
        if not (np.diff(codes_C, prepend=-1)[~begins[:-1]] > 0).all():
            raise CodesError("the legal codes of a row must be ascending and different: sort each row, without doubles")
        return LegalCodes(
            indptr_R1=np.ascontiguousarray(indptr_R1, np.int64), code_C=codes_C, max_row=int(sizes_R.max(initial=0))
        )  # pyright: ignore[reportReturnType]

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int]], num_codes: int) -> LegalCodes[NDArray[np.int64]]:
        """From one list of ascending codes for each row.

        >>> LegalCodes.from_rows([[0, 3], [2]], num_codes=4).indptr_R1.tolist()
        [0, 2, 3]
        """
        indptr_R1 = np.cumsum([0, *(len(row) for row in rows)])
        return cls.of(indptr_R1, np.array([code for row in rows for code in row], np.int64), num_codes)

    @property
    def num_rows(self) -> int:
        return len(self.indptr_R1) - 1  # type: ignore[arg-type]

    @property
    def count(self) -> int:
        """C, all legal codes together."""
        return len(self.code_C)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadLogits(Generic[Array]):
    """The logits of legal codes alone, ragged as the legal_codes are, and each row's normaliser.

    logit_C: float32. lse_R: float32, the log-sum-exp over all codes ("full") or over the row's legal ones ("allowed"; -inf
    where there are none), so that log p = logit - lse. path: how it was computed.
    """

    legal_codes: LegalCodes[Array]
    logit_C: Array
    lse_R: Array
    path: str


def check_normalize(normalize: str) -> None:
    """Raise ArgumentError for anything but "full" or "allowed"."""
    if normalize not in get_args(Normalize):
        raise ArgumentError(f"normalize is {normalize!r}: expected 'full' or 'allowed'")


def check_shapes(hidden_RD: Any, weight_VD: Any, legal_codes: LegalCodes[Any]) -> None:
    """Raise LogitsError where hidden states, weight and legal_codes do not fit together."""
    if hidden_RD.ndim != 2 or weight_VD.ndim != 2 or hidden_RD.shape[1] != weight_VD.shape[1]:
        raise LogitsError(
            f"hidden states {tuple(hidden_RD.shape)} and weight {tuple(weight_VD.shape)} do not fit: expected (R, D) and (V, D)"
        )
    if hidden_RD.shape[0] != legal_codes.num_rows:
        raise LogitsError(
            f"{hidden_RD.shape[0]} hidden states and legal codes for {legal_codes.num_rows} rows: expected one for each"
        )
