"""Experts: many feed-forward networks of which each token uses a few, chosen by a router.

Shapes: N tokens, X experts, E experts of a token, D hidden, F inner.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.model.t5_config import EncoderDecoderConfig, FeedForwardKind

__all__ = ["Experts", "activation"]


def activation(kind: FeedForwardKind, x: Tensor) -> Tensor:
    """What a feed-forward network of this kind applies to its first projection ("gelu" is the tanh form, as in T5 v1.1)."""
    if kind == "relu":
        return F.relu(x)
    return F.silu(x) if kind == "gated-silu" else F.gelu(x, approximate="tanh")


class Experts(nn.Module):
    """A mixture of experts: out(x) = sum over the E best experts i of p_i(x) FFN_i(x), p the softmax of a linear router.

    Think of it as a post office: tokens are sorted by expert, each expert works through its pile with two or three matrix
    products, and the answers go back in the tokens' order. No token is dropped and no pile has a limit (Switch's have), so what
    a beam gets does not depend on which others are in its batch. Cost: E feed-forward networks a token and one reading of each
    used expert; the sizes of the piles are read on the host. The router works in float32. (Shazeer et al., 2017; OneRec.)
    """

    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        count, hidden, inner = config.num_experts, config.d_model, config.d_ff
        self.kind: FeedForwardKind = config.feed_forward_proj
        self.num_chosen, self.normed = config.num_experts_per_tok, config.norm_topk_prob
        self.router = nn.Linear(hidden, count, bias=False, device="meta")
        self.wi_0 = nn.Parameter(torch.empty(count, inner, hidden, device="meta"))
        self.wi_1 = nn.Parameter(torch.empty(count, inner, hidden, device="meta")) if config.is_gated else None
        self.wo = nn.Parameter(torch.empty(count, hidden, inner, device="meta"))

    def forward(self, hidden: Tensor, balance: list[Tensor] | None = None) -> Tensor:
        """(..., D) -> (..., D). balance: a list to which the load-balancing loss of these tokens is added."""
        tokens_ND = hidden.reshape(-1, hidden.shape[-1])
        shares_NX = F.linear(tokens_ND.float(), self.router.weight.float()).softmax(-1)
        share_NE, expert_NE = shares_NX.topk(self.num_chosen, dim=-1)
        if balance is not None:
            balance.append(_imbalance(shares_NX, expert_NE))
        if self.normed:
            share_NE = share_NE / share_NE.sum(-1, keepdim=True)
        order = expert_NE.flatten().argsort(stable=True)
        piles = torch.bincount(expert_NE.flatten(), minlength=self.wo.shape[0]).tolist()
        sorted_tokens = tokens_ND.index_select(0, order // self.num_chosen)
        answers = [self._ask(expert, pile) for expert, pile in enumerate(sorted_tokens.split(piles)) if len(pile)]
        answer_MD = torch.cat(answers) if answers else tokens_ND
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        answer_NED = answer_MD.index_select(0, back).unflatten(0, expert_NE.shape)
        return (share_NE.to(answer_NED.dtype)[..., None] * answer_NED).sum(1).view(hidden.shape)

    def _ask(self, expert: int, pile: Tensor) -> Tensor:
        inner = activation(self.kind, F.linear(pile, self.wi_0[expert]))
        if self.wi_1 is not None:
            inner = inner * F.linear(pile, self.wi_1[expert])
        return F.linear(inner, self.wo[expert])


def _imbalance(shares_NX: Tensor, expert_NE: Tensor) -> Tensor:
    """X x sum over experts of (share of the tokens' choices) x (mean probability): 1 when even, X when one expert takes all.

    (Switch Transformer, equation 4, for E choices a token.) Only the probabilities carry a gradient.
    """
    num_experts = shares_NX.shape[1]
    counts_X = torch.bincount(expert_NE.flatten(), minlength=num_experts)
    used_X = counts_X.to(shares_NX.dtype) / max(1, expert_NE.numel())
    return num_experts * (used_X * shares_NX.mean(0)).sum()
