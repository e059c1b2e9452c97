"""Keys and values of a search: the prompt's once per request, the codes' once per beam, and attention over both.

Reading the prompt's per beam would move K times as much memory (xGR, section 5, splits them for the same reason).

Shapes: B requests, T tokens of a prompt or new codes of a beam, K beams, S codes of a beam so far, H query heads, G key heads,
R query heads per key head (H = G x R), E values of a head.
"""

import torch
from torch import Tensor

from pleach.model.qwen3 import causal


class PromptCache:
    """Keys and values of the prompts, per layer: written by the prefill, then only read.

    lengths_B: tokens of each prompt that count; the padding behind them is never seen.
    """

    def __init__(self, lengths_B: Tensor, num_tokens: int) -> None:
        self.keys: list[Tensor] = []  # per layer, (B, G, E, T): ready to be multiplied from the left
        self.values: list[Tensor] = []  # per layer, (B, G, T, E)
        padding_BT = torch.arange(num_tokens, device=lengths_B.device) >= lengths_B[:, None]
        self.padding_B11T = padding_BT[:, None, None] if bool(padding_BT.any()) else None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; no number of beams enters."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def attend(self, layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
        """Causal attention of the prefill, which keeps what it sees."""
        self.keys.append(key_BTGE.permute(0, 2, 3, 1).contiguous())
        self.values.append(value_BTGE.transpose(1, 2).contiguous())
        return causal(layer, query_BTHE, key_BTGE, value_BTGE)


class BeamCache:
    """Keys and values of the codes that each beam has taken, per layer; it follows the beams from round to round.

    Think of it as [B x K, S] slots that `follow` points at new parents; the rows move while `attend` adds the next slot,
    once per layer, which touches a few hundred bytes a beam.
    """

    def __init__(self, prompt: PromptCache) -> None:
        self.prompt = prompt
        self.keys: list[Tensor | None] = [None] * len(prompt.keys)  # per layer, (B, K, S, G, E)
        self.values: list[Tensor | None] = [None] * len(prompt.keys)
        self._parents_BK: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values of all beams."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values) if tensor is not None)

    def follow(self, parents_BK: Tensor) -> None:
        """From the next `attend` on, beam k is the child of beam parents_BK[:, k]; K may change."""
        self._parents_BK = parents_BK

    def attend(self, layer: int, query_BKHE: Tensor, key_BKGE: Tensor, value_BKGE: Tensor) -> Tensor:
        """Every beam sees its prompt, its own codes and the one it takes now; equal to one softmax over all of them."""
        self.keys[layer] = keys_BKSGE = self._extended(self.keys[layer], key_BKGE)
        self.values[layer] = values_BKSGE = self._extended(self.values[layer], value_BKGE)
        return merge(
            *prefix_attention(query_BKHE, self.prompt.keys[layer], self.prompt.values[layer], self.prompt.padding_B11T),
            *suffix_attention(query_BKHE, keys_BKSGE, values_BKSGE),
        )

    def attend_suffixes(self, layer: int, query_BNHE: Tensor, key_BNGE: Tensor, value_BNGE: Tensor) -> Tensor:
        """As `attend`, for T codes of every beam at once (N = K x T, a beam's codes side by side): each sees those before it.

        The new slots are not kept: nothing follows a suffix.
        """
        assert self._parents_BK is not None, "follow() comes before attend_suffixes()"
        beams = self._parents_BK.shape[1]
        query_BKTHE, key_BKTGE, value_BKTGE = (one.unflatten(1, (beams, -1)) for one in (query_BNHE, key_BNGE, value_BNGE))
        keys_BKSGE, values_BKSGE = key_BKTGE, value_BKTGE
        before = self.keys[layer], self.values[layer]
        if before[0] is not None and before[1] is not None:
            keys_BKSGE = torch.cat((self._followed(before[0]), key_BKTGE), 2)
            values_BKSGE = torch.cat((self._followed(before[1]), value_BKTGE), 2)
        values, lse = causal_suffix_attention(query_BKTHE, keys_BKSGE, values_BKSGE)
        return merge(
            *prefix_attention(query_BNHE, self.prompt.keys[layer], self.prompt.values[layer], self.prompt.padding_B11T),
            values.flatten(1, 2),
            lse.flatten(1, 2),
        )

    def _extended(self, slots_BKSGE: Tensor | None, new_BKGE: Tensor) -> Tensor:
        if slots_BKSGE is None:
            return new_BKGE[:, :, None]
        return torch.cat((self._followed(slots_BKSGE), new_BKGE[:, :, None]), 2)

    def _followed(self, slots_BKSGE: Tensor) -> Tensor:
        """The slots of the parents, in the order of their children."""
        assert self._parents_BK is not None, "follow() comes before the second attend()"
        requests, beams = slots_BKSGE.shape[:2]
        first_row_B = torch.arange(requests, device=slots_BKSGE.device) * beams
        rows = (self._parents_BK + first_row_B[:, None]).flatten()
        return slots_BKSGE.flatten(0, 1).index_select(0, rows).unflatten(0, self._parents_BK.shape)


def prefix_attention(
    query_BKHE: Tensor, key_BGET: Tensor, value_BGTE: Tensor, padding_B11T: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attention of all beams over their request's prompt -> values (B, K, H, E), log-sum-exp of the scores (B, K, H).

    All queries of a request that share a key head, K x R of them, are one tile against keys that are read once. Takes
    B x H x K x T floats for the time of the call.
    """
    groups, size = key_BGET.shape[1:3]
    query_BGKRE = query_BKHE.unflatten(2, (groups, -1)).transpose(1, 2)
    tile = query_BGKRE.flatten(2, 3)
    scores = torch.matmul(tile * size**-0.5, key_BGET).float()
    if padding_B11T is not None:
        scores.masked_fill_(padding_B11T, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    values = torch.matmul(weights.to(value_BGTE.dtype), value_BGTE).div_(total)
    lse = top.add_(total.log_())
    values_BKHE = values.view(query_BGKRE.shape).transpose(1, 2).flatten(2, 3)
    return values_BKHE, lse.view(query_BGKRE.shape[:-1]).transpose(1, 2).flatten(2, 3)


def suffix_attention(query_BKHE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of each beam over its own few codes -> values (B, K, H, E), log-sum-exp of the scores (B, K, H)."""
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
