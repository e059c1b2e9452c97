"""The encoder-decoder model: T5's layers, optionally with experts, and a head of which any level is a slice.

Shapes: B requests, T tokens of a prompt, S codes of a target or beam, K beams, C new codes of each beam, N = K x C, H heads,
E values of a head, D hidden, V codes of a level.
"""

from math import sqrt

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.base import SidModel
from leafbeam.model.config import EncoderDecoderConfig
from leafbeam.model.kv_cache import PromptCache, new_beam_cache, padded_prefixes
from leafbeam.model.qwen3 import Dropout, make_dropout
from leafbeam.model.session import DecodeSession, check_prompts, checked_lengths
from leafbeam.model.t5 import T5Decoder, T5Encoder, attend_codes
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import TensorNames


class EncoderDecoder(SidModel[EncoderDecoderConfig]):
    """An encoder over the history and a decoder over the levels of one SID: TIGER with T5's layers, OneRec with experts.

    The encoder runs once per request; all beams share the keys and values of the decoder's cross-attention. Initial weights
    follow T5, drawn from `generator` (None: one seeded with 0). Sources: Raffel et al., 2020 (T5); Rajput et al., 2023 (TIGER);
    Deng et al., 2025 (OneRec).

    >>> from leafbeam.model import Vocabulary
    >>> vocabulary = Vocabulary(codebook_sizes=(256, 256, 256, 8))
    >>> model = EncoderDecoder(EncoderDecoderConfig(vocab_size=vocabulary.size), vocabulary)
    >>> tokens_BT, lengths_B = vocabulary.prompts([[[17, 4, 99, 0], [3, 250, 12, 1]]])
    >>> hidden_BSD = model(torch.from_numpy(tokens_BT), torch.zeros(1, 0, dtype=torch.int64))
    >>> model.head(hidden_BSD[:, -1], level=0).shape
    torch.Size([1, 256])
    """

    config_type = EncoderDecoderConfig
    tensor_names = TensorNames(
        embedding="shared.weight",
        copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # in the first T5 checkpoints
    )

    def __init__(
        self,
        config: EncoderDecoderConfig,
        vocabulary: AnyVocabulary,
        generator: torch.Generator | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config, vocabulary)
        weight = torch.empty(config.vocab_size, config.d_model, device="meta")  # without it, torch imports its compiler
        self.shared = nn.Embedding(config.vocab_size, config.d_model, _weight=weight)
        self.encoder = T5Encoder(config)
        self.decoder = T5Decoder(config)
        self._finish(generator, device)

    @property
    def embedding(self) -> nn.Embedding:
        return self.shared

    def _initial_deviation(self, name: str) -> float:
        """The deviations that keep T5's unscaled attention scores near 1."""
        config = self.config
        last = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
        fan_in = {"q": config.d_model * config.d_kv, "o": config.inner_size, "wo": config.d_ff}.get(last, config.d_model)
        return 1.0 if last == "shared" else config.initializer_factor / sqrt(fan_in)

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BS: Tensor,
        lengths_B: Tensor | None = None,
        *,
        dropout: torch.Generator | None = None,
        balance: list[Tensor] | None = None,
    ) -> Tensor:
        """Hidden states (B, S + 1, D) of the decoder: after the start token, then after each target token.

        tokens_BT: the prompts, padded on the right to lengths_B (None: not padded). targets_BS: tokens of the first S codes of
        each SID; `head(hidden[:, s], level=s)` gives the logits of code s. dropout: see `Transformer.forward`. balance: a list
        to which every layer of experts appends its load-balancing loss (see `Experts`).
        """
        check_prompts(tokens_BT, lengths_B, self.config)
        if targets_BS.ndim != 2 or len(targets_BS) != len(tokens_BT):
            raise ArgumentError(f"targets must be tokens of shape ({len(tokens_BT)}, S), got {tuple(targets_BS.shape)}")
        drop = make_dropout(self.config.dropout if self.training else 0.0, dropout)
        prompts = self.decoder.prompt_keys_values(self._encode(tokens_BT, lengths_B, drop))
        valid = None
        if lengths_B is not None:
            positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
            valid = (positions_T < lengths_B.to(tokens_BT.device)[:, None])[:, None, None]

        def self_attention(_: int, query_BSHE: Tensor, key_BSHE: Tensor, value_BSHE: Tensor) -> Tensor:
            return attend_codes(self.decoder.bias, query_BSHE[:, None], key_BSHE[:, None], value_BSHE[:, None])[:, 0]

        def cross_attention(layer: int, query_BSHE: Tensor) -> Tensor:
            query, key, value = (x.transpose(1, 2) for x in (query_BSHE, *prompts[layer]))
            return F.scaled_dot_product_attention(query, key, value, attn_mask=valid, scale=1.0).transpose(1, 2)

        start_B1 = targets_BS.new_full((len(targets_BS), 1), self.config.decoder_start_token_id)
        hidden_BSD = self.shared(torch.cat((start_B1, targets_BS), 1))
        return self.decoder(hidden_BSD, self_attention, cross_attention, drop, balance)

    @torch.inference_mode()
    def start(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> DecodeSession:
        """Encode prompts (B, T) int64, padded on the right to lengths_B, and open a decoding session, without gradients.

        Cost: one pass of the encoder. Prompts that leave no positions for a whole SID raise ArgumentError.
        """
        lengths_B = checked_lengths(tokens_BT, lengths_B, self.config, self.vocabulary.num_levels)
        encoded_BTD = self._encode(tokens_BT, lengths_B, lambda x: x)
        return DecodeSession(EncoderDecoderRunner(self, encoded_BTD, lengths_B), self.vocabulary, lengths_B)

    def _encode(self, tokens_BT: Tensor, lengths_B: Tensor | None, drop: Dropout) -> Tensor:
        if lengths_B is not None:
            lengths_B = lengths_B.to(tokens_BT.device) if bool((lengths_B < tokens_BT.shape[1]).any()) else None
        return self.encoder(self.shared(tokens_BT), lengths_B, drop)


class EncoderDecoderRunner:
    """A `Runner`. prompt: keys and values of the cross-attention. beams: those of the start token and of the codes."""

    def __init__(self, model: EncoderDecoder, encoded_BTD: Tensor, lengths_B: Tensor) -> None:
        self._decoder, self._embedding, self._head = model.decoder, model.shared, model.head
        self._start_B1 = torch.full((len(lengths_B), 1), model.config.decoder_start_token_id, device=lengths_B.device)
        self.prompt = PromptCache(lengths_B if bool((lengths_B < encoded_BTD.shape[1]).any()) else None)
        for keys_values in model.decoder.prompt_keys_values(encoded_BTD):
            self.prompt.append(*keys_values)
        self.restart()

    def restart(self) -> None:
        self.beams = new_beam_cache(len(self._decoder.block), self._start_B1.device)

    def root_logits(self) -> Tensor:
        return self._head(self._run(self._start_B1)[:, 0], 0)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int, *, keep: bool = True) -> list[Tensor]:
        if self.beams.keys[0] is None:  # a caller that knows the logits of level 0 may start with its codes
            self._run(self._start_B1)
        _, num_beams, num_codes = tokens_BKC.shape
        self.beams.follow(parents_BK, num_codes, keep=keep)
        hidden_BND = self._run(self.beams.to_slots(tokens_BKC).flatten(1, 2))
        hidden_BKCD = self.beams.to_beams(hidden_BND.unflatten(1, (num_beams, num_codes)))
        return [self._head(hidden_BKCD[:, :, code], level + 1 + code) for code in range(num_codes)]

    def run_prefixes(self, tokens_RC: Tensor, counts_B: NDArray[np.int64]) -> Tensor:
        tokens_BKC, at_R = padded_prefixes(tokens_RC, counts_B)
        beams, self.beams = self.beams, new_beam_cache(len(self._decoder.block), tokens_RC.device)
        logits_BKV = self.extend(tokens_BKC, tokens_BKC.new_zeros(tokens_BKC.shape[:2]), 0)[-1]
        self.beams = beams
        return logits_BKV.flatten(0, 1)[at_R]

    def _run(self, tokens_BN: Tensor) -> Tensor:
        return self._decoder(self._embedding(tokens_BN), self._attend_codes, self._attend_prompt)

    def _attend_codes(self, layer: int, query_BNHE: Tensor, key_BNHE: Tensor, value_BNHE: Tensor) -> Tensor:
        keys_BKSHE, values_BKSHE = self.beams.extend(layer, key_BNHE, value_BNHE)
        query_BKCHE = query_BNHE.unflatten(1, self.beams.shape)
        return attend_codes(self._decoder.bias, query_BKCHE, keys_BKSHE, values_BKSHE).flatten(1, 2)

    def _attend_prompt(self, layer: int, query_BNHE: Tensor) -> Tensor:
        unscaled = query_BNHE * query_BNHE.shape[-1] ** 0.5  # prefix_attention divides by it, T5 does not
        return self.prompt.attend(layer, unscaled)[0]
