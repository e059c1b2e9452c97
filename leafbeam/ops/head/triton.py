"""Logits of legal codes on a GPU, in Triton.

Without a GPU it runs under Triton's interpreter (TRITON_INTERPRET=1 before the first import), in float32 only, slowly.

Shapes: R rows, V codes, D hidden, C legal codes, N blocks of codes.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false
from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.ops.head.cost import BLOCK, HeadCosts, HeadPath, Workload, cheapest_path
from leafbeam.ops.head.triton_kernels import csr_kernel, product_kernel, sums_kernel, token_kernel
from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize, check_inputs, check_path

__all__ = ["DEVICE_COSTS", "calibrate", "head"]

# Estimated from bytes at 3.8 TB/s of bfloat16 weights; `calibrate` measures.
DEVICE_COSTS = HeadCosts(
    dense=((1, 0.00053), (128, 0.00055), (512, 0.0022)), gather=0.00053, token=0.00053, shared=0.0002, call=4_000.0
)
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def head(
    hidden_RD: Tensor,
    weight_VD: Tensor,
    legal_codes: LegalCodes[Tensor],
    normalize: Normalize,
    *,
    costs: HeadCosts | None = None,
    path: HeadPath | None = None,
) -> HeadLogits[Tensor]:
    """The logits of each row's legal codes and its log-sum-exp; equals `leafbeam.ops.head.reference.head`.

    hidden_RD, weight_VD: float32, bfloat16 or float16 on one device, with contiguous rows; a slice of a larger head works.
    Logits are summed in float32. costs: measured by `calibrate`. path: overrides the cheapest one ("full" is always dense).

    The device is not synchronised: the number of distinct codes is estimated. Cost: two launches, and a sort for "tokens".
    Raises ArgumentError, LogitsError, before any launch.
    """
    check_inputs(hidden_RD, weight_VD, legal_codes, normalize)
    _check(hidden_RD, weight_VD, legal_codes)
    (rows, hidden), codes = hidden_RD.shape, len(weight_VD)
    if path is None:
        path = cheapest_path(costs or DEVICE_COSTS, Workload.expected(rows, codes, hidden, legal_codes.count), normalize)
    check_path(path, normalize)
    logit_C = torch.empty(legal_codes.count, device=hidden_RD.device)
    blocks = triton.cdiv(codes, BLOCK)
    full = normalize == "full"
    sums = torch.empty((2, rows, blocks) if full else (2, 1, 1), device=hidden_RD.device)
    if path == "dense" and not full:
        row_C = torch.repeat_interleave(legal_codes.indptr_R1.diff(), output_size=legal_codes.count)
        logit_C = _product(hidden_RD, weight_VD)[row_C, legal_codes.code_C]
    elif path in ("dense", "blocks"):
        tile = max(16, min(64, triton.next_power_of_2(rows)))
        product_kernel[(triton.cdiv(rows, tile), blocks)](
            hidden_RD,
            weight_VD,
            legal_codes.indptr_R1,
            legal_codes.code_C,
            logit_C,
            sums[0],
            sums[1],
            rows,
            codes,
            blocks,
            hidden_RD.stride(0),
            weight_VD.stride(0),
            FULL=full,
            SKIP=not full,
            D=hidden,
            ROWS=tile,
            CODES=BLOCK,
            BLOCK_D=64,
            num_warps=4,
            num_stages=4,
        )
    elif path == "gather":
        per_program = 4
        csr_kernel[(rows, max(1, triton.cdiv(legal_codes.max_row, per_program)))](
            hidden_RD,
            weight_VD,
            legal_codes.indptr_R1,
            legal_codes.code_C,
            logit_C,
            hidden_RD.stride(0),
            weight_VD.stride(0),
            D=hidden,
            CODES=per_program,
            BLOCK_D=min(1024, triton.next_power_of_2(hidden)),
            num_warps=4,
        )
    else:
        _token_logits(hidden_RD, weight_VD, legal_codes, logit_C)
    lse_R = torch.empty(rows, device=hidden_RD.device)
    sums_kernel[(rows,)](logit_C, legal_codes.indptr_R1, sums[0], sums[1], lse_R, blocks, FULL=full, BLOCK=1024)
    return HeadLogits(legal_codes=legal_codes, logit_C=logit_C, lse_R=lse_R, path=path)


def _product(hidden_RD: Tensor, weight_VD: Tensor) -> Tensor:
    """All logits in float32."""
    if hidden_RD.dtype == torch.float32:
        return torch.mm(hidden_RD, weight_VD.T)
    return torch.mm(hidden_RD, weight_VD.T, out_dtype=torch.float32)


def _token_logits(hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor], logit_C: Tensor) -> None:
    codes, hidden = weight_VD.shape
    row_C = torch.repeat_interleave(legal_codes.indptr_R1.diff(), output_size=legal_codes.count)
    sorted_C, entry_C = legal_codes.code_C.sort(stable=True)
    indptr_V1 = torch.searchsorted(sorted_C, torch.arange(codes + 1, device=sorted_C.device))
    token_kernel[(codes,)](
        hidden_RD,
        weight_VD,
        indptr_V1,
        row_C[entry_C],
        entry_C,
        logit_C,
        hidden_RD.stride(0),
        weight_VD.stride(0),
        D=hidden,
        BLOCK_D=triton.next_power_of_2(hidden),
        num_warps=4,
    )


def calibrate(weight_VD: Tensor, rows: tuple[int, ...] = (1, 16, 64, 128, 256)) -> HeadCosts:
    """Measure a GPU on the head's weights, by CUDA events; takes about a second. Raises ArgumentError without a GPU."""
    if not weight_VD.is_cuda:
        raise ArgumentError("calibrate measures a GPU and the weight is not on one: use leafbeam.ops.head.cpu.calibrate")
    codes, hidden = weight_VD.shape
    hidden_RD = torch.randn(max(rows), hidden, device=weight_VD.device, dtype=weight_VD.dtype)

    def draw(num_rows: int, each: int) -> LegalCodes[Tensor]:
        drawn = torch.rand(num_rows, codes, device=weight_VD.device).argsort(1)[:, :each].sort(1).values
        indptr_R1 = torch.arange(num_rows + 1, device=weight_VD.device) * each
        return LegalCodes(indptr_R1=indptr_R1, code_C=drawn.flatten(), max_row=each)

    def time_of(path: HeadPath, num_rows: int, legal_codes: LegalCodes[Tensor]) -> float:
        return _median(lambda: head(hidden_RD[:num_rows], weight_VD, legal_codes, "allowed", path=path))

    dense = tuple((n, time_of("dense", n, draw(n, 1)) / weight_VD.numel()) for n in sorted(set(rows)))
    some, one = draw(1, max(1, codes // 8)), draw(1, 1)
    call = time_of("gather", 1, one)
    gather = (time_of("gather", 1, some) - call) / (some.count * hidden)
    token = (time_of("tokens", 1, some) - call) / (some.count * hidden)
    many = draw(8, max(1, codes // 8))
    shared = (time_of("tokens", 8, many) - call) / (many.count * hidden) - token * 0.65
    return HeadCosts(dense=dense, gather=max(gather, 1e-6), token=max(token, 1e-6), shared=max(shared, token / 20), call=call)


def _median(run: Callable[[], object], repeats: int = 9) -> float:
    """The median of several runs in nanoseconds, each between two events."""
    run()
    taken: list[float] = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e6)
    return sorted(taken)[repeats // 2]


def _check(hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor]) -> None:
    for name, tensor in (("hidden states", hidden_RD), ("the head's weight", weight_VD)):
        if tensor.dtype not in _DTYPES:
            raise ArgumentError(f"{name}: expected float32, bfloat16 or float16, got {tensor.dtype}")
        if tensor.stride(1) != 1 and tensor.shape[1] > 1:
            raise ArgumentError(f"{name}: expected contiguous rows, got strides {tensor.stride()}: use .contiguous()")
    if hidden_RD.dtype != weight_VD.dtype:
        raise ArgumentError(f"hidden states are {hidden_RD.dtype} and the weight is {weight_VD.dtype}: expected one dtype")
    devices = {str(one.device) for one in (hidden_RD, weight_VD, legal_codes.indptr_R1, legal_codes.code_C)}
    if len(devices) > 1:
        raise ArgumentError(f"hidden states, weight and legal codes are on {sorted(devices)}: expected one device")
    for name, tensor in (("indptr_R1", legal_codes.indptr_R1), ("code_C", legal_codes.code_C)):
        if tensor.dtype != torch.int64 or not tensor.is_contiguous():
            raise ArgumentError(f"{name} is {tensor.dtype}: expected contiguous int64")
