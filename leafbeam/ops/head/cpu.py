"""The allowed-only head on a CPU: numpy's matrix products for what is dense, compiled loops for what is not.

Shapes: R rows, V codes, D hidden, C legal codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError
from leafbeam.ops.constrain.logsumexp import CHUNK
from leafbeam.ops.head import kernels as dots
from leafbeam.ops.head.cost import BLOCK, HeadCosts, HeadPath, Workload, cheapest_path
from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize, check_normalize, check_shapes

__all__ = ["calibrate", "head"]

_SMALL = 20_000  # nanoseconds of a dense product that are not worth a second thought
_CACHED = 1 << 18  # logits of a block of codes that stay in the second-level cache


def head(
    hidden_RD: Any,
    weight_VD: Any,
    legal_codes: LegalCodes[NDArray[np.int64]],
    normalize: Normalize,
    *,
    costs: HeadCosts | None = None,
    path: HeadPath | None = None,
    block: int = BLOCK,
) -> HeadLogits[NDArray[Any]]:
    """The logits of each row's legal codes and its log-sum-exp: see `leafbeam.ops.head.reference.head`, which this equals.

    hidden_RD, weight_VD: float32, numpy or torch on the CPU, rows contiguous in memory; a slice of a head's rows is one.
    costs: what `calibrate` measured; path: a way to insist on ("full" is always dense). No way writes a table of R x V.
    block: how many codes "blocks" skips or computes together.

    Cost: the cheapest of `cost`. Raises ArgumentError (dtype, layout, normalize), LogitsError (shapes).
    """
    check_normalize(normalize)
    hidden_RD, weight_VD = _floats("hidden states", hidden_RD), _floats("the head's weight", weight_VD)
    check_shapes(hidden_RD, weight_VD, legal_codes)
    blocks = None
    if path is None:
        path, blocks = _chosen(costs or HeadCosts(), hidden_RD, weight_VD, legal_codes, normalize)
        block = BLOCK if blocks is not None else block
    if normalize == "full" and path != "dense":
        raise ArgumentError(f"path is {path!r}: normalize='full' sees every code and is always 'dense'")
    logit_C = np.empty(legal_codes.count, np.float32)
    if path == "gather":
        dots.csr_logits(hidden_RD, weight_VD, legal_codes.indptr_R1, legal_codes.code_C, logit_C)
    elif path == "tokens":
        begin_V1 = np.empty(len(weight_VD) + 1, np.int64)
        row_C, place_C = np.empty(legal_codes.count, np.int64), np.empty(legal_codes.count, np.int64)
        dots.by_code(legal_codes.indptr_R1, legal_codes.code_C, begin_V1, row_C, place_C)
        dots.token_logits(hidden_RD, weight_VD, begin_V1, row_C, place_C, logit_C)
    elif path in ("dense", "blocks"):
        if path == "dense":
            blocks = np.ones(-(-len(weight_VD) // block), np.bool_)
        elif blocks is None:
            _, _, blocks = _marked(legal_codes, len(weight_VD), block)
        lse_R = _products(hidden_RD, weight_VD, blocks, block, legal_codes, logit_C, full=normalize == "full")
        if normalize == "full":
            return HeadLogits(legal_codes=legal_codes, logit_C=logit_C, lse_R=lse_R, path=path)
    else:
        raise ArgumentError(f"path is {path!r}: expected 'dense', 'blocks', 'gather' or 'tokens'")
    lse_R = np.empty(legal_codes.num_rows, np.float32)
    dots.log_sums(legal_codes.indptr_R1, logit_C, np.empty(legal_codes.max_row // CHUNK + 1, np.float32), lse_R)
    return HeadLogits(legal_codes=legal_codes, logit_C=logit_C, lse_R=lse_R, path=path)


def calibrate(weight_VD: Any, rows: tuple[int, ...] = (1, 4, 16, 64, 128), seconds: float = 0.05) -> HeadCosts:
    """Measure this machine on some of the head's own weights: at least three runs and `seconds` for each figure, after one.

    Returns what it measured and keeps nothing: hold the answer and pass it to `head`.
    """
    weight_VD = _floats("the head's weight", weight_VD)
    num_codes, hidden = weight_VD.shape
    rng = np.random.default_rng(0)
    part = min(num_codes, max(BLOCK, (1 << 28) // (4 * hidden)))  # a quarter of these 256 MiB is more than a cache holds
    some_VD = weight_VD[:part]
    hidden_RD = rng.standard_normal((max(rows), hidden), np.float32)

    def drawn_codes(num_rows: int, each: int) -> LegalCodes[NDArray[np.int64]]:
        drawn = [np.sort(rng.choice(part, each, replace=False)) for _ in range(num_rows)]
        return LegalCodes.of(np.arange(num_rows + 1) * each, np.concatenate(drawn), part)

    def time_of(path: HeadPath, num_rows: int, legal_codes: LegalCodes[NDArray[np.int64]]) -> float:
        return _least(lambda: head(hidden_RD[:num_rows], some_VD, legal_codes, "allowed", path=path), seconds)

    dense = tuple((n, time_of("dense", n, drawn_codes(n, 1)) / (part * hidden)) for n in sorted(set(rows)))
    few, many = drawn_codes(1, max(1, part // 4)), drawn_codes(8, max(1, part // 4))
    gather = time_of("gather", 1, few) / (few.count * hidden)
    token = time_of("tokens", 1, few) / (few.count * hidden)
    distinct, _, _ = _marked(many, part)
    shared = (time_of("tokens", 8, many) - token * distinct * hidden) / (many.count * hidden)
    one = drawn_codes(1, 1)
    return HeadCosts(
        dense=dense, gather=gather, token=token, shared=max(shared, token / 20), call=max(500.0, time_of("gather", 1, one))
    )


def _least(run: Callable[[], object], seconds: float) -> float:
    """The least of a few runs, in nanoseconds, because noise only adds; the first one is not counted."""
    run()
    taken: list[int] = []
    while len(taken) < 3 or (sum(taken) < seconds * 1e9 and len(taken) < 25):
        begin = time.perf_counter_ns()
        run()
        taken.append(time.perf_counter_ns() - begin)
    return float(min(taken))


def _chosen(
    costs: HeadCosts,
    hidden_RD: NDArray[np.float32],
    weight_VD: NDArray[np.float32],
    legal_codes: LegalCodes[NDArray[np.int64]],
    normalize: Normalize,
) -> tuple[HeadPath, NDArray[np.bool_] | None]:
    """The cheapest way, and the blocks that hold a legal code where they were counted.

    They are counted only where that could change the answer: few legal codes are gathered without a second look.
    """
    num_codes, hidden = weight_VD.shape
    dense = costs.dense_at(len(hidden_RD)) * num_codes * hidden
    if normalize == "full" or dense < _SMALL:
        return "dense", None
    if (
        costs.gather * legal_codes.count < costs.token * legal_codes.max_row
    ):  # no row names a code twice, so at least so many differ
        gathers = costs.call + costs.gather * legal_codes.count * hidden < costs.margin * dense
        return "gather" if gathers else "dense", None
    sizes = {"rows": len(hidden_RD), "codes": num_codes, "hidden": hidden, "legal": legal_codes.count}
    least = -(-legal_codes.max_row // BLOCK) * BLOCK
    hopeful = cheapest_path(costs, Workload(**sizes, distinct=legal_codes.max_row, blocked=least), normalize)
    if hopeful in ("gather", "dense"):
        return hopeful, None
    distinct, blocked, blocks = _marked(legal_codes, num_codes)
    return cheapest_path(costs, Workload(**sizes, distinct=distinct, blocked=blocked), normalize), blocks


def _marked(
    legal_codes: LegalCodes[NDArray[np.int64]], num_codes: int, block: int = BLOCK
) -> tuple[int, int, NDArray[np.bool_]]:
    """(different legal codes, codes in blocks that hold one, these blocks)."""
    legal_V, blocks = np.empty(num_codes, np.bool_), np.empty(-(-num_codes // block), np.bool_)
    distinct, active = dots.mark(legal_codes.code_C, block, legal_V, blocks)
    return distinct, min(active * block, num_codes), blocks


def _products(
    hidden_RD: NDArray[np.float32],
    weight_VD: NDArray[np.float32],
    blocks: NDArray[np.bool_],
    block: int,
    legal_codes: LegalCodes[NDArray[np.int64]],
    logit_C: NDArray[np.float32],
    *,
    full: bool,
) -> NDArray[np.float32]:
    """Multiply the marked blocks, some thousand codes at a time, and take what is legal; with `full`, sum exponentials too."""
    num_rows, num_codes = len(hidden_RD), len(weight_VD)
    longest = max(block, _CACHED // max(1, num_rows) // block * block)
    runs_N2 = np.empty((len(blocks) + 1, 2), np.int64)
    count = dots.runs_of(blocks, block, num_codes, longest, runs_N2)
    space = np.empty(num_rows * min(longest, len(blocks) * block), np.float32)
    chunks = np.empty(longest // CHUNK + 1, np.float32)
    at_R = legal_codes.indptr_R1[:-1].copy()
    top_R, sum_R = np.full(num_rows, -np.inf, np.float32), np.zeros(num_rows, np.float64)
    for begin, end in runs_N2[:count].tolist():
        logits_RB = space[: num_rows * (end - begin)].reshape(num_rows, end - begin)
        if num_rows == 1:
            np.dot(weight_VD[begin:end], hidden_RD[0], out=logits_RB[0])
        else:
            np.matmul(hidden_RD, weight_VD[begin:end].T, out=logits_RB)
        dots.take(logits_RB, begin, legal_codes.indptr_R1, legal_codes.code_C, at_R, logit_C)
        if full:
            dots.add_to_sums(logits_RB, top_R, sum_R, chunks)
    with np.errstate(divide="ignore"):
        return top_R + np.log(sum_R).astype(np.float32)


def _floats(name: str, array: Any) -> NDArray[np.float32]:
    """A float32 view of a numpy array or CPU tensor whose rows are contiguous, or an ArgumentError; never a copy."""
    if not isinstance(array, np.ndarray):
        if getattr(array, "is_cuda", False) or "float32" not in str(array.dtype):
            raise ArgumentError(
                f"{name}: expected float32 on the CPU, got {array.dtype} on {array.device}: convert it once, ahead"
            )
        array = array.detach().numpy()
    if array.dtype != np.float32:
        raise ArgumentError(f"{name}: expected float32, got {array.dtype}: convert it once, ahead")
    if array.ndim == 2 and array.shape[1] > 1 and array.strides[1] != 4:
        raise ArgumentError(f"{name}: expected rows that are contiguous, got strides {array.strides}: use np.ascontiguousarray")
    return array
