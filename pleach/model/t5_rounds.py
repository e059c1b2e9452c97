"""The rounds of a search over an encoder-decoder: the prompts encoded once, then one code of every beam at a time.

Shapes: B requests, T tokens of a prompt, K beams, M codes of a suffix, V codes of a level, D hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pleach.errors import ArgumentError
from pleach.model.asked import checked_round, integers
from pleach.model.t5 import T5Decoder
from pleach.model.t5_cache import CodeCache, EncodedPrompt
from pleach.model.vocabulary import AnyVocabulary

__all__ = ["EncoderDecoderRounds"]


class EncoderDecoderRounds:
    """What a beam search asks of an encoder-decoder; to its callers the same as `Rounds` is for a decoder-only model.

    Made by `EncoderDecoder.start`, which runs the encoder. The shared prompt of the search is the keys and values that each
    decoder layer's cross-attention makes of the encoder's output: kept once per request, read once a round for all its beams.

    prompt, beams: the caches; their `nbytes` say what the search holds.
    """

    def __init__(
        self,
        decoder: T5Decoder,
        embedding: nn.Embedding,
        head: Callable[[Tensor, int], Tensor],
        vocabulary: AnyVocabulary,
        encoded_BTD: Tensor,
        lengths_B: Tensor,
        start_token: int,
    ) -> None:
        self._decoder, self._embedding, self._head, self._vocabulary = decoder, embedding, head, vocabulary
        self._lengths_B = lengths_B
        self._start_B1 = torch.full((len(lengths_B), 1), start_token, device=lengths_B.device)
        with torch.inference_mode():
            self.prompt = EncodedPrompt(decoder.prompt_keys_values(encoded_BTD), lengths_B)
        self._restart()

    @torch.inference_mode()
    def step_fn(self, codes_BK: Any = None, parents_BK: Any = None) -> Tensor:
        """Logits of the next level's codes, of every beam: see `Rounds.step_fn`."""
        if codes_BK is None and parents_BK is None:
            self._restart()
            return self._head(self._run(self._start_B1)[:, 0], 0)
        codes_BK, parents_BK = self._checked(codes_BK, parents_BK)
        self._begin()
        self.beams.follow(parents_BK)
        hidden_BKD = self._run(self._vocabulary.tokens_at(codes_BK, self._level))
        self._level += 1
        self._width = codes_BK.shape[1]
        return self._head(hidden_BKD, self._level)

    @torch.inference_mode()
    def suffix_fn(self, codes_BKM: Any, parents_BK: Any) -> list[Tensor]:
        """Logits of the next M levels when M codes of every beam are known: see `Rounds.suffix_fn`."""
        codes_BKM = integers("codes", codes_BKM, self._lengths_B.device)
        if codes_BKM.ndim != 3 or codes_BKM.shape[2] < 1:
            raise ArgumentError(f"the codes of suffixes must have shape (B, K, T), not {tuple(codes_BKM.shape)}")
        num_codes, first = codes_BKM.shape[2], self._level
        _, parents_BK = self._checked(codes_BKM[:, :, 0], parents_BK)
        self._begin()
        tokens: list[Tensor] = []
        for level, codes_BK in enumerate(codes_BKM.unbind(2), start=first):
            self._level, self._width = level, codes_BKM.shape[1]
            self._checked(codes_BK, torch.zeros_like(codes_BK))
            tokens.append(self._vocabulary.tokens_at(codes_BK, level))
        self.beams.follow(parents_BK)
        hidden_BKMD = self._run(torch.stack(tokens, 2).flatten(1, 2)).unflatten(1, (-1, num_codes))
        self._level = self._vocabulary.num_levels - 1  # no round is left
        return [self._head(hidden_BKMD[:, :, step], first + 1 + step) for step in range(num_codes)]

    def _restart(self) -> None:
        self.beams = CodeCache(self._decoder.bias, len(self._decoder.block))
        self._level = 0  # of the codes that the next call brings
        self._width = 1  # beams of the round before: at first the start token alone

    def _begin(self) -> None:
        """The start token, for whoever knows the logits of level 0 and begins with its codes."""
        if self.beams.keys[0] is None:
            self._run(self._start_B1)

    def _run(self, tokens_BN: Tensor) -> Tensor:
        return self._decoder(self._embedding(tokens_BN), self.beams.attend, self.prompt.attend)

    def _checked(self, codes: Any, parents: Any) -> tuple[Tensor, Tensor]:
        size, device = len(self._lengths_B), self._lengths_B.device
        return checked_round(codes, parents, self._vocabulary, size, level=self._level, width=self._width, device=device)
