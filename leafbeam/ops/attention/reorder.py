"""Suffix slots after beams have found new parents: followed through a table, or moved in place.

    ancestors    slots never move: a table says in whose slot each of a beam's codes stands (8 bytes a beam and code)
    in place     xGR's way (section 5.1, figure 8): one buffer, no copy of it. A *direction* for each beam: 1 where its content
                 comes from a later slot, -1 where from an earlier one. First all with 1, from the first slot on; then all with
                 -1, from the last slot back

The second pass reads earlier slots, and the first must have left them alone. It has if the parents are ascending: slot s that
is read by a beam after it, p[k] = s < k, has p[s] <= p[k] = s itself, so nothing came into it from later. Other maps destroy
what they still need. So beams are sorted by parent first (`by_parent`), and a map that is not ascending is refused. Sorted
beams are the same beams, but where two scores are equal the order of parents decides: a table keeps answers as they were.

Shapes: B requests, K beams, S codes of a beam so far.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leafbeam.errors import ArgumentError

__all__ = ["by_parent", "directions", "extend_ancestors", "follow_in_place", "two_passes"]


def extend_ancestors(ancestors_BKS: Tensor | None, parents_BK: Tensor) -> Tensor:
    """The table after a round: what each parent's said, and the slot of the beam's own newest code, which is its number.

    None before the first code has been written. Cost: S + 1 numbers a beam.

    >>> extend_ancestors(extend_ancestors(None, torch.tensor([[0, 0, 0]])), torch.tensor([[2, 0]]))[0].tolist()
    [[2, 0], [0, 1]]
    """
    own_BK1 = torch.arange(parents_BK.shape[1], device=parents_BK.device).expand_as(parents_BK)[..., None]
    if ancestors_BKS is None:
        return own_BK1.contiguous()  # kernels read it by its strides
    before_BKS = ancestors_BKS.gather(1, parents_BK[..., None].expand(-1, -1, ancestors_BKS.shape[2]))
    return torch.cat((before_BKS, own_BK1), 2)


def by_parent(parents_BK: Tensor) -> Tensor:
    """The order (B, K) that sorts beams by parent, equal ones as they stood: apply it to codes, scores and ranges alike."""
    return parents_BK.argsort(dim=1, stable=True)


def directions(parents_BK: Tensor) -> Tensor:
    """int8 (B, K): 1 where a beam's content comes from a later slot, -1 from an earlier one, 0 where it is there already."""
    own_K = torch.arange(parents_BK.shape[1], device=parents_BK.device)
    return (parents_BK - own_K).sign().to(torch.int8)


def follow_in_place(slots_BKX: Tensor, parents_BK: Tensor) -> None:
    """Make slot k of each request what slot parents_BK[:, k] was, in one buffer, slots beyond the parents left as they are.

    slots_BKX: any shape behind [B, at least K]. Raises ArgumentError where parents are not ascending or do not exist (looks at
    them, which waits for a device). Cost: each slot that changes is read and written once, one after the other.
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
    """The two passes alone, without a look at the parents: right for ascending ones and for no others."""
    for slots_KX, parents_K, direction_K in zip(slots_BKX, parents_BK.tolist(), directions(parents_BK).tolist(), strict=True):
        for slot, (parent, direction) in enumerate(zip(parents_K, direction_K, strict=True)):
            if direction > 0:
                slots_KX[slot] = slots_KX[parent]
        for slot in range(len(parents_K) - 1, -1, -1):
            if direction_K[slot] < 0:
                slots_KX[slot] = slots_KX[parents_K[slot]]
