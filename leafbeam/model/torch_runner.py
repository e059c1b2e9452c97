"""Runners of torch modules, on any device and in any dtype, one search at a time or captured as a graph.

Shapes: B requests, T tokens of a prompt, K beams, C new codes of each beam, N = K x C, R prefixes or texts, S codes of a beam,
V codes of a level, D hidden, H query heads, G key heads, E values of a head.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor

from leafbeam.model.decoder import Decoder, causal_attention
from leafbeam.model.kv_cache import CodeCache, PromptCache, TextCache
from leafbeam.ops.attention import reference
from leafbeam.ops.attention.reference import causal_suffix_attention, codes_of, merge
from leafbeam.ops.attention.types import Attention
from leafbeam.ops.backend import is_installed

_TRITON_DTYPES = torch.float32, torch.bfloat16, torch.float16


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerOptions:
    """The functions that a `TorchRunner` runs beside its model's layers.

    Args:
        head: Returns the logits of a level from hidden states, or the hidden states.
        attention: The functions of a backend.
        num_levels: The levels of what is decoded.
        is_padded: Whether prompts may be shorter than T. Without padding their lengths are not looked at.
        beams: The most beams that are expected; 0 if unknown.
    """

    head: Callable[[Tensor, int], Tensor]
    attention: Attention
    num_levels: int
    is_padded: bool = True
    beams: int = 0


def attention_on(weight: Tensor) -> Attention:
    """Return Triton's attention for a model on a GPU, if it is installed and has kernels for the dtype, else plain torch."""
    if weight.device.type == "cuda" and weight.dtype in _TRITON_DTYPES and is_installed("triton"):
        return import_module("leafbeam.ops.attention.triton").attention()
    return reference.attention()


class TorchRunner(ABC):
    """A `Runner` over torch modules. It reads no value on the host, so that a graph can capture it.

    prompt: keys and values that all beams of a request attend to. beams: those of the codes.
    """

    beams: CodeCache
    _num_starts = 0  # of tokens before a beam's first code

    def __init__(self, lengths_B: Tensor, num_layers: int, max_codes: int, options: RunnerOptions) -> None:
        self.prompt = PromptCache(lengths_B if options.is_padded else None)
        self._num_layers, self._max_codes = num_layers, max_codes
        self._options, self._attention = options, options.attention
        self.restart()

    def restart(self) -> None:
        self.beams = CodeCache(self._num_layers, self._max_codes, self._options.beams)

    @abstractmethod
    def root_logits(self) -> Tensor: ...

    @abstractmethod
    def _run(self, tokens_BN: Tensor, level: int) -> Tensor:
        """Return the hidden states (B, N, D) of the beams' new codes, after `follow`. level: codes that are before them."""

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        num_codes = tokens_BKC.shape[2]
        self.beams.follow(parents_BK, num_codes, self._num_starts + level)
        hidden_BKCD = self._run(tokens_BKC.flatten(1, 2), level).unflatten(1, self.beams.shape)
        return [self._options.head(hidden_BKCD[:, :, code], level + 1 + code) for code in range(num_codes)]


