"""The model's side of a search that nobody looks at: fixed shapes, lengths on the device, no value read by the host.

Shapes: B requests, T tokens of a prompt, K beams, S codes of a beam so far, V codes of a level, D hidden, H query heads, G key
heads, E values of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from leafbeam.model.qwen3 import causal
from leafbeam.model.transformer import Transformer
from leafbeam.model.vocabulary import AnyVocabulary, TokenTable
from leafbeam.ops.attention.reference import merge, prefix_attention, suffix_attention
from leafbeam.ops.attention.reorder import extend_ancestors

__all__ = ["Attention", "StaticRunner", "StaticSession", "attend"]

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def attend(
    query_BKHE: Tensor,
    key_BGET: Tensor,
    value_BGTE: Tensor,
    lengths_B: Tensor,
    suffix_key_BKSGE: Tensor,
    suffix_value_BKSGE: Tensor,
    ancestors_BKS: Tensor,
) -> Tensor:
    """What `leafbeam.ops.attention.triton.attend` does, in torch, on any device: prompt and suffix under one softmax."""
    return merge(
        *prefix_attention(query_BKHE, key_BGET, value_BGTE, lengths_B),
        *suffix_attention(query_BKHE, suffix_key_BKSGE, suffix_value_BKSGE, ancestors_BKS),
    )


class StaticRunner:
    """A model made ready for searches that a graph can capture: what depends on nobody's request is computed once, here.

    Think of it as `Transformer.start` without its checks: tokens, codes and parents are taken as they are, because to look at
    them would wait for the device. The answers are those of `DecodeSession`, up to the order of sums.

    attend: attention of beams over prompt and suffix; this file's, or a kernel's with the same arguments. The head of a
    TokenTable whose tokens do not lie side by side is copied (V x D a level): after training make another.
    """

    def __init__(self, model: Transformer, attend: Attention = attend) -> None:
        self._body, self._attend = model.model, attend
        self.config, self.vocabulary, self.device = model.config, model.vocabulary, model.device
        weight = model.head_weight.detach()
        self.dtype = weight.dtype
        self._heads = [self.vocabulary.level_rows(weight, level) for level in range(self.vocabulary.num_levels)]
        self._tokens = [_tokens_of(self.vocabulary, level, self.device) for level in range(self.vocabulary.num_levels)]

    def start(self, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> StaticSession:
        """Run prompts, padded on the right to lengths_B (1 to T), for a search of up to num_beams beams a round."""
        return StaticSession(self, tokens_BT, lengths_B, num_beams)

    def tokens_at(self, codes: Tensor, level: int) -> Tensor:
        """The tokens of a level's codes."""
        return self._tokens[level][codes]

    def head(self, hidden: Tensor, level: int) -> Tensor:
        """Logits (..., V) of a level's codes."""
        return torch.nn.functional.linear(hidden, self._heads[level])

    def attention(self, *arguments: Tensor) -> Tensor:
        return self._attend(*arguments)

    @property
    def body(self) -> Callable[..., Tensor]:
        return self._body


class StaticSession:
    """One search: keys and values of its prompts, slots for its codes that never move, and who descends from whom.

    root_logits_BV: of level 0. Cost: a pass over all B x T tokens, padding included; then one over B x K a round.
    """

    def __init__(self, rounds: StaticRunner, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> None:
        self._rounds, self._lengths_B = rounds, lengths_B
        config, device = rounds.config, tokens_BT.device
        self._prompts: list[tuple[Tensor, Tensor]] = []  # per layer: keys (B, G, E, T), values (B, G, T, E)
        shape = (len(tokens_BT), num_beams, rounds.vocabulary.num_levels - 1, config.num_key_value_heads, config.head_dim)
        self._slots = [  # per layer: keys and values of codes (B, K, S, G, E)
            (torch.empty(shape, dtype=rounds.dtype, device=device), torch.empty(shape, dtype=rounds.dtype, device=device))
            for _ in range(config.num_hidden_layers)
        ]
        self._ancestors_BKS: Tensor | None = None
        self._level = 0
        positions_T = torch.arange(tokens_BT.shape[1], device=device)
        hidden_BTD = rounds.body(tokens_BT, positions_T, self._attend_prompt)
        last_BD = hidden_BTD[torch.arange(len(tokens_BT), device=device), lengths_B - 1]
        self.root_logits_BV = rounds.head(last_BD, 0)

    def extend(self, codes_BK: Tensor, parents_BK: Tensor) -> Tensor:
        """Logits (B, K, V) of the next level, after each beam took a code and found its parent among the beams before."""
        self._ancestors_BKS = extend_ancestors(self._ancestors_BKS, parents_BK)
        tokens_BK = self._rounds.tokens_at(codes_BK, self._level)
        hidden_BKD = self._rounds.body(tokens_BK, (self._lengths_B + self._level)[:, None], self._attend_beams)
        self._level += 1
        return self._rounds.head(hidden_BKD, self._level)

    def _attend_prompt(self, layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
        self._prompts.append((key_BTGE.permute(0, 2, 3, 1).contiguous(), value_BTGE.transpose(1, 2).contiguous()))
        return causal(layer, query_BTHE, key_BTGE, value_BTGE)

    def _attend_beams(self, layer: int, query_BKHE: Tensor, key_BKGE: Tensor, value_BKGE: Tensor) -> Tensor:
        assert self._ancestors_BKS is not None
        beams = query_BKHE.shape[1]
        keys_BKSGE, values_BKSGE = self._slots[layer]
        keys_BKSGE[:, :beams, self._level], values_BKSGE[:, :beams, self._level] = key_BKGE, value_BKGE
        known = self._level + 1
        return self._rounds.attention(
            query_BKHE,
            *self._prompts[layer],
            self._lengths_B,
            keys_BKSGE[:, :, :known],
            values_BKSGE[:, :, :known],
            self._ancestors_BKS,
        )


def _tokens_of(vocabulary: AnyVocabulary, level: int, device: torch.device) -> Tensor:
    if isinstance(vocabulary, TokenTable):
        return torch.from_numpy(vocabulary.level_tokens(level)).to(device)
    tokens = vocabulary.level_slice(level)
    return torch.arange(tokens.start, tokens.stop, device=device)
