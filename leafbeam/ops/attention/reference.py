"""Attention over a shared prompt and over each beam's own codes, in plain torch; what models run on a CPU.

One softmax over prompt and codes equals two, weighted by their summed exponentials, so the prompt's keys are read once for all
beams of a request (xGR, section 5).

Shapes: B requests, T tokens of a prompt or new codes of a beam, K beams, S codes of a beam so far, H query heads, G key heads,
R query heads per key head (H = G x R), E values of a head.
"""

import torch
from torch import Tensor

from leafbeam.ops.attention.types import Attention

_NO_SCORE = -1e30  # of a query that sees no token


def attend(
    query_BKHE: Tensor,
    key_BGET: Tensor,
    value_BGTE: Tensor,
    lengths_B: Tensor | None,
    suffix_key_BKSGE: Tensor,
    suffix_value_BKSGE: Tensor,
    ancestors_BKS: Tensor | None = None,
) -> Tensor:
    """Return the attention over prompt and codes, one softmax: (B, K, H, E). See `prefix_attention` and `suffix_attention`."""
    return merge(
        *prefix_attention(query_BKHE, key_BGET, value_BGTE, lengths_B),
        *suffix_attention(query_BKHE, suffix_key_BKSGE, suffix_value_BKSGE, ancestors_BKS),
    )