class DecoderRunner(TorchRunner):
    """The runner of a decoder-only model, for codes and, as `TextRunner`, for texts. vectors_BTD: those of the prompts."""

    def __init__(self, body: Decoder, vectors_BTD: Tensor, lengths_B: Tensor, options: RunnerOptions) -> None:
        super().__init__(lengths_B, len(body.layers), options.num_levels - 1, options)
        self._body, self._lengths_B = body, lengths_B
        attend = causal_attention(body.config)

        def prefill(layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
            self.prompt.append(key_BTGE, value_BTGE)
            return attend(layer, query_BTHE, key_BTGE, value_BTGE)

        hidden_BTD = body(vectors_BTD, torch.arange(vectors_BTD.shape[1], device=vectors_BTD.device), prefill)
        self._last_BD = hidden_BTD[torch.arange(len(lengths_B), device=lengths_B.device), lengths_B - 1]
        self._texts = TextCache(self._num_layers)

    def root_logits(self) -> Tensor:
        return self._options.head(self._last_BD, 0)

    def append(self, tokens: Sequence[Sequence[int]], levels: Sequence[int]) -> Tensor:
        """See `TextRunner`. Padded to the most new tokens of a text; what padding writes is behind the text's own slots."""
        device, count = self._lengths_B.device, max(map(len, tokens))
        padded_BKC = torch.tensor([[*row, *[0] * (count - len(row))] for row in tokens], device=device)
        padded_BKC = padded_BKC.view(len(self._lengths_B), -1, count)
        first_BK = torch.tensor(levels, device=device).view(padded_BKC.shape[:2])
        slot_BKC = first_BK[..., None] + torch.arange(count, device=device)
        self._texts.place(slot_BKC, max(levels) + count)
        self._positions_BN = positions_BN = self._lengths_B[:, None] + slot_BKC.flatten(1)
        hidden_BND = self._body(self._body.embed(padded_BKC.flatten(1)), positions_BN, self._attend_texts)
        last_R = torch.tensor([max(0, len(row) - 1) for row in tokens], device=device)
        return hidden_BND.unflatten(1, slot_BKC.shape[1:]).flatten(0, 1)[torch.arange(len(tokens), device=device), last_R]

    def _run(self, tokens_BN: Tensor, level: int) -> Tensor:
        num_beams, num_codes = self.beams.shape
        positions_BN = (self._lengths_B + level)[:, None]
        if num_codes > 1:
            positions_BN = positions_BN + torch.arange(num_codes, device=tokens_BN.device).repeat(num_beams)
        self._positions_BN = positions_BN
        return self._body(self._body.embed(tokens_BN), positions_BN, self._attend)

    def _attend_to_prompt(self, layer: int, query_BNHE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention to the part of the prompt that a layer sees from the present positions."""
        window, cap = self._body.config.window(layer), self._body.config.attention_cap
        first_BN = (self._positions_BN + 1 - window).expand(query_BNHE.shape[:2]) if window else None
        return self.prompt.attend(layer, query_BNHE, first_BN=first_BN, cap=cap)

    def _attend(self, layer: int, query_BNHE: Tensor, key_BNGE: Tensor, value_BNGE: Tensor) -> Tensor:
        """Return one softmax over the prompt and the beam's own codes, up to each new one."""
        slots, ancestors_BKS = self.beams.extend(layer, key_BNGE, value_BNGE), self.beams.ancestors_BKS
        window, cap = self._body.config.window(layer), self._body.config.attention_cap
        if self.beams.shape[1] == 1 and not window and not cap:
            prompt = self.prompt.keys[layer], self.prompt.values[layer], self.prompt.lengths_B
            return self._attention.over_both(query_BNHE, *prompt, *slots, ancestors_BKS)
        keys_BKSGE, values_BKSGE = (codes_of(side_BKSGE, ancestors_BKS) for side_BKSGE in slots)
        query_BKCHE = query_BNHE.unflatten(1, self.beams.shape)
        values, lse = causal_suffix_attention(query_BKCHE, keys_BKSGE, values_BKSGE, window=window, cap=cap)
        return merge(*self._attend_to_prompt(layer, query_BNHE), values.flatten(1, 2), lse.flatten(1, 2))

    def _attend_texts(self, layer: int, query_BNHE: Tensor, key_BNGE: Tensor, value_BNGE: Tensor) -> Tensor:
        keys_BKSGE, values_BKSGE = self._texts.extend(layer, key_BNGE, value_BNGE)
        slot_BKC = self._texts.slot_BKC
        query_BKCHE = query_BNHE.unflatten(1, slot_BKC.shape[1:])
        window, cap = self._body.config.window(layer), self._body.config.attention_cap
        values, lse = causal_suffix_attention(query_BKCHE, keys_BKSGE, values_BKSGE, slot_BKC, window, cap)
        return merge(*self._attend_to_prompt(layer, query_BNHE), values.flatten(1, 2), lse.flatten(1, 2))
