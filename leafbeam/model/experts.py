"""Mixtures of experts, and the activations of feed-forward networks.

Shapes: N tokens, D hidden, X experts, E experts of a token.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.model.config import Activation
from leafbeam.ops.linear.int8 import Int8Matrix
from leafbeam.ops.linear.rounded import Matrix, multiply

_BLOCK = 32  # tokens of one expert that run together in a captured decode
_BLOCKS = 16  # whose matrices are copied at once


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
    token; the number of tokens per expert is read on the host, except in a captured decode (`run_blocks`). The router works in
    float32. (Shazeer et al., 2017; OneRec.)
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
        self.count, self.num_chosen, self.normed = count, num_chosen, is_normed
        self.router = nn.Linear(hidden, count, bias=False, device="meta")
        self.wi_0 = nn.Parameter(torch.empty(count, inner, hidden, device="meta"))
        self.wi_1 = nn.Parameter(torch.empty(count, inner, hidden, device="meta")) if is_gated else None
        self.wo = nn.Parameter(torch.empty(count, hidden, inner, device="meta"))
        self._int8: dict[str, list[Int8Matrix]] = {}

    def store_int8(self) -> None:
        """Store each expert's matrices, rounded to int8, in the place of the weights."""
        for name, weight in list(self.named_parameters(recurse=False)):
            self._int8[name] = [Int8Matrix.of(weight_VD) for weight_VD in weight]
            setattr(self, name, nn.Parameter(weight.new_empty(0), requires_grad=False))

    def _matrix(self, name: Literal["wi_0", "wi_1", "wo"], expert: int) -> Matrix:
        return self._int8[name][expert] if self._int8 else getattr(self, name)[expert]

    def forward(self, hidden: Tensor, balance: list[Tensor] | None = None) -> Tensor:
        """Map (..., D) to (..., D). balance: a list to which the load-balancing loss of these tokens is appended."""
        tokens_ND = hidden.reshape(-1, hidden.shape[-1])
        probabilities_NX = F.linear(tokens_ND.float(), self.router.weight.float()).softmax(-1)
        weight_NE, expert_NE = probabilities_NX.topk(self.num_chosen, dim=-1)
        if balance is not None:
            balance.append(_load_balancing_loss(probabilities_NX, expert_NE))
        if self.normed:
            weight_NE = weight_NE / weight_NE.sum(-1, keepdim=True)
        order = expert_NE.flatten().argsort(stable=True)
        sorted_MD = tokens_ND.index_select(0, order // self.num_chosen)
        is_captured = tokens_ND.is_cuda and torch.cuda.is_current_stream_capturing()
        run = self.run_blocks if is_captured else self._run_by_expert
        output_MD = run(sorted_MD, expert_NE.flatten().index_select(0, order))
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order), device=order.device)
        output_NED = output_MD.index_select(0, inverse).unflatten(0, expert_NE.shape)
        return (weight_NE.to(output_NED.dtype)[..., None] * output_NED).sum(1).view(hidden.shape)

    def _run_by_expert(self, sorted_MD: Tensor, expert_M: Tensor) -> Tensor:
        """Run tokens sorted by expert, after a look from the host at how many each expert has."""
        counts = torch.bincount(expert_M, minlength=self.count).tolist()
        by_expert = enumerate(sorted_MD.split(counts))
        outputs = [self._feed_forward(expert, tokens) for expert, tokens in by_expert if len(tokens)]
        return torch.cat(outputs) if outputs else sorted_MD

    def run_blocks(self, sorted_MD: Tensor, expert_M: Tensor) -> Tensor:
        """Run tokens sorted by expert without a look from the host, so that a graph can capture it.

        Each expert's tokens begin a new block of _BLOCK rows, so that the number of blocks is fixed: the rows over _BLOCK, and
        one more for each expert. A block multiplies a copy of its expert's matrices.
        """
        count, size = self.count, sorted_MD.shape[1]
        expert_X = torch.arange(count, device=expert_M.device)
        begin_X = torch.searchsorted(expert_M, expert_X)
        blocks_X = (torch.searchsorted(expert_M, expert_X, right=True) - begin_X + _BLOCK - 1) // _BLOCK
        last_X = blocks_X.cumsum(0)  # the block behind each expert's
        row_M = torch.arange(len(expert_M), device=expert_M.device) - begin_X[expert_M]
        row_M = row_M + (last_X - blocks_X)[expert_M] * _BLOCK
        num_blocks = -(-len(expert_M) // _BLOCK) + count
        rows_RD = sorted_MD.new_zeros(num_blocks * _BLOCK, size).index_copy(0, row_M, sorted_MD)
        block_B = torch.arange(num_blocks, device=expert_M.device)
        expert_B = torch.searchsorted(last_X, block_B, right=True).clamp(max=count - 1)  # those behind the last are empty
        parts = zip(rows_RD.view(num_blocks, _BLOCK, size).split(_BLOCKS), expert_B.split(_BLOCKS), strict=True)
        return torch.cat([self._run_part(*part) for part in parts]).view(-1, size).index_select(0, row_M)

    def _run_part(self, rows_BND: Tensor, expert_B: Tensor) -> Tensor:
        inner = activate(self.activation, torch.bmm(rows_BND, self.wi_0[expert_B].mT))
        if self.wi_1 is not None:
            inner = inner * torch.bmm(rows_BND, self.wi_1[expert_B].mT)
        return torch.bmm(inner, self.wo[expert_B].mT)

    def _feed_forward(self, expert: int, tokens_MD: Tensor) -> Tensor:
        inner = activate(self.activation, multiply(tokens_MD, self._matrix("wi_0", expert)))
        if self.wi_1 is not None:
            inner = inner * multiply(tokens_MD, self._matrix("wi_1", expert))
        return multiply(inner, self._matrix("wo", expert))


def _load_balancing_loss(probabilities_NX: Tensor, expert_NE: Tensor) -> Tensor:
    """X x sum over experts of (fraction of the choices) x (mean probability) (Switch Transformer, equation 4)."""
    num_experts = probabilities_NX.shape[1]
    counts_X = torch.bincount(expert_NE.flatten(), minlength=num_experts)
    fraction_X = counts_X.to(probabilities_NX.dtype) / max(1, expert_NE.numel())
    return num_experts * (fraction_X * probabilities_NX.mean(0)).sum()
