"""Models prepared for captured decoding: sessions that check nothing, copy nothing from the host and read no value on it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.model.decoder import capped
from leafbeam.model.encoder_decoder import EncoderDecoder
from leafbeam.model.kv_cache import search_bytes
from leafbeam.model.session import DecodeSession
from leafbeam.model.torch_runner import RunnerOptions
from leafbeam.model.transformer import Transformer
from leafbeam.ops.attention import reference
from leafbeam.ops.attention.types import Attention


class StaticModel:
    """A model prepared for captured decoding: each level's head and tokens are on its device, computed once, here.

    Tokens, codes and parents are not checked, because a check would synchronise the device. The head of a level whose tokens
    are not consecutive is copied (V x D); after training make another one.

    Args:
        model: The model to decode with.
        attention: The functions of a backend; None: plain torch.
    """

    def __init__(self, model: Transformer | EncoderDecoder, attention: Attention | None = None) -> None:
        vocabulary, weight = model.vocabulary, model.head_weight.detach()
        self._model, self._attention = model, attention or reference.attention()
        self.device, self.dtype = model.device, weight.dtype
        self.num_levels, self.codebook_sizes = vocabulary.num_levels, vocabulary.codebook_sizes
        self._heads = [vocabulary.level_rows(weight, level) for level in range(self.num_levels)]
        self._tokens = [torch.from_numpy(vocabulary.level_tokens(level)).to(self.device) for level in range(self.num_levels)]

    def start(self, tokens_BT: Tensor, lengths_B: Tensor, num_beams: int) -> DecodeSession:
        """Run prompts, padded on the right to lengths_B (1 to T), for a search of up to num_beams beams."""
        options = RunnerOptions(head=self._head, attention=self._attention, num_levels=self.num_levels, beams=num_beams)
        return DecodeSession(self._model.run_prompts(tokens_BT, lengths_B, options), self, lengths_B, are_checked=False)

    def tokens_at(self, codes: Tensor, level: int) -> Tensor:
        """Return the tokens of one level's codes, any shape."""
        return self._tokens[level][codes]

    def _head(self, hidden: Tensor, level: int) -> Tensor:
        return capped(F.linear(hidden, self._heads[level]), self._model.logit_cap)

    def work_bytes(self, requests: int, tokens: int, num_beams: int) -> int:
        """Return about what a search needs but for logits: keys and values, and activations of the prompts or beams."""
        tokens = self._model.prompt_positions(tokens)
        rows, itemsize = max(tokens, num_beams), self.dtype.itemsize
        if isinstance(self._model, EncoderDecoder):
            config = self._model.config
            activations = 4 * config.d_model + 5 * config.inner_size + 2 * config.d_ff
            cached = (tokens + num_beams * self.num_levels) * 2 * config.num_decoder_layers * config.inner_size
            masked = config.num_heads * tokens**2  # the encoder's biases
            return requests * (cached + rows * activations + masked) * itemsize
        config, codes = self._model.config, self.num_levels - 1
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        activations = 4 * config.hidden_size + 2 * heads * config.head_dim + 2 * config.intermediate_size
        cache = search_bytes(config, prompt_tokens=tokens, beams=num_beams, rounds=codes, inflight=requests, itemsize=itemsize)
        return cache + requests * rows * activations * itemsize
