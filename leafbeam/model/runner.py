"""Running the layers for a search: the prompts once, then one or more codes of every beam. By torch's modules, on any device.

Shapes: B requests, T tokens of a prompt, K beams, C codes of each beam that come at once, V codes of a level, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from leafbeam.model.kv_cache import BeamCache, PromptCache
from leafbeam.model.qwen3 import Qwen3

__all__ = ["KVCache", "Runner", "TorchRunner"]


class KVCache(Protocol):
    """Keys and values that a search holds."""

    @property
    def nbytes(self) -> int: ...


class Runner(Protocol):
    """What a search runs through the layers. `codes` may follow itself, level after level, or be left for `restart`."""

    @property
    def prompt(self) -> KVCache: ...

    @property
    def beams(self) -> KVCache: ...

    def root_logits(self) -> Tensor:
        """Logits (B, V) of level 0; the prompts have been run."""
        ...

    def restart(self) -> None:
        """Forget the beams and keep the prompts."""
        ...

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        """Logits (B, K, V) of level + 1, ..., level + C, after each code of every beam; parents: beams of the call before."""
        ...


class TorchRunner:
    """The model's own modules, with caches that grow as they go."""

    def __init__(self, body: Qwen3, head: Callable[[Tensor, int], Tensor], tokens_BT: Tensor, lengths_B: Tensor) -> None:
        self._body, self._head, self._lengths_B = body, head, lengths_B
        self.prompt = PromptCache(lengths_B, tokens_BT.shape[1])
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        hidden_BTD = body(tokens_BT, positions_T, self.prompt.attend)
        self._last_BD = hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]
        self.restart()

    def restart(self) -> None:
        self.beams = BeamCache(self.prompt)

    def root_logits(self) -> Tensor:
        return self._head(self._last_BD, 0)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        self.beams.follow(parents_BK)
        num_codes = tokens_BKC.shape[2]
        if num_codes == 1:
            hidden_BKD = self._body(tokens_BKC[:, :, 0], (self._lengths_B + level)[:, None], self.beams.attend)
            return [self._head(hidden_BKD, level + 1)]
        steps_N = torch.arange(num_codes, device=tokens_BKC.device).repeat(tokens_BKC.shape[1])
        positions_BN = (self._lengths_B + level)[:, None] + steps_N
        hidden_BND = self._body(tokens_BKC.flatten(1, 2), positions_BN, self.beams.attend_suffixes)
        hidden_BKCD = hidden_BND.unflatten(1, (-1, num_codes))
        return [self._head(hidden_BKCD[:, :, step], level + 1 + step) for step in range(num_codes)]
