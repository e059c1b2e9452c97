"""Running an encoder-decoder for a search: the encoder once, then one or more codes of every beam through the decoder.

Shapes: B requests, T tokens of a prompt, K beams, C codes of each beam that come at once, V codes of a level, D hidden.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leafbeam.model.t5 import T5Decoder
from leafbeam.model.t5_cache import CodeCache, EncodedPrompt

__all__ = ["EncoderDecoderRunner"]


class EncoderDecoderRunner:
    """The decoder's rounds over prompts that the encoder has read.

    prompt: the keys and values that each decoder layer's cross-attention makes of the encoder's output, kept once per request
    and read once a round for all its beams. beams: those of the start token and of the codes, for each beam.
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
        self.prompt = EncodedPrompt(decoder.prompt_keys_values(encoded_BTD), lengths_B)
        self.restart()

    def restart(self) -> None:
        self.beams = CodeCache(self._decoder.bias, len(self._decoder.block))

    def root_logits(self) -> Tensor:
        return self._head(self._run(self._start_B1)[:, 0], 0)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        if self.beams.keys[0] is None:  # whoever knows the logits of level 0 may begin with its codes
            self._run(self._start_B1)
        self.beams.follow(parents_BK)
        num_codes = tokens_BKC.shape[2]
        hidden_BKCD = self._run(tokens_BKC.flatten(1, 2)).unflatten(1, (-1, num_codes))
        return [self._head(hidden_BKCD[:, :, step], level + 1 + step) for step in range(num_codes)]

    def _run(self, tokens_BN: Tensor) -> Tensor:
        return self._decoder(self._embedding(tokens_BN), self.beams.attend, self.prompt.attend)
