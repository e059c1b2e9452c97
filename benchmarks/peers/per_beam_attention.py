"""How engines without shared prompts attend in a beam search, in torch.

copies: every beam reads its own copy of the prompt, its own codes behind it (PagedAttention, with the longest pages there are:
        a page table costs nothing here, which is the best case for it)
tree:   one sequence of the prompt and then all beams' codes, shared by all, and a mask that says whose are whose: the prompt is
        read once, every other beam's codes are read for nothing

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam, H query heads, G key heads, E values of a head, N = T + S
tokens of a beam's copy, or T + K x S of the tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["BeamCopies", "TreeBeams"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BeamCopies:
    """Keys and values of every beam's whole sequence, side by side in memory."""

    key_BKGEN: Tensor
    value_BKGNE: Tensor

    @classmethod
    def of(cls, key_BGET: Tensor, value_BGTE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor) -> BeamCopies:
        """Copy the prompt for every beam, and its codes behind it."""
        beams = key_BKSGE.shape[1]
        key = torch.cat([key_BGET[:, None].expand(-1, beams, -1, -1, -1), key_BKSGE.permute(0, 1, 3, 4, 2)], -1)
        value = torch.cat([value_BGTE[:, None].expand(-1, beams, -1, -1, -1), value_BKSGE.transpose(2, 3)], -2)
        return cls(key_BKGEN=key.contiguous(), value_BKGNE=value.contiguous())

    def attend(self, query_BKHE: Tensor) -> Tensor:
        """(B, K, H, E)."""
        groups, size = self.key_BKGEN.shape[2:4]
        query_BKGRE = query_BKHE.unflatten(2, (groups, -1)) * size**-0.5
        weights = (query_BKGRE @ self.key_BKGEN).float().softmax(-1).to(query_BKHE.dtype)
        return (weights @ self.value_BKGNE).flatten(2, 3)

    @property
    def nbytes(self) -> int:
        """What one call reads of keys and values, and what they take."""
        return self.key_BKGEN.nbytes + self.value_BKGNE.nbytes


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeBeams:
    """Keys and values of one sequence of T + K x S tokens, and the mask (K, N) of what each beam may see."""

    key_BGNE: Tensor
    value_BGNE: Tensor
    mask_KN: Tensor

    @classmethod
    def of(cls, key_BGET: Tensor, value_BGTE: Tensor, key_BKSGE: Tensor, value_BKSGE: Tensor) -> TreeBeams:
        """Put all beams' codes behind the prompt."""
        _, beams, codes, _, _ = key_BKSGE.shape
        tokens = key_BGET.shape[3]
        keys = torch.cat([key_BGET.transpose(2, 3), key_BKSGE.flatten(1, 2).transpose(1, 2)], 2)
        values = torch.cat([value_BGTE, value_BKSGE.flatten(1, 2).transpose(1, 2)], 2)
        own = torch.eye(beams, dtype=torch.bool, device=keys.device).repeat_interleave(codes, 1)
        mask = torch.cat([torch.ones(beams, tokens, dtype=torch.bool, device=keys.device), own], 1)
        return cls(key_BGNE=keys.contiguous(), value_BGNE=values.contiguous(), mask_KN=mask)

    def masked(self, parents_SK: Tensor, tokens: int) -> TreeBeams:
        """The same with its mask made anew, as each round has to: the prompt, and the codes on each beam's path.

        parents_SK: for each round, the beam of the round before that each beam extends.
        """
        rounds, beams = parents_SK.shape
        mask_KN = torch.zeros(beams, tokens + beams * rounds, dtype=torch.bool, device=self.mask_KN.device)
        mask_KN[:, :tokens] = True
        rows_K = beam_K = torch.arange(beams, device=mask_KN.device)
        for code in range(rounds - 1, -1, -1):
            mask_KN[rows_K, tokens + beam_K * rounds + code] = True
            beam_K = parents_SK[code][beam_K]
        return replace(self, mask_KN=mask_KN)

    def attend(self, query_BKHE: Tensor) -> Tensor:
        """(B, K, H, E): torch's own attention with a mask."""
        query_BHKE = query_BKHE.transpose(1, 2)
        out = F.scaled_dot_product_attention(
            query_BHKE, self.key_BGNE, self.value_BGNE, attn_mask=self.mask_KN, enable_gqa=True
        )
        return out.transpose(1, 2)

    @property
    def nbytes(self) -> int:
        """What one call reads of keys, values and mask."""
        return self.key_BGNE.nbytes + self.value_BGNE.nbytes + self.mask_KN.nbytes
