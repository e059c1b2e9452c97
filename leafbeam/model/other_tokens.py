"""One logit of all tokens that are not codes of a level, which scoring "vocabulary" reads beside those of the codes.

Shapes: D hidden, V codes of a level, L levels, W tokens of the model, n tokens of a block.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.model.decoder import capped
from leafbeam.model.vocabulary import AnyVocabulary

_BLOCK = 8192  # tokens whose logits are in memory at a time


class OtherTokens:
    """The head of a model over all tokens but the codes of a level.

    Args:
        head_WD: The head of the model.
        vocabulary: The tokens of the codes.
        logit_cap: The soft cap of the logits, 0 if there is none.
    """

    def __init__(self, head_WD: Tensor, vocabulary: AnyVocabulary, logit_cap: float) -> None:
        self._head_WD, self._logit_cap = head_WD.detach(), logit_cap
        is_code_LW = torch.zeros(vocabulary.num_levels, len(head_WD), dtype=torch.bool)
        for level, is_code_W in enumerate(is_code_LW):
            is_code_W[torch.from_numpy(vocabulary.level_tokens(level))] = True
        self._is_code_LW = is_code_LW.to(head_WD.device)

    def logit(self, hidden: Tensor, level: int) -> Tensor:
        """Return the log-sum-exp (..., 1) of the logits of all tokens that are not codes of a level, in float32.

        This multiplies the whole head, block by block, and waits for no device.
        """
        blocks = zip(self._head_WD.split(_BLOCK), self._is_code_LW[level].split(_BLOCK), strict=True)
        sums: list[Tensor] = []
        for head_nD, is_code_n in blocks:
            logits = capped(F.linear(hidden, head_nD), self._logit_cap).float()
            sums.append(logits.masked_fill_(is_code_n, -torch.inf).logsumexp(-1, keepdim=True))
        return torch.cat(sums, -1).logsumexp(-1, keepdim=True)

    def beside(self, logits: Tensor, hidden: Tensor, level: int) -> Tensor:
        """Return the logits (..., V + 1) of a level's codes and, last, of all other tokens, in float32."""
        return torch.cat([logits.float(), self.logit(hidden, level)], -1)
