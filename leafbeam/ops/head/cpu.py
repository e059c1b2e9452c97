"""Logits of legal codes on a CPU, by numpy's matrix products if they are dense, and otherwise by numba kernels.

Shapes: R rows, V codes, D hidden, C legal codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.ops.constrain.cpu.logsumexp import CHUNK
from leafbeam.ops.constrain.types import AnyArray
from leafbeam.ops.head import kernels
from leafbeam.ops.head.cost import HeadCosts, HeadPath, Workload, cheapest_path
from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize, check_inputs, check_path

_SMALL = 20_000  # nanoseconds of a dense product below which no other path is considered
_CACHED = 1 << 18  # logits of a part of the codes that fit the second-level cache
_FEWEST = 64  # codes of a part

_HostCodes = LegalCodes[NDArray[np.int64]]


def head(
    hidden_RD: AnyArray,
    weight_VD: AnyArray,
    legal_codes: _HostCodes,
    normalize: Normalize,
    *,
    costs: HeadCosts | None = None,
    path: HeadPath | None = None,
) -> HeadLogits[NDArray[Any]]:
    """Return the logits of each row's legal codes and its log-sum-exp; equals `leafbeam.ops.head.reference.head`.

    Cost: see `cost`; no path writes a table of R x V. Raises ArgumentError (dtype, layout, arguments), LogitsError (shapes).

    Args:
        hidden_RD, weight_VD: float32, numpy or torch on the CPU, with contiguous rows; a slice of a larger head works.
        costs: The costs of this machine; None takes the defaults.
        path: The path to take instead of the cheapest one ("full" is always dense).
    """
    hidden_RD, weight_VD = _floats("hidden states", hidden_RD), _floats("the head's weight", weight_VD)
    check_inputs(hidden_RD, weight_VD, legal_codes.num_rows, normalize)
    path = path or _choose_path(costs or HeadCosts(), hidden_RD, weight_VD, legal_codes, normalize)
    check_path(path, normalize, HeadPath)
    indptr_R1, code_C, count = legal_codes.indptr_R1, legal_codes.code_C, legal_codes.count
    logit_C, lse_R = np.empty(count, np.float32), np.empty(legal_codes.num_rows, np.float32)
    if path == "gather":
        kernels.csr_logits(hidden_RD, weight_VD, indptr_R1, code_C, logit_C)
    elif path == "tokens":
        indptr_V1 = np.empty(len(weight_VD) + 1, np.int64)
        row_C, entry_C = np.empty(count, np.int64), np.empty(count, np.int64)
        kernels.sort_by_code(indptr_R1, code_C, indptr_V1, row_C, entry_C)
        kernels.token_logits(hidden_RD, weight_VD, indptr_V1, row_C, entry_C, logit_C)
    else:
        lse_R = _product(hidden_RD, weight_VD, legal_codes, logit_C, full=normalize == "full")
    if normalize == "allowed":
        kernels.row_logsumexp(indptr_R1, logit_C, np.empty(legal_codes.max_row // CHUNK + 1, np.float32), lse_R)
    return HeadLogits(legal_codes=legal_codes, logit_C=logit_C, lse_R=lse_R, path=path)


def _choose_path(
    costs: HeadCosts,
    hidden_RD: NDArray[np.float32],
    weight_VD: NDArray[np.float32],
    legal_codes: _HostCodes,
    normalize: Normalize,
) -> HeadPath:
    """Return the cheapest path; codes are counted only where that could change it."""
    num_codes, hidden = weight_VD.shape
    if normalize == "full" or costs.dense_at(len(hidden_RD)) * num_codes * hidden < _SMALL:
        return "dense"
    work = Workload(
        rows=len(hidden_RD), codes=num_codes, hidden=hidden, legal=legal_codes.count, distinct=legal_codes.max_row
    )  # at least max_row codes are distinct
    if cheapest_path(costs, work, normalize) == "tokens":
        legal_V = np.zeros(num_codes, np.bool_)
        legal_V[legal_codes.code_C] = True
        work = replace(work, distinct=np.count_nonzero(legal_V))
    return cheapest_path(costs, work, normalize)


def _product(
    hidden_RD: NDArray[np.float32],
    weight_VD: NDArray[np.float32],
    legal_codes: _HostCodes,
    logit_C: NDArray[np.float32],
    *,
    full: bool,
) -> NDArray[np.float32]:
    """Multiply all codes, some thousand at a time, and copy the legal logits; returns the log-sum-exp if `full`."""
    num_rows, num_codes = len(hidden_RD), len(weight_VD)
    longest = max(_FEWEST, _CACHED // max(1, num_rows))
    space, chunks = np.empty(num_rows * min(longest, num_codes), np.float32), np.empty(longest // CHUNK + 1, np.float32)
    at_R = legal_codes.indptr_R1[:-1].copy()
    top_R, sum_R = np.full(num_rows, -np.inf, np.float32), np.zeros(num_rows, np.float64)
    for begin in range(0, num_codes, longest):
        part_BD = weight_VD[begin : begin + longest]
        logits_RB = space[: num_rows * len(part_BD)].reshape(num_rows, len(part_BD))
        if num_rows == 1:
            np.dot(part_BD, hidden_RD[0], out=logits_RB[0])
        else:
            np.matmul(hidden_RD, part_BD.T, out=logits_RB)
        kernels.copy_legal(logits_RB, begin, legal_codes.indptr_R1, legal_codes.code_C, at_R, logit_C)
        if full:
            kernels.accumulate_exp(logits_RB, top_R, sum_R, chunks)
    with np.errstate(divide="ignore"):
        return top_R + np.log(sum_R).astype(np.float32)


def _floats(name: str, array: Any) -> NDArray[np.float32]:
    """Return a float32 view of a numpy array or CPU tensor with contiguous rows, or an ArgumentError; never a copy."""
    if not isinstance(array, np.ndarray):
        if getattr(array, "is_cuda", False) or "float32" not in str(array.dtype):
            raise ArgumentError(
                f"{name}: expected float32 on the CPU, got {array.dtype} on {array.device}: convert it once, ahead"
            )
        array = array.detach().numpy()
    if array.dtype != np.float32:
        raise ArgumentError(f"{name}: expected float32, got {array.dtype}: convert it once, ahead")
    if array.ndim == 2 and array.shape[1] > 1 and array.strides[1] != 4:
        raise ArgumentError(f"{name}: expected contiguous rows, got strides {array.strides}: use np.ascontiguousarray")
    return array
