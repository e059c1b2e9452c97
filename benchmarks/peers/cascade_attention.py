"""Attention of beams as a cascade of torch's own kernels, as FlashInfer has it.

Flash attention of all beams over the prompt and attention of each beam over its own codes are joined by their log-sum-exps.

Shapes: B requests, K beams, T tokens of a prompt, S codes of a beam, H query heads, G key heads, R = H / G, E values of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leafbeam.ops.attention.reference import merge, suffix_attention

__all__ = ["CascadeBeams"]


@dataclass(frozen=True, kw_only=True, eq=False)
class CascadeBeams:
    """Keys and values as flash attention reads them: key_BGTE and value_BGTE of prompts, slots_* (B, K, S, G, E) of codes."""

    key_BGTE: Tensor
    value_BGTE: Tensor
    slots_key: Tensor
    slots_value: Tensor

    @classmethod
    def of(cls, key_BGET: Tensor, value_BGTE: Tensor, slots_key: Tensor, slots_value: Tensor) -> CascadeBeams:
        """Lay out prompts for flash attention, once."""
        key_BGTE = key_BGET.transpose(2, 3).contiguous()
        return cls(key_BGTE=key_BGTE, value_BGTE=value_BGTE, slots_key=slots_key, slots_value=slots_value)

    def attend(self, query_BKHE: Tensor) -> Tensor:
        """Return the attention of all beams: values (B, K, H, E)."""
        suffix = suffix_attention(query_BKHE, self.slots_key, self.slots_value)
        return merge(*self.prefix(query_BKHE), *suffix)

    def prefix(self, query_BKHE: Tensor) -> tuple[Tensor, Tensor]:
        """Return what `reference.prefix_attention` does; the K x R queries that share a key head are one sequence."""
        query_BGKRE = query_BKHE.unflatten(2, (self.key_BGTE.shape[1], -1)).transpose(1, 2)
        inputs = query_BGKRE.flatten(2, 3), self.key_BGTE, self.value_BGTE
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        if query_BKHE.device.type == "cpu":
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        values_BGNE, lse_BGN = flash(*inputs)[:2]
        values_BKHE = values_BGNE.reshape(query_BGKRE.shape).transpose(1, 2).flatten(2, 3)
        return values_BKHE, lse_BGN.reshape(query_BGKRE.shape[:-1]).transpose(1, 2).flatten(2, 3)
