"""Mixtures of experts, and the activations of feed-forward networks.

Shapes: N tokens, D hidden, X experts, E experts of a token.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.model.config import Activation


def activate(kind: Activation, x: Tensor, *, inplace: bool = False) -> Tensor:
    """Return the activation of x. inplace: it may be written into x."""
    if kind == "silu":
        return F.silu(x, inplace=inplace)
    if kind == "relu":
        return F.relu(x, inplace=inplace)
    return F.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


class Experts(nn.Module):
    """A mixture of experts: out(x) = sum over the E best experts i of p_i(x) FFN_i(x), p the softmax of a linear router.

    Tokens are sorted by expert, so that each expert runs two or three matrix products over its tokens. No token is dropped and
    no expert has a capacity (as in Switch), so a token's output does not depend on its batch. Cost: E feed-forward networks a
    token; the number of tokens per expert is read on the host. The router works in float32. (Shazeer et al., 2017; OneRec.)
    """

    def __init__(
        self,
        *,
        count: int,
        hidden: int,
        inner: int,
        activation: Activation,
        is_gated: bool,
        num_chosen: int,
        is_normed: bool,
    ) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.num_chosen, self.normed = num_chosen, is_normed
        self.router = nn.Linear(hidden, count, bias=False, device="meta")
        self.wi_0 = nn.Parameter(torch.empty(count, inner, hidden, device="meta"))
        self.wi_1 = nn.Parameter(torch.empty(count, inner, hidden, device="meta")) if is_gated else None
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
        inner = activate(self.activation, F.linear(tokens_MD, self.wi_0[expert]))
        if self.wi_1 is not None:
            inner = inner * F.linear(tokens_MD, self.wi_1[expert])
        return F.linear(inner, self.wo[expert])


def _load_balancing_loss(probabilities_NX: Tensor, expert_NE: Tensor) -> Tensor:
    """X x sum over experts of (fraction of the choices) x (mean probability) (Switch Transformer, equation 4)."""
    num_experts = probabilities_NX.shape[1]
    counts_X = torch.bincount(expert_NE.flatten(), minlength=num_experts)
    fraction_X = counts_X.to(probabilities_NX.dtype) / max(1, expert_NE.numel())
    return num_experts * (fraction_X * probabilities_NX.mean(0)).sum()
