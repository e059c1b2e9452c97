"""Running a model's layers for a search: the prompts once, then one or more codes of every beam.

Shapes: B requests, T tokens of a prompt, K beams, C new codes of each beam, N = K x C, V codes of a level, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from leafbeam.model.kv_cache import BeamCache, PromptCache
from leafbeam.model.qwen3 import Qwen3
from leafbeam.ops.attention.reference import causal_suffix_attention, merge, suffix_attention

__all__ = ["KVCache", "Runner", "TorchRunner"]


class KVCache(Protocol):
    """Keys and values that a search holds."""

    @property
    def nbytes(self) -> int: ...


class Runner(Protocol):
    """Runs the layers for one batch of prompts, which its constructor has prefilled."""

    @property
    def prompt(self) -> KVCache: ...

    @property
    def beams(self) -> KVCache: ...

    def root_logits(self) -> Tensor:
        """Logits (B, V) of level 0."""
        ...

    def restart(self) -> None:
        """Drop the beams and keep the prompts."""
        ...

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        """Logits (B, K, V) of levels level + 1 to level + C, after each new code of every beam.

        parents_BK: the beam of the last call that each beam continues.
        """
        ...


class TorchRunner:
    """The model's torch modules, on any device and in any dtype."""

    def __init__(self, body: Qwen3, head: Callable[[Tensor, int], Tensor], tokens_BT: Tensor, lengths_B: Tensor) -> None:
        self._body, self._head, self._lengths_B = body, head, lengths_B
        num_tokens = tokens_BT.shape[1]
        self.prompt = PromptCache(lengths_B if bool((lengths_B < num_tokens).any()) else None)
        hidden_BTD = body(tokens_BT, torch.arange(num_tokens, device=tokens_BT.device), self.prompt.prefill)
        self._last_BD = hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]
        self.restart()

    def restart(self) -> None:
        self.beams = BeamCache(len(self.prompt.keys))

    def root_logits(self) -> Tensor:
        return self._head(self._last_BD, 0)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        _, num_beams, num_codes = tokens_BKC.shape
        self.beams.follow(parents_BK, num_codes)
        positions_BN = (self._lengths_B + level)[:, None]
        if num_codes > 1:
            positions_BN = positions_BN + torch.arange(num_codes, device=tokens_BKC.device).repeat(num_beams)
        hidden_BND = self._body(tokens_BKC.flatten(1, 2), positions_BN, self._attend)
        hidden_BKCD = hidden_BND.unflatten(1, (num_beams, num_codes))
        return [self._head(hidden_BKCD[:, :, code], level + 1 + code) for code in range(num_codes)]

    def _attend(self, layer: int, query_BNHE: Tensor, key_BNGE: Tensor, value_BNGE: Tensor) -> Tensor:
        """One softmax over the prompt and the beam's own codes, up to each new one."""
        keys_BKSGE, values_BKSGE = self.beams.extend(layer, key_BNGE, value_BNGE)
        prefix = self.prompt.attend(layer, query_BNHE)
        if self.beams.shape[1] == 1:
            return merge(*prefix, *suffix_attention(query_BNHE, keys_BKSGE, values_BKSGE))
        query_BKCHE = query_BNHE.unflatten(1, self.beams.shape)
        values, lse = causal_suffix_attention(query_BKCHE, keys_BKSGE, values_BKSGE)
        return merge(*prefix, values.flatten(1, 2), lse.flatten(1, 2))
