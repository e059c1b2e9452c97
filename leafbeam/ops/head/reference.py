"""Logits of legal codes in plain torch: all logits, then the legal ones.

Shapes: R rows, V codes, D hidden, C legal codes.
"""

import torch
from torch import Tensor

from leafbeam.ops.head.types import HeadLogits, LegalCodes, Normalize, check_inputs


def head(hidden_RD: Tensor, weight_VD: Tensor, legal_codes: LegalCodes[Tensor], normalize: Normalize) -> HeadLogits[Tensor]:
    """Return the logits of each row's legal codes and its log-sum-exp.

        logits = hidden @ weight.T
        for each row: logits[its codes], and logsumexp over all codes ("full") or over these ("allowed")

    weight_VD may be a slice of a larger head: the rows of one level's codebook. Computed in float64; the output is float32.
    Cost: R x V x D multiplications and a table of R x V. Raises LogitsError, ArgumentError.
    """
    check_inputs(hidden_RD, weight_VD, legal_codes.num_rows, normalize)
    logits_RV = hidden_RD.double() @ weight_VD.double().T
    row_C = torch.repeat_interleave(legal_codes.indptr_R1.diff())
    logit_C = logits_RV[row_C, legal_codes.code_C]
    if normalize == "allowed":
        legal_RV = torch.zeros_like(logits_RV, dtype=torch.bool)
        legal_RV[row_C, legal_codes.code_C] = True
        logits_RV = logits_RV.masked_fill(~legal_RV, -torch.inf)
    lse_R = logits_RV.logsumexp(1).float()
    return HeadLogits(legal_codes=legal_codes, logit_C=logit_C.float(), lse_R=lse_R, path="reference")
