"""The encoder-decoder model: T5's layers, optionally with experts, and a head of which any level is a slice.

Shapes: B requests, T tokens of a prompt, S codes of a target or beam, K beams, C new codes of each beam, N = K x C, H heads,
E values of a head, D hidden, V codes of a level.
"""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.base import SidModel
from leafbeam.model.config import EncoderDecoderConfig
from leafbeam.model.decoder import Dropout, make_dropout
from leafbeam.model.session import DecodeSession, check_prompts, checked_lengths, has_padding
from leafbeam.model.t5 import T5Decoder, T5Encoder, attend_codes
from leafbeam.model.torch_runner import RunnerOptions, TorchRunner
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import TensorNames
from leafbeam.ops.attention.reference import codes_of


class EncoderDecoder(SidModel[EncoderDecoderConfig]):
    """An encoder over the history and a decoder over the levels of one SID: TIGER with T5's layers, OneRec with experts.

    The encoder runs once per request; all beams share the keys and values of the decoder's cross-attention. Initial weights
    follow T5. Sources: Raffel et al., 2020 (T5); Rajput et al., 2023 (TIGER); Deng et al., 2025 (OneRec).

    Args:
        config: The sizes.
        vocabulary: The tokens.
        generator: As for `Transformer`.
        device: As for `Transformer`.

    Examples:
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
        """Return the deviations that keep T5's unscaled attention scores near 1."""
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
        """Return hidden states (B, S + 1, D) of the decoder: after the start token, then after each target token.

        Args:
            tokens_BT: The prompts, padded on the right.
            targets_BS: The tokens of the first S codes of each SID; `head(hidden[:, s], level=s)` gives the logits of code s.
            lengths_B: The length of each prompt; None: no prompt is padded.
            dropout: As for `Transformer.forward`.
            balance: A list to which every layer of experts appends its load-balancing loss (see `Experts`).
        """
        check_prompts(tokens_BT, lengths_B, self.config)
        if targets_BS.ndim != 2 or len(targets_BS) != len(tokens_BT):
            raise ArgumentError(f"targets must be tokens of shape ({len(tokens_BT)}, S), got {tuple(targets_BS.shape)}")
        drop = make_dropout(self.config.dropout if self.training else 0.0, dropout)
        is_padded = lengths_B is not None and has_padding(lengths_B, tokens_BT.shape[1])
        prompts = self.decoder.prompt_keys_values(self.encode(tokens_BT, lengths_B if is_padded else None, drop))
        valid = None
        if lengths_B is not None:
            positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
            valid = (positions_T < lengths_B.to(tokens_BT.device)[:, None])[:, None, None]

        slot_S = torch.arange(targets_BS.shape[1] + 1, device=tokens_BT.device)
        biases = self.decoder.biases(slot_S, slot_S)

        def self_attention(layer: int, query_BSHE: Tensor, key_BSHE: Tensor, value_BSHE: Tensor) -> Tensor:
            return attend_codes(biases[layer], query_BSHE[:, None], key_BSHE[:, None], value_BSHE[:, None])[:, 0]

        def cross_attention(layer: int, query_BSHE: Tensor) -> Tensor:
            query, key, value = (x.transpose(1, 2) for x in (query_BSHE, *prompts[layer]))
            return F.scaled_dot_product_attention(query, key, value, attn_mask=valid, scale=1.0).transpose(1, 2)

        start_B1 = targets_BS.new_full((len(targets_BS), 1), self.config.decoder_start_token_id)
        hidden_BSD = self.shared(torch.cat((start_B1, targets_BS), 1))
        return self.decoder(hidden_BSD, self_attention, cross_attention, drop, balance)

    @torch.inference_mode()
    def start(self, tokens_BT: Tensor, lengths_B: Tensor | None = None, *, other_tokens: bool = False) -> DecodeSession:
        """Encode prompts and open a decoding session, without gradients. This costs one pass of the encoder.

        Args:
            tokens_BT: The prompts (B, T), int64, padded on the right.
            lengths_B: The length of each prompt; None: no prompt is padded.
            other_tokens: As for `Transformer.start`.

        Raises:
            ArgumentError: If a prompt leaves no positions for a whole SID.
        """
        lengths_B = checked_lengths(tokens_BT, lengths_B, self.config, self.vocabulary.num_levels)
        options = self._options(tokens_BT, lengths_B, self.vocabulary, other_tokens=other_tokens)
        runner = self.run_prompts(tokens_BT, lengths_B, options)
        return DecodeSession(runner, self.vocabulary, lengths_B)

    def run_prompts(self, tokens_BT: Tensor, lengths_B: Tensor, options: RunnerOptions) -> EncoderDecoderRunner:
        return EncoderDecoderRunner(self, tokens_BT, lengths_B, options)

    def encode(self, tokens_BT: Tensor, lengths_B: Tensor | None, drop: Dropout = lambda x: x) -> Tensor:
        """Return the encoder's hidden states (B, T, D). lengths_B: None if no prompt is padded."""
        lengths_B = None if lengths_B is None else lengths_B.to(tokens_BT.device)
        return self.encoder(self.shared(tokens_BT), lengths_B, drop)


