"""Running an encoder-decoder for a search: the encoder once, then one or more codes of every beam through the decoder.

Shapes: B requests, T tokens of a prompt, K beams, C new codes of each beam, N = K x C, H heads, E values of a head, D hidden.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leafbeam.model.kv_cache import BeamCache, PromptCache
from leafbeam.model.t5 import T5Decoder, attend_codes

__all__ = ["EncoderDecoderRunner"]


class EncoderDecoderRunner:
    """A `Runner` over encoded prompts.

    prompt: the keys and values of the cross-attention, once per request. beams: those of the start token and of the codes.
    """

    def __init__(
        self,
        decoder: T5Decoder,
        embedding: nn.Embedding,
        head: Callable[[Tensor, int], Tensor],
        encoded_BTD: Tensor,
        lengths_B: Tensor,
        start_token: int,
    ) -> None:
        self._decoder, self._embedding, self._head = decoder, embedding, head
        self._start_B1 = torch.full((len(lengths_B), 1), start_token, device=lengths_B.device)
        self.prompt = PromptCache(lengths_B if bool((lengths_B < encoded_BTD.shape[1]).any()) else None)
        for keys_values in decoder.prompt_keys_values(encoded_BTD):
            self.prompt.append(*keys_values)
        self.restart()

    def restart(self) -> None:
        self.beams = BeamCache(len(self._decoder.block))

    def root_logits(self) -> Tensor:
        return self._head(self._run(self._start_B1)[:, 0], 0)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        if self.beams.keys[0] is None:  # a caller that knows the logits of level 0 may start with its codes
            self._run(self._start_B1)
        _, num_beams, num_codes = tokens_BKC.shape
        self.beams.follow(parents_BK, num_codes)
        hidden_BKCD = self._run(tokens_BKC.flatten(1, 2)).unflatten(1, (num_beams, num_codes))
        return [self._head(hidden_BKCD[:, :, code], level + 1 + code) for code in range(num_codes)]

    def _run(self, tokens_BN: Tensor) -> Tensor:
        return self._decoder(self._embedding(tokens_BN), self._attend_codes, self._attend_prompt)

    def _attend_codes(self, layer: int, query_BNHE: Tensor, key_BNHE: Tensor, value_BNHE: Tensor) -> Tensor:
        keys_BKSHE, values_BKSHE = self.beams.extend(layer, key_BNHE, value_BNHE)
        query_BKCHE = query_BNHE.unflatten(1, self.beams.shape)
        return attend_codes(self._decoder.bias, query_BKCHE, keys_BKSHE, values_BKSHE).flatten(1, 2)

    def _attend_prompt(self, layer: int, query_BNHE: Tensor) -> Tensor:
        unscaled = query_BNHE * query_BNHE.shape[-1] ** 0.5  # prefix_attention divides by it, T5 does not
        return self.prompt.attend(layer, unscaled)[0]
