"""Models prepared for captured decoding: steps that check nothing, copy nothing from the host and read no value on it.

Shapes: B requests, T tokens of a prompt, K beams, S codes of a beam so far, V codes of a level, D hidden, H query heads,
G key heads, E values of a head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.errors import ArgumentError, counted
from leafbeam.model.encoder_decoder import EncoderDecoder
from leafbeam.model.kv_cache import PromptCache, search_bytes
from leafbeam.model.transformer import Transformer
from leafbeam.ops.attention import reference
from leafbeam.ops.attention.reference import extend_ancestors
from leafbeam.ops.attention.types import Attention


class StaticRunner(ABC):
    """A model prepared for captured decoding: each level's head and tokens are computed once, here.

    Tokens, codes and parents are not checked, because a check would synchronise the device. The logits equal a
    `DecodeSession`'s, up to the order of sums. The head of a level whose tokens are not consecutive is copied (V x D); after
    training make another runner.
    """

    def __init__(self, model: Transformer | EncoderDecoder, attention: Attention) -> None:
        self.attention, self.vocabulary, self.device = attention, model.vocabulary, model.device
        weight, levels = model.head_weight.detach(), range(model.vocabulary.num_levels)
        self.dtype = weight.dtype
        self.heads = [self.vocabulary.level_rows(weight, level) for level in levels]
        self.tokens = [torch.from_numpy(self.vocabulary.level_tokens(level)).to(self.device) for level in levels]

    @staticmethod
    def of(model: Transformer | EncoderDecoder, attention: Attention | None = None) -> StaticRunner:
        """The runner of a model. attention: of a backend; None: plain torch. Raises ArgumentError, see `check_static`."""
        check_static(model)
        attention = attention or reference.attention()
        if isinstance(model, EncoderDecoder):
            return _StaticEncoderDecoder(model, attention)
        return _StaticTransformer(model, attention)

    @abstractmethod
    def start(self, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> StaticSession:
        """Run prompts, padded on the right to lengths_B (1 to T), for a search of up to num_beams beams."""

    @abstractmethod
    def work_bytes(self, requests: int, tokens: int, num_beams: int) -> int:
        """About what a search needs but for logits: keys and values, and the activations of the prompts or beams."""


def check_static(model: Transformer | EncoderDecoder) -> None:
    """Raise ArgumentError for a model whose steps read values on the host."""
    if isinstance(model, EncoderDecoder) and model.config.num_experts:
        raise ArgumentError(
            f"a decoder of {counted(model.config.num_experts, 'expert')} cannot be captured: "
            "the host reads how many tokens each expert "
            "has; set graphs to False"
        )


class StaticSession(ABC):
    """One search: keys and values of the prompts and, in slots that never move, of the codes. root_logits_BV: of level 0."""

    root_logits_BV: Tensor

    def __init__(self, runner: StaticRunner, prompt: PromptCache, layers: int, shape: tuple[int, ...]) -> None:
        """shape: (B, K, S, G, E) of a layer's slots."""
        self._runner, self._prompt, self._level = runner, prompt, 0
        self._slots = [
            tuple(torch.empty(shape, dtype=runner.dtype, device=runner.device) for _ in range(2)) for _ in range(layers)
        ]
        self._ancestors_BKS: Tensor | None = None

    def extend(self, codes_BK: Tensor, parents_BK: Tensor) -> Tensor:
        """Logits (B, K, V) of the next level, for beams that took codes_BK and extend the beams parents_BK."""
        self._ancestors_BKS = extend_ancestors(self._ancestors_BKS, parents_BK)
        hidden_BKD = self._hidden(self._runner.tokens[self._level][codes_BK])
        self._level += 1
        return F.linear(hidden_BKD, self._runner.heads[self._level])

    @abstractmethod
    def _hidden(self, tokens_BK: Tensor) -> Tensor: ...

    def _write(self, layer: int, key_BKGE: Tensor, value_BKGE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add the newest code of every beam -> keys and values of all codes so far, and the slots that hold a beam's."""
        assert self._ancestors_BKS is not None
        beams, codes = self._ancestors_BKS.shape[1:]
        keys_BKSGE, values_BKSGE = self._slots[layer]
        keys_BKSGE[:, :beams, codes - 1], values_BKSGE[:, :beams, codes - 1] = key_BKGE, value_BKGE
        return keys_BKSGE[:, :, :codes], values_BKSGE[:, :, :codes], self._ancestors_BKS


class _StaticTransformer(StaticRunner):
    def __init__(self, model: Transformer, attention: Attention) -> None:
        super().__init__(model, attention)
        self.config, self.body = model.config, model.model

    def start(self, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> StaticSession:
        return _TransformerSession(self, tokens_BT, lengths_B, num_beams)

    def work_bytes(self, requests: int, tokens: int, num_beams: int) -> int:
        config, codes, itemsize = self.config, self.vocabulary.num_levels - 1, self.dtype.itemsize
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        activations = 4 * config.hidden_size + 2 * heads * config.head_dim + 2 * config.intermediate_size
        cache = search_bytes(config, prompt_tokens=tokens, beams=num_beams, rounds=codes, inflight=requests, itemsize=itemsize)
        return cache + requests * max(tokens, num_beams) * activations * itemsize


class _TransformerSession(StaticSession):
    def __init__(self, runner: _StaticTransformer, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> None:
        config, self._body, self._lengths_B = runner.config, runner.body, lengths_B
        slots = len(tokens_BT), num_beams, runner.vocabulary.num_levels - 1, config.num_key_value_heads, config.head_dim
        super().__init__(runner, PromptCache(lengths_B), config.num_hidden_layers, slots)
        hidden_BTD = self._body(tokens_BT, torch.arange(tokens_BT.shape[1], device=runner.device), self._prompt.prefill)
        last_BD = hidden_BTD[torch.arange(len(tokens_BT), device=runner.device), lengths_B - 1]
        self.root_logits_BV = F.linear(last_BD, runner.heads[0])

    def _hidden(self, tokens_BK: Tensor) -> Tensor:
        return self._body(tokens_BK, (self._lengths_B + self._level)[:, None], self._attend)

    def _attend(self, layer: int, query_BKHE: Tensor, key_BKGE: Tensor, value_BKGE: Tensor) -> Tensor:
        prompt = self._prompt.keys[layer], self._prompt.values[layer], self._lengths_B
        return self._runner.attention.over_both(query_BKHE, *prompt, *self._write(layer, key_BKGE, value_BKGE))


class _StaticEncoderDecoder(StaticRunner):
    """biases: for each level the bias (H, S) of a code's distances to itself and the codes before it."""

    def __init__(self, model: EncoderDecoder, attention: Attention) -> None:
        super().__init__(model, attention)
        self.config, self.model = model.config, model
        slots = [torch.arange(codes + 1, device=self.device) for codes in range(self.vocabulary.num_levels)]
        with torch.inference_mode():
            self.biases = [model.decoder.bias(slot_S[-1:], slot_S)[:, 0].contiguous() for slot_S in slots]

    def start(self, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> StaticSession:
        return _EncoderDecoderSession(self, tokens_BT, lengths_B, num_beams)

    def work_bytes(self, requests: int, tokens: int, num_beams: int) -> int:
        config, codes = self.config, self.vocabulary.num_levels
        activations = 4 * config.d_model + 5 * config.inner_size + 2 * config.d_ff
        cached = 2 * config.num_decoder_layers * config.inner_size
        values = (tokens + num_beams * codes) * cached + max(tokens, num_beams) * activations
        return requests * (values + config.num_heads * tokens**2) * self.dtype.itemsize  # the encoder's biases, masked


class _EncoderDecoderSession(StaticSession):
    def __init__(self, runner: _StaticEncoderDecoder, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> None:
        config, model, requests = runner.config, runner.model, len(tokens_BT)
        self._model, self._lengths_B, self._biases = model, lengths_B, runner.biases
        slots = requests, num_beams, runner.vocabulary.num_levels, config.num_heads, config.d_kv  # the start token's, codes'
        super().__init__(runner, PromptCache(lengths_B), config.num_decoder_layers, slots)
        encoded_BTD = model.encoder(model.shared(tokens_BT), lengths_B, lambda x: x)
        for keys_values in model.decoder.prompt_keys_values(encoded_BTD):
            self._prompt.append(*keys_values)
        self._ancestors_BKS = torch.zeros(requests, 1, 1, dtype=torch.int64, device=runner.device)
        start_B1 = torch.full((requests, 1), config.decoder_start_token_id, device=runner.device)
        self.root_logits_BV = F.linear(self._hidden(start_B1)[:, 0], runner.heads[0])

    def _hidden(self, tokens_BK: Tensor) -> Tensor:
        return self._model.decoder(self._model.shared(tokens_BK), self._attend_codes, self._attend_prompt)

    def _attend_codes(self, layer: int, query_BKHE: Tensor, key_BKHE: Tensor, value_BKHE: Tensor) -> Tensor:
        keys_BKSHE, values_BKSHE, ancestors_BKS = self._write(layer, key_BKHE, value_BKHE)
        bias_HS = self._biases[ancestors_BKS.shape[2] - 1]
        return self._runner.attention.over_codes(_unscaled(query_BKHE), keys_BKSHE, values_BKSHE, ancestors_BKS, bias_HS)

    def _attend_prompt(self, layer: int, query_BKHE: Tensor) -> Tensor:
        prompt = self._prompt.keys[layer], self._prompt.values[layer], self._lengths_B
        return self._runner.attention.over_prompt(_unscaled(query_BKHE), *prompt)


def _unscaled(query_BKHE: Tensor) -> Tensor:
    """Queries that attention divides by what it scales by: T5 does not scale."""
    return query_BKHE * query_BKHE.shape[-1] ** 0.5