def attend_prompt(query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Return the attention over the prompt alone, (B, K, H, E)."""
    return prefix_attention(query_BKHE, key_BGET, value_BGTE, lengths_B)[0]


def attend_codes(query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor, ancestors_BKS: Tensor, bias_HS: Tensor) -> Tensor:
    """Return the attention of each beam over its own codes alone, with a bias on the scores, (B, K, H, E)."""
    return suffix_attention(query_BKHE, key_BKSGE, value_BKSGE, ancestors_BKS, bias_HS)[0]


def attention() -> Attention:
    """Return these functions, as a captured decode takes them."""
    return Attention(over_both=attend, over_prompt=attend_prompt, over_codes=attend_codes)


def prefix_attention(
    query_BKHE: Tensor,
    key_BGET: Tensor,
    value_BGTE: Tensor,
    lengths_B: Tensor | None = None,
    first_BK: Tensor | None = None,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the attention of all beams over their request's prompt: values (B, K, H, E), log-sum-exp of the scores (B, K, H).

    The K x R queries that share a key head are one matrix, multiplied with keys that are read once. lengths_B: the number of
    tokens of each prompt that are read, at least 1; None reads all. first_BK: the first token that each query sees, None: 0; it
    may lie behind the prompt, whose share in `merge` is 0 then. cap: a soft cap of the scores, 0: none. Cost: B x H x K x T
    floats of memory.
    """
    groups, size = key_BGET.shape[1:3]
    query_BGKRE = query_BKHE.unflatten(2, (groups, -1)).transpose(1, 2)
    scores = _capped(torch.matmul(query_BGKRE.flatten(2, 3) * size**-0.5, key_BGET).float(), cap)
    if lengths_B is not None:
        padding_BT = torch.arange(key_BGET.shape[3], device=scores.device) >= lengths_B[:, None]
        scores.masked_fill_(padding_BT[:, None, None], -torch.inf)
    if first_BK is not None:
        hidden_BKT = torch.arange(key_BGET.shape[3], device=scores.device) < first_BK[..., None]
        scores.view(*query_BGKRE.shape[:-1], -1).masked_fill_(hidden_BKT[:, None, :, None], -torch.inf)
    top = scores.amax(-1, keepdim=True)
    if first_BK is not None:
        top.clamp_(min=_NO_SCORE)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    if first_BK is not None:
        total.clamp_(min=torch.finfo(total.dtype).tiny)
    values = torch.matmul(weights.to(value_BGTE.dtype), value_BGTE).div_(total)
    lse = top.add_(total.log_())
    values_BKHE = values.view(query_BGKRE.shape).transpose(1, 2).flatten(2, 3)
    return values_BKHE, lse.view(query_BGKRE.shape[:-1]).transpose(1, 2).flatten(2, 3)


def suffix_attention(
    query_BKHE: Tensor,
    key_BKSGE: Tensor,
    value_BKSGE: Tensor,
    ancestors_BKS: Tensor | None = None,
    bias_HS: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the attention of each beam over its own few codes: values (B, K, H, E), log-sum-exp of the scores (B, K, H).

    ancestors_BKS: int64, the slot that holds each code of each beam (see `extend_ancestors`); None takes the beam's own
    slots. bias_HS is added to the scores.
    """
    if ancestors_BKS is not None:
        key_BKSGE, value_BKSGE = codes_of(key_BKSGE, ancestors_BKS), codes_of(value_BKSGE, ancestors_BKS)
    groups, size = key_BKSGE.shape[3:]
    query_BKGRE = query_BKHE.unflatten(2, (groups, -1)) * size**-0.5
    # With so few keys a beam, multiplying and summing is faster than matrix products.
    scores_BKSGR = (query_BKGRE[:, :, None] * key_BKSGE[..., None, :]).sum(-1).float()
    if bias_HS is not None:
        scores_BKSGR = scores_BKSGR + bias_HS.T.unflatten(1, (groups, -1))
    lse_BKGR = scores_BKSGR.logsumexp(2)
    weights_BKSGR = (scores_BKSGR - lse_BKGR[:, :, None]).exp_().to(value_BKSGE.dtype)
    values_BKGRE = (weights_BKSGR[..., None] * value_BKSGE[..., None, :]).sum(2)
    return values_BKGRE.flatten(2, 3), lse_BKGR.flatten(2, 3)


def causal_suffix_attention(
    query_BKTHE: Tensor,
    key_BKSGE: Tensor,
    value_BKSGE: Tensor,
    slot_BKT: Tensor | None = None,
    window: int = 0,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the causal attention of T codes of a beam over its S: values (B, K, T, H, E), log-sum-exp (B, K, T, H).

    slot_BKT: the positions of the T among the S codes; None takes the last ones. window: how many codes each sees, itself
    included, 0: all. cap: a soft cap of the scores, 0: none.
    """
    num_new, size = query_BKTHE.shape[2], query_BKTHE.shape[4]
    groups, num_slots = key_BKSGE.shape[3], key_BKSGE.shape[2]
    query_BKGNE = (query_BKTHE.unflatten(3, (groups, -1)) * size**-0.5).permute(0, 1, 3, 2, 4, 5).flatten(3, 4)
    scores = torch.matmul(query_BKGNE, key_BKSGE.permute(0, 1, 3, 4, 2)).float().unflatten(3, (num_new, -1))
    scores = _capped(scores, cap)
    slot_S = torch.arange(num_slots, device=scores.device)
    last_BKT = slot_S[None, None, num_slots - num_new :] if slot_BKT is None else slot_BKT
    hidden_BKTS = slot_S > last_BKT[..., None]
    if window:
        hidden_BKTS = hidden_BKTS | (slot_S <= last_BKT[..., None] - window)
    scores.masked_fill_(hidden_BKTS[:, :, None, :, None], -torch.inf)
    lse_BKGTR = scores.logsumexp(-1)
    weights = (scores - lse_BKGTR[..., None]).exp_().to(value_BKSGE.dtype)
    values = torch.matmul(weights.flatten(3, 4), value_BKSGE.transpose(2, 3)).unflatten(3, (num_new, -1))
    return values.permute(0, 1, 3, 2, 4, 5).flatten(3, 4), lse_BKGTR.transpose(2, 3).flatten(3, 4)


def _capped(scores: Tensor, cap: float) -> Tensor:
    return torch.tanh(scores / cap).mul_(cap) if cap else scores


def merge(values_BKHE: Tensor, lse_BKH: Tensor, other_values_BKHE: Tensor, other_lse_BKH: Tensor) -> Tensor:
    """Join the attention over two sets of keys into one, weighted by their summed exponentials."""
    share_BKH = torch.sigmoid(other_lse_BKH - lse_BKH)
    return torch.lerp(values_BKHE, other_values_BKHE, share_BKH[..., None].to(values_BKHE.dtype))


def codes_of(slots_BKSGE: Tensor, ancestors_BKS: Tensor) -> Tensor:
    """Return each beam's codes: slots[b, ancestors[b, k, s], s] for every b, k and s."""
    request_B, code_S = (torch.arange(size, device=ancestors_BKS.device) for size in ancestors_BKS.shape[::2])
    return slots_BKSGE[request_B[:, None, None], ancestors_BKS, code_S]


def extend_ancestors(ancestors_BKS: Tensor | None, parents_BK: Tensor, num_codes: int = 1, first: int = 0) -> Tensor:
    """ancestors[b, k] = ancestors[b, parents[b, k]] + [first + k] * num_codes, with no ancestors before the first code.

    The table says which beam wrote each of a beam's codes, so that suffix slots never move. Cost: S + C numbers a beam.

    >>> extend_ancestors(extend_ancestors(None, torch.tensor([[0, 0, 0]])), torch.tensor([[2, 0]]))[0].tolist()
    [[2, 0], [0, 1]]
    """
    own_K = torch.arange(first, first + parents_BK.shape[1], device=parents_BK.device)
    own_BKC = own_K[None, :, None].expand(*parents_BK.shape, num_codes)
    if ancestors_BKS is None:
        return own_BKC.contiguous()  # the kernels need it contiguous
    before_BKS = ancestors_BKS.gather(1, parents_BK[..., None].expand(-1, -1, ancestors_BKS.shape[2]))
    return torch.cat((before_BKS, own_BKC), 2)
