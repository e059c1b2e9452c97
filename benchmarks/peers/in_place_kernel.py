"""xGR's moves of slots within one buffer, as one launch on a GPU (section 5.1); leafbeam follows a table of ancestors instead.

Without a GPU it runs under Triton's interpreter (TRITON_INTERPRET=1 before the first import).

Shapes: B requests, K beams, X elements of a slot.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportIndexIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from leafbeam.errors import ArgumentError

__all__ = ["follow_in_place", "follow_kernel"]

_BEAMS, _MOVED = 256, 16  # beams and elements of each that a program moves at once


def follow_in_place(slots_BKX: Tensor, parents_BK: Tensor) -> None:
    """slots[:, k] = slots[:, parents[:, k]] within one buffer, for ascending int64 parents; the host reads none of them.

    Equals `in_place_reorder.two_passes`. Other parents destroy slots that are still to be read (xGR, section 5.1).
    slots_BKX: contiguous behind [B, at least K]. Cost: one launch; each slot that changes is read and written once.
    """
    if slots_BKX.numel() == 0 or parents_BK.numel() == 0:
        return
    if not slots_BKX[0, 0].is_contiguous() or not parents_BK.is_contiguous() or parents_BK.dtype != torch.int64:
        raise ArgumentError("slots must be contiguous behind their first two axes, and parents contiguous int64")
    beams, width = parents_BK.shape[1], slots_BKX[0, 0].numel()
    if beams > slots_BKX.shape[1] or len(parents_BK) != len(slots_BKX):
        shapes = f"parents {tuple(parents_BK.shape)} and slots {tuple(slots_BKX.shape)}"
        raise ArgumentError(f"{shapes} do not fit: expected (B, K) and (B, at least K, ...)")
    follow_kernel[(len(slots_BKX), triton.cdiv(width, _MOVED))](
        slots_BKX,
        parents_BK,
        *slots_BKX.stride()[:2],
        beams,
        width,
        BEAMS=min(_BEAMS, triton.next_power_of_2(beams)),
        BLOCK=_MOVED,
        num_warps=4,
    )


@triton.jit
def follow_kernel(slots_BKX, parents_BK, slot_b, slot_k, beams, width, BEAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Two passes over tiles of BEAMS slots, by program (b, i) for elements i x BLOCK and following:

        from the first tile to the last: slots whose parent is a later slot take its content
        from the last tile to the first: slots whose parent is an earlier slot take its content

    A tile is read before it is written. With ascending parents the first pass leaves alone what the second reads: slot
    s = parent[k] < k has parent[s] <= s.
    """
    request = tl.program_id(0).to(tl.int64)
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    base = slots_BKX + request * slot_b + x[None, :]
    tiles = tl.cdiv(beams, BEAMS)
    i = tl.program_id(0) * 0
    while i < 2 * tiles:
        slot = (tl.minimum(i, 2 * tiles - 1 - i) * BEAMS + tl.arange(0, BEAMS)).to(tl.int64)
        parent = tl.load(parents_BK + request * beams + slot, mask=slot < beams, other=0)
        moves = ((parent > slot) & (i < tiles)) | ((parent < slot) & (i >= tiles))
        mask = ((slot < beams) & moves)[:, None] & (x < width)[None, :]
        content = tl.load(base + parent[:, None] * slot_k, mask=mask, other=0.0)
        tl.debug_barrier()
        tl.store(base + slot[:, None] * slot_k, content, mask=mask)
        i += 1
