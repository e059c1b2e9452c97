"""Inputs and outputs of `head`, the same for every backend.

Shapes: R rows (beams), V codes, D hidden, C legal codes of all rows together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal

from leafbeam.errors import ArgumentError, LogitsError, check_choice, counted
from leafbeam.ops.constrain.legal_codes import Array, LegalCodes
from leafbeam.ops.constrain.types import AnyArray

Normalize = Literal["full", "allowed"]


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadLogits(Generic[Array]):
    """The logits of legal codes and each row's normaliser: log p = logit - lse.

    Args:
        logit_C: float32, in the order of legal_codes.code_C.
        lse_R: float32, the log-sum-exp over all codes ("full") or over the row's legal codes ("allowed"; -inf without any).
        path: The way in which they were computed.
    """

    legal_codes: LegalCodes[Array]
    logit_C: Array
    lse_R: Array
    path: str


def check_inputs(hidden_RD: AnyArray, weight_VD: AnyArray, num_rows: int, normalize: str) -> None:
    """Raise ArgumentError for an unknown `normalize`, LogitsError where shapes do not fit together."""
    check_choice("normalize", normalize, Normalize)
    if hidden_RD.ndim != 2 or weight_VD.ndim != 2 or hidden_RD.shape[1] != weight_VD.shape[1]:
        raise LogitsError(
            f"hidden states {tuple(hidden_RD.shape)} and weight {tuple(weight_VD.shape)} do not fit: expected (R, D) and (V, D)"
        )
    if hidden_RD.shape[0] != num_rows:
        raise LogitsError(
            f"{counted(hidden_RD.shape[0], 'hidden state')} and legal codes for "
            f"{counted(num_rows, 'row')}: expected one for each"
        )


def check_path(path: str, normalize: Normalize, paths: object) -> None:
    """Raise ArgumentError for a path that is not among the literals `paths`, or that cannot normalise over all codes."""
    check_choice("path", path, paths)
    if normalize == "full" and path != "dense":
        raise ArgumentError(f"path is {path!r}: normalize='full' needs every code and is always 'dense'")
