"""What the two kernels of a round work on: the beams, their logits, scratch memory and the new beams.

Tries and automata allocate, check and launch alike; only their kernels differ.

Shapes: S segments, B requests, R rows of a request (its beams), V codes, K beams kept, P the power of two that holds K.
"""

# pyright: basic
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from leafbeam.errors import ArgumentError, LogitsError, counted
from leafbeam.ops.constrain.types import Beams

_MAX_BEAMS = 8192


class Round(NamedTuple):
    """The arguments that all kernels of a round share: tensors on one device, and sizes.

    Args:
        lo_SBR, hi_SBR: int64, the ranges of the beams.
        scores_BR: float32, the scores of the beams.
        logits_BRV: The logits in any float dtype, with their first two strides.
        keys_BRP: int64, the best keys of each row.
        count_BR: int32, the number of these keys.
        min_key_B: int64, no key below it can be among the best. Each round resets it.
        scratch_BP: int64, memory of the request kernel.
        bad: int64, 0, or the number + 1 of a row that held NaN or +inf.
        out_scores_BK and others: The new beams (see `Beams`).
    """

    lo_SBR: Tensor
    hi_SBR: Tensor
    scores_BR: Tensor
    logits_BRV: Tensor
    stride_b: int
    stride_r: int
    keys_BRP: Tensor
    count_BR: Tensor
    min_key_B: Tensor
    scratch_BP: Tensor
    bad: Tensor
    out_scores_BK: Tensor
    out_parent_BK: Tensor
    out_code_BK: Tensor
    out_lo_SBK: Tensor
    out_hi_SBK: Tensor
    out_num_valid_B: Tensor
    batch_size: int
    num_rows: int
    size: int
    num_beams: int

    @property
    def power(self) -> int:
        """P."""
        return self.scratch_BP.shape[1]

    @property
    def rows(self) -> int:
        """Return how many rows the request kernel reads side by side."""
        return int(triton.next_power_of_2(min(self.num_rows, 128)))

    @property
    def beams(self) -> Beams[Tensor]:
        """Return the new beams."""
        return Beams(
            scores=self.out_scores_BK,
            parent=self.out_parent_BK,
            code=self.out_code_BK,
            lo=self.out_lo_SBK,
            hi=self.out_hi_SBK,
            num_valid=self.out_num_valid_B,
        )


def new_round(beams: Beams[Tensor], logits_BKV: Tensor, min_key_B: Tensor, *, size: int, num_beams: int) -> Round:
    """Check the arguments of a round and allocate its outputs. Raises ArgumentError, LogitsError."""
    lo_SBK, hi_SBK, scores_BK, logits_BKV = (
        array if isinstance(array, Tensor) else torch.as_tensor(array, device=min_key_B.device)
        for array in (beams.lo, beams.hi, beams.scores, logits_BKV)
    )
    num_segments, batch_size, num_rows = lo_SBK.shape
    if len(min_key_B) != batch_size:
        raise ArgumentError(
            f"{counted(batch_size, 'request')} where the capacity is {len(min_key_B)}: expected one for each request"
        )
    if not 1 <= num_beams <= _MAX_BEAMS or num_rows * size >= 1 << 32:
        raise ArgumentError(
            f"num_beams is {num_beams} from {counted(num_rows, 'beam')} of {counted(size, 'code')}: "
            f"the kernels keep 1 to {_MAX_BEAMS:,} beams and "
            f"number all beams' codes in 32 bits; use backend='cpu'"
        )
    if logits_BKV.shape != (batch_size, num_rows, size) or logits_BKV.stride(2) != 1:
        raise LogitsError(
            f"the logits have shape {tuple(logits_BKV.shape)} and strides {logits_BKV.stride()}: expected "
            f"{(batch_size, num_rows, size)} with the codes side by side; call .contiguous()"
        )
    devices = {str(tensor.device) for tensor in (lo_SBK, hi_SBK, scores_BK, logits_BKV, min_key_B)}
    if len(devices) > 1:
        raise ArgumentError(f"index, ranges, scores and logits are on {sorted(devices)}: expected one device")
    power, device = int(max(16, triton.next_power_of_2(num_beams))), lo_SBK.device

    def int64(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=device)

    return Round(
        lo_SBR=lo_SBK.contiguous(),
        hi_SBR=hi_SBK.contiguous(),
        scores_BR=scores_BK.contiguous(),
        logits_BRV=logits_BKV,
        stride_b=logits_BKV.stride(0),
        stride_r=logits_BKV.stride(1),
        keys_BRP=int64(batch_size, num_rows, power),
        count_BR=torch.empty((batch_size, num_rows), dtype=torch.int32, device=device),
        min_key_B=min_key_B,
        scratch_BP=int64(batch_size, power),
        bad=torch.zeros((), dtype=torch.int64, device=device),
        out_scores_BK=torch.empty((batch_size, num_beams), device=device),
        out_parent_BK=int64(batch_size, num_beams),
        out_code_BK=int64(batch_size, num_beams),
        out_lo_SBK=int64(num_segments, batch_size, num_beams),
        out_hi_SBK=int64(num_segments, batch_size, num_beams),
        out_num_valid_B=int64(batch_size),
        batch_size=batch_size,
        num_rows=num_rows,
        size=size,
        num_beams=num_beams,
    )