class EncoderDecoderRunner(TorchRunner):
    """The runner of an encoder-decoder. prompt: the cross-attention's. beams: of the start token and of the codes."""

    _num_starts = 1

    def __init__(self, model: EncoderDecoder, tokens_BT: Tensor, lengths_B: Tensor, options: RunnerOptions) -> None:
        super().__init__(lengths_B, len(model.decoder.block), options.num_levels, options)
        self._decoder, self._embedding = model.decoder, model.shared
        self._start_B1 = torch.full((len(lengths_B), 1), model.config.decoder_start_token_id, device=lengths_B.device)
        encoded_BTD = model.encode(tokens_BT, lengths_B if options.is_padded else None)
        for keys_values in model.decoder.prompt_keys_values(encoded_BTD):
            self.prompt.append(*keys_values)

    def root_logits(self) -> Tensor:
        return self._options.head(self._run_start()[:, 0], 0)

    def extend(self, tokens_BKC: Tensor, parents_BK: Tensor, level: int) -> list[Tensor]:
        if self.beams.is_empty:  # a caller that knows the logits of level 0 may start with its codes
            self._run_start()
        return super().extend(tokens_BKC, parents_BK, level)

    def _run_start(self) -> Tensor:
        self.beams.follow(torch.zeros_like(self._start_B1), 1, 0)
        return self._run(self._start_B1, 0)

    def _run(self, tokens_BN: Tensor, level: int) -> Tensor:
        slot_S = torch.arange(self.beams.ancestors_BKS.shape[2], device=tokens_BN.device)
        self._biases = self._decoder.biases(slot_S[-self.beams.shape[1] :], slot_S)  # (H, M, S) of each layer
        return self._decoder(self._embedding(tokens_BN), self._attend_codes, self._attend_prompt)

    def _attend_codes(self, layer: int, query_BNHE: Tensor, key_BNHE: Tensor, value_BNHE: Tensor) -> Tensor:
        slots, ancestors_BKS = self.beams.extend(layer, key_BNHE, value_BNHE), self.beams.ancestors_BKS
        if self.beams.shape[1] == 1:
            bias_HS = self._biases[layer][:, 0].contiguous()
            return self._attention.over_codes(_unscaled(query_BNHE), *slots, ancestors_BKS, bias_HS)
        keys_BKSHE, values_BKSHE = (codes_of(side_BKSHE, ancestors_BKS) for side_BKSHE in slots)
        query_BKCHE = query_BNHE.unflatten(1, self.beams.shape)
        return attend_codes(self._biases[layer], query_BKCHE, keys_BKSHE, values_BKSHE).flatten(1, 2)

    def _attend_prompt(self, layer: int, query_BNHE: Tensor) -> Tensor:
        prompt = self.prompt.keys[layer], self.prompt.values[layer], self.prompt.lengths_B
        return self._attention.over_prompt(_unscaled(query_BNHE), *prompt)


def _unscaled(query_BNHE: Tensor) -> Tensor:
    """Return queries that attention divides by what it scales by: T5 does not scale."""
    return query_BNHE * query_BNHE.shape[-1] ** 0.5
