"""Inputs and outputs of `head`, the same for every backend.

Shapes: R rows (beams), V codes, D hidden, C legal codes of all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError, LogitsError, counted

Normalize = Literal["full", "allowed"]
Array = TypeVar("Array")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LegalCodes(Generic[Array]):
    """The legal codes of each row, in CSR form: row r may take code_C[indptr_R1[r] : indptr_R1[r + 1]], ascending.

    `LegalCodes.of` checks host arrays. Arrays that a kernel has just written on a device go straight into the constructor:
    checking them would synchronise the device.

    indptr_R1, code_C: int64 (numpy, or torch on the device of the head). max_row: the longest row, or more.
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
        """Legal codes checked against a codebook of `num_codes`. Cost: a few passes over them.

        may_be_empty: allow rows without a legal code, as dead beams have. Raises CodesError.
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

    @property
    def num_rows(self) -> int:
        return len(self.indptr_R1) - 1  # type: ignore[arg-type]

    @property
    def count(self) -> int:
        """C, all legal codes together."""
        return len(self.code_C)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadLogits(Generic[Array]):
    """The logits of legal codes and each row's normaliser: log p = logit - lse.

    logit_C: float32, in the order of legal_codes.code_C. lse_R: float32, the log-sum-exp over all codes ("full") or over the
    row's legal codes ("allowed"; -inf without any). path: how it was computed.
    """

    legal_codes: LegalCodes[Array]
    logit_C: Array
    lse_R: Array
    path: str


def check_inputs(hidden_RD: Any, weight_VD: Any, legal_codes: LegalCodes[Any], normalize: str) -> None:
    """Raise ArgumentError for an unknown `normalize`, LogitsError where shapes do not fit together."""
    if normalize not in get_args(Normalize):
        raise ArgumentError(f"normalize is {normalize!r}: expected 'full' or 'allowed'")
    if hidden_RD.ndim != 2 or weight_VD.ndim != 2 or hidden_RD.shape[1] != weight_VD.shape[1]:
        raise LogitsError(
            f"hidden states {tuple(hidden_RD.shape)} and weight {tuple(weight_VD.shape)} do not fit: expected (R, D) and (V, D)"
        )
    if hidden_RD.shape[0] != legal_codes.num_rows:
        raise LogitsError(
            f"{counted(hidden_RD.shape[0], 'hidden state')} and legal codes for "
            f"{counted(legal_codes.num_rows, 'row')}: expected one for each"
        )


def check_path(path: str, normalize: Normalize) -> None:
    """Raise ArgumentError for an unknown path, or one that cannot normalise over all codes."""
    if path not in ("dense", "blocks", "gather", "tokens"):
        raise ArgumentError(f"path is {path!r}: expected 'dense', 'blocks', 'gather' or 'tokens'")
    if normalize == "full" and path != "dense":
        raise ArgumentError(f"path is {path!r}: normalize='full' needs every code and is always 'dense'")
