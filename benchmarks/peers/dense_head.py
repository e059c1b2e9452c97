"""Heads without an allowed-only kernel: every logit, or the allowed rows of the weight copied out first.

dense:   `hidden @ weight.T`, then take the legal ones: what every serving engine runs before its mask
sliced:  the CUDA study log's second step, `hidden @ weight[allowed].T`: the rows are written and read once more. In a batch
         whose rows differ it takes every row's slice by itself, as the log says
blocks:  the log's block-level filter for one row: products of the blocks of codes that hold a legal one

Shapes: R rows, V codes, D hidden, C legal codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["blocks", "dense", "sliced"]


def dense(hidden_RD: Tensor, weight_VD: Tensor, row_C: Tensor, code_C: Tensor) -> Tensor:
    """The legal logits out of a table of all. row_C: the row of each legal code."""
    return (hidden_RD @ weight_VD.T)[row_C, code_C]


def sliced(hidden_RD: Tensor, weight_VD: Tensor, row_indptr: Tensor, code_C: Tensor) -> Tensor:
    """The legal logits, row by row, from copied weights."""
    bounds = row_indptr.tolist()
    rows = zip(hidden_RD, bounds[:-1], bounds[1:], strict=True)
    return torch.cat([weight_VD[code_C[begin:end]] @ hidden_D for hidden_D, begin, end in rows])


def blocks(hidden_RD: Tensor, weight_VD: Tensor, code_C: Tensor, block: int) -> Tensor:
    """The legal logits of one row, from the blocks of so many codes that hold a legal one."""
    logits_V = torch.empty(len(weight_VD))
    for begin in (torch.unique_consecutive(code_C // block) * block).tolist():
        part = slice(begin, begin + block)
        torch.mv(weight_VD[part], hidden_RD[0], out=logits_V[part])
    return logits_V[code_C]
