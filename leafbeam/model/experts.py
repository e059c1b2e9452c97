"""A mixture of experts: a router sends each token to a few of many feed-forward networks.

Shapes: N tokens, X experts, E experts of a token, D hidden, F inner.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.model.t5_config import EncoderDecoderConfig, FeedForwardKind

__all__ = ["Experts", "activation"]


def activation(kind: FeedForwardKind, x: Tensor) -> Tensor:
    """The activation function of this kind of feed-forward network ("gelu" is the tanh form, as in T5 v1.1)."""
    if kind == "relu":
        return F.relu(x)
    return F.silu(x) if kind == "gated-silu" else F.gelu(x, approximate="tanh")


class Experts(nn.Module):
    """A mixture of experts: out(x) = sum over the E best experts i of p_i(x) FFN_i(x), p the softmax of a linear router.

    Tokens are sorted by expert, so that each expert runs two or three matrix products over its tokens. No token is dropped and
    no expert has a capacity (as in Switch), so a token's output does not depend on its batch. Cost: E feed-forward networks a
    token; the number of tokens per expert is read on the host. The router works in float32. (Shazeer et al., 2017; OneRec.)
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
        """(..., D) -> (..., D). balance: a list to which the load-balancing loss of these tokens is appended."""
        tokens_ND = hidden.reshape(-1, hidden.shape[-1])
        probabilities_NX = F.linear(tokens_ND.float(), self.router.weight.float()).softmax(-1)
        weight_NE, expert_NE = probabilities_NX.topk(self.num_chosen, dim=-1)
        if balance is not None:
            balance.append(_load_balancing_loss(probabilities_NX, expert_NE))
        if self.normed:
            weight_NE = weight_NE / weight_NE.sum(-1, keepdim=True)
        order = expert_NE.flatten().argsort(stable=True)
        counts = torch.bincount(expert_NE.flatten(), minlength=self.wo.shape[0]).tolist()
        by_expert = tokens_ND.index_select(0, order // self.num_chosen).split(counts)
        outputs = [self._feed_forward(expert, tokens) for expert, tokens in enumerate(by_expert) if len(tokens)]
        output_MD = torch.cat(outputs) if outputs else tokens_ND
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        output_NED = output_MD.index_select(0, inverse).unflatten(0, expert_NE.shape)
        return (weight_NE.to(output_NED.dtype)[..., None] * output_NED).sum(1).view(hidden.shape)

    def _feed_forward(self, expert: int, tokens_MD: Tensor) -> Tensor:
        inner = activation(self.kind, F.linear(tokens_MD, self.wi_0[expert]))
        if self.wi_1 is not None:
            inner = inner * F.linear(tokens_MD, self.wi_1[expert])
        return F.linear(inner, self.wo[expert])


def _load_balancing_loss(probabilities_NX: Tensor, expert_NE: Tensor) -> Tensor:
    """X x sum over experts of (fraction of the choices) x (mean probability): 1 when balanced, X when one expert takes all.

    (Switch Transformer, equation 4, for E choices a token.) Only the probabilities carry a gradient.
    """
    num_experts = probabilities_NX.shape[1]
    counts_X = torch.bincount(expert_NE.flatten(), minlength=num_experts)
    fraction_X = counts_X.to(probabilities_NX.dtype) / max(1, expert_NE.numel())
    return num_experts * (fraction_X * probabilities_NX.mean(0)).sum()
