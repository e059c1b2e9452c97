"""xGR's way to follow beams to their new parents: suffix slots are moved inside one buffer (section 5.1, figure 8).

    first pass   from the first slot on: every slot whose parent is a later slot takes its content
    second pass  from the last slot back: every slot whose parent is an earlier slot takes its content

The second pass reads earlier slots, which the first must have left alone. It has if parents are ascending: slot s = p[k] < k
has p[s] <= p[k] = s. Other parents destroy slots that are still to be read, so beams are sorted by parent first (`by_parent`)
and parents that are not ascending are refused. `in_place_kernel` moves slots a tile at once on a GPU. leafbeam keeps them where
they are and follows a table of ancestors (`ops.attention.reference.extend_ancestors`).

Shapes: B requests, K beams, X elements of a slot.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leafbeam.errors import ArgumentError

__all__ = ["by_parent", "directions", "follow_in_place", "two_passes"]


def by_parent(parents_BK: Tensor) -> Tensor:
    """The order (B, K) that sorts beams by parent, stable: apply it to codes, scores and ranges alike."""
    return parents_BK.argsort(dim=1, stable=True)


def directions(parents_BK: Tensor) -> Tensor:
    """int8 (B, K): 1 where a beam's content comes from a later slot, -1 from an earlier one, 0 where it is there already."""
    own_K = torch.arange(parents_BK.shape[1], device=parents_BK.device)
    return (parents_BK - own_K).sign().to(torch.int8)


def follow_in_place(slots_BKX: Tensor, parents_BK: Tensor) -> None:
    """slots[:, k] = slots[:, parents[:, k]] in one buffer; slots beyond the parents are left as they are.

    slots_BKX: any shape behind [B, at least K]. Raises ArgumentError where parents are not ascending or do not exist; the check
    synchronises a device. Cost: each slot that changes is read and written once, one after the other.
    """
    if parents_BK.shape[1] > slots_BKX.shape[1]:
        raise ArgumentError(f"{parents_BK.shape[1]} beams and {slots_BKX.shape[1]} slots: make room for the widest round")
    if parents_BK.numel() == 0:
        return
    first, last = int(parents_BK.min()), int(parents_BK.max())
    if first < 0 or last >= slots_BKX.shape[1]:
        raise ArgumentError(f"parents run from {first} to {last}: expected 0 to {slots_BKX.shape[1] - 1}, the slots there are")
    if bool((parents_BK.diff(dim=1) < 0).any()):
        raise ArgumentError(
            "parents must be ascending, or slots would be overwritten that are still to be read: sort the beams with "
            "by_parent() first, or follow them through a table (extend_ancestors)"
        )
    two_passes(slots_BKX, parents_BK)


def two_passes(slots_BKX: Tensor, parents_BK: Tensor) -> None:
    """The two passes without the checks: right for ascending parents only."""
    for slots_KX, parents_K, direction_K in zip(slots_BKX, parents_BK.tolist(), directions(parents_BK).tolist(), strict=True):
        for slot, (parent, direction) in enumerate(zip(parents_K, direction_K, strict=True)):
            if direction > 0:
                slots_KX[slot] = slots_KX[parent]
        for slot in range(len(parents_K) - 1, -1, -1):
            if direction_K[slot] < 0:
                slots_KX[slot] = slots_KX[parents_K[slot]]
