"""Attention over a shared prompt and over each beam's own codes, in torch, and how the two become one.

One softmax over a prompt and a suffix is two, weighted by their summed exponentials: so the prompt's keys are read once for all
beams of a request instead of once for each (xGR, section 5).

Shapes: B requests, T tokens of a prompt or new codes of a beam, K beams, S codes of a beam so far, H query heads, G key heads,
R query heads per key head (H = G x R), E values of a head.
"""

import torch
from torch import Tensor

__all__ = ["causal_suffix_attention", "merge", "prefix_attention", "suffix_attention"]


def prefix_attention(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of all beams over their request's prompt -> values (B, K, H, E), log-sum-exp of the scores (B, K, H).

    All queries of a request that share a key head, K x R of them, are one tile against keys that are read once. lengths_B: the
    tokens of each prompt that count (at least 1), None: all. Cost: B x H x K x T floats for the time of the call.
    """
    groups, size = key_BGET.shape[1:3]
    query_BGKRE = query_BKHE.unflatten(2, (groups, -1)).transpose(1, 2)
    tile = query_BGKRE.flatten(2, 3)
    scores = torch.matmul(tile * size**-0.5, key_BGET).float()
    if lengths_B is not None:
        padding_BT = torch.arange(key_BGET.shape[3], device=scores.device) >= lengths_B[:, None]
        scores.masked_fill_(padding_BT[:, None, None], -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    values = torch.matmul(weights.to(value_BGTE.dtype), value_BGTE).div_(total)
    lse = top.add_(total.log_())
    values_BKHE = values.view(query_BGKRE.shape).transpose(1, 2).flatten(2, 3)
    return values_BKHE, lse.view(query_BGKRE.shape[:-1]).transpose(1, 2).flatten(2, 3)


def suffix_attention(
    query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of each beam over its own few codes -> values (B, K, H, E), log-sum-exp of the scores (B, K, H).

    ancestors_BKS: int64, in whose slot each code of each beam stands (see `ancestors`); None: in the beam's own.
    """
    if ancestors_BKS is not None:
        at_BKS11 = ancestors_BKS[..., None, None].expand(*ancestors_BKS.shape, *key_BKSGE.shape[3:])
        key_BKSGE, value_BKSGE = key_BKSGE.gather(1, at_BKS11), value_BKSGE.gather(1, at_BKS11)
    groups, size = key_BKSGE.shape[3:]
    query_BKGRE = query_BKHE.unflatten(2, (groups, -1)) * size**-0.5
    # So few keys a beam make matrix products of no size at all: multiplying and adding up is faster.
    scores_BKSGR = (query_BKGRE[:, :, None] * key_BKSGE[..., None, :]).sum(-1).float()
    lse_BKGR = scores_BKSGR.logsumexp(2)
    weights_BKSGR = (scores_BKSGR - lse_BKGR[:, :, None]).exp_().to(value_BKSGE.dtype)
    values_BKGRE = (weights_BKSGR[..., None] * value_BKSGE[..., None, :]).sum(2)
    return values_BKGRE.flatten(2, 3), lse_BKGR.flatten(2, 3)


def causal_suffix_attention(query_BKTHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of a beam's last T codes over its S, each up to itself -> (B, K, T, H, E), log-sum-exps (B, K, T, H)."""
    num_new, size = query_BKTHE.shape[2], query_BKTHE.shape[4]
    groups, num_slots = key_BKSGE.shape[3], key_BKSGE.shape[2]
    query_BKGNE = (query_BKTHE.unflatten(3, (groups, -1)) * size**-0.5).permute(0, 1, 3, 2, 4, 5).flatten(3, 4)
    scores = torch.matmul(query_BKGNE, key_BKSGE.permute(0, 1, 3, 4, 2)).float().unflatten(3, (num_new, -1))
    slot_S = torch.arange(num_slots, device=scores.device)
    later_TS = slot_S > slot_S[num_slots - num_new :, None]
    scores.masked_fill_(later_TS[:, None], -torch.inf)
    lse_BKGTR = scores.logsumexp(-1)
    weights = (scores - lse_BKGTR[..., None]).exp_().to(value_BKSGE.dtype)
    values = torch.matmul(weights.flatten(3, 4), value_BKSGE.transpose(2, 3)).unflatten(3, (num_new, -1))
    return values.permute(0, 1, 3, 2, 4, 5).flatten(3, 4), lse_BKGTR.transpose(2, 3).flatten(3, 4)


def merge(one_BKHE: Tensor, one_lse_BKH: Tensor, other_BKHE: Tensor, other_lse_BKH: Tensor) -> Tensor:
    """Attention over two sets of keys from attention over each: the parts weigh as much as their summed exponentials."""
    share_BKH = torch.sigmoid(other_lse_BKH - one_lse_BKH)
    return torch.lerp(one_BKHE, other_BKHE, share_BKH[..., None].to(one_BKHE.dtype))
