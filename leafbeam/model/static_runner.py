"""Decoding in fixed shapes, as a CUDA graph can capture it: lengths stay on the device and the host reads no value.

Shapes: B requests, T tokens of a prompt, K beams, S codes of a beam so far, V codes of a level, D hidden, H query heads, G key
heads, E values of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.model.kv_cache import PromptCache
from leafbeam.model.transformer import Transformer
from leafbeam.ops.attention.reference import attend, extend_ancestors

__all__ = ["StaticRunner", "StaticSession"]


class StaticRunner:
    """A model prepared for captured decoding: each level's head and tokens are computed once, here.

    Tokens, codes and parents are not checked, because a check would synchronise the device. The logits equal a
    `DecodeSession`'s, up to the order of sums.

    attend: `ops.attention.reference.attend`, or a kernel with the same arguments. The head of a level
    whose tokens are not consecutive is copied (V x D); after training make another runner.
    """

    def __init__(self, model: Transformer, attend: Callable[..., Tensor] = attend) -> None:
        self.body, self.attend = model.model, attend
        self.config, self.vocabulary, self.device = model.config, model.vocabulary, model.device
        weight, levels = model.head_weight.detach(), range(model.vocabulary.num_levels)
        self.dtype = weight.dtype
        self._heads = [self.vocabulary.level_rows(weight, level) for level in levels]
        self._tokens = [torch.from_numpy(self.vocabulary.level_tokens(level)).to(self.device) for level in levels]

    def start(self, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> StaticSession:
        """Prefill prompts, padded on the right to lengths_B (1 to T), for a search of up to num_beams beams."""
        return StaticSession(self, tokens_BT, lengths_B, num_beams)

    def tokens_at(self, codes: Tensor, level: int) -> Tensor:
        """The tokens of a level's codes."""
        return self._tokens[level][codes]

    def head(self, hidden: Tensor, level: int) -> Tensor:
        """Logits (..., V) of a level's codes."""
        return F.linear(hidden, self._heads[level])


class StaticSession:
    """One search: the prompts' keys and values, slots of codes that never move, and the table of each beam's ancestors.

    root_logits_BV: of level 0. Cost: a pass over B x T tokens, padding included, then one over B x K per level.
    """

    def __init__(self, runner: StaticRunner, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> None:
        self._runner, self._lengths_B = runner, lengths_B
        config, device = runner.config, tokens_BT.device
        self._prompt = PromptCache(lengths_B)
        shape = (len(tokens_BT), num_beams, runner.vocabulary.num_levels - 1, config.num_key_value_heads, config.head_dim)
        self._slots = [  # per layer: keys and values of codes (B, K, S, G, E)
            (torch.empty(shape, dtype=runner.dtype, device=device), torch.empty(shape, dtype=runner.dtype, device=device))
            for _ in range(config.num_hidden_layers)
        ]
        self._ancestors_BKS: Tensor | None = None
        self._level = 0
        hidden_BTD = runner.body(tokens_BT, torch.arange(tokens_BT.shape[1], device=device), self._prompt.prefill)
        last_BD = hidden_BTD[torch.arange(len(tokens_BT), device=device), lengths_B - 1]
        self.root_logits_BV = runner.head(last_BD, 0)

    def extend(self, codes_BK: Tensor, parents_BK: Tensor) -> Tensor:
        """Logits (B, K, V) of the next level, for beams that took codes_BK and extend the beams parents_BK."""
        self._ancestors_BKS = extend_ancestors(self._ancestors_BKS, parents_BK)
        tokens_BK = self._runner.tokens_at(codes_BK, self._level)
        hidden_BKD = self._runner.body(tokens_BK, (self._lengths_B + self._level)[:, None], self._attend)
        self._level += 1
        return self._runner.head(hidden_BKD, self._level)

    def _attend(self, layer: int, query_BKHE: Tensor, key_BKGE: Tensor, value_BKGE: Tensor) -> Tensor:
        assert self._ancestors_BKS is not None
        beams, level = query_BKHE.shape[1], self._level
        keys_BKSGE, values_BKSGE = self._slots[layer]
        keys_BKSGE[:, :beams, level], values_BKSGE[:, :beams, level] = key_BKGE, value_BKGE
        return self._runner.attend(
            query_BKHE,
            self._prompt.keys[layer],
            self._prompt.values[layer],
            self._lengths_B,
            keys_BKSGE[:, :, : level + 1],
            values_BKSGE[:, :, : level + 1],
            self._ancestors_BKS,
        )
