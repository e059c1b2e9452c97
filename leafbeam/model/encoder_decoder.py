"""The encoder-decoder model: T5's layers, optionally with experts, and a head of which any level is a slice.

Shapes: B requests, T tokens of a prompt, S codes of a target, D hidden, V codes of a level.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.base import SidModel
from leafbeam.model.checks import check_prompts, checked_lengths
from leafbeam.model.qwen3 import Dropout, make_dropout
from leafbeam.model.session import DecodeSession
from leafbeam.model.t5 import T5Decoder, T5Encoder, attend_codes
from leafbeam.model.t5_config import EncoderDecoderConfig
from leafbeam.model.t5_runner import EncoderDecoderRunner
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import TensorNames

__all__ = ["EncoderDecoder"]


class EncoderDecoder(SidModel[EncoderDecoderConfig]):
    """An encoder over the history and a decoder over the levels of one SID: TIGER with T5's layers, OneRec with experts.

    The encoder sees the whole prompt in both directions and runs once per request; the decoder has one position per level and
    sees the prompt through cross-attention, whose keys and values all beams of a request share.

    Dropout applies to the embeddings, to every block's output and to the final norms. Initial weights follow T5, drawn from
    `generator` (None: one seeded with 0). Sources: Raffel et al., 2020 (T5); Rajput et al., 2023 (TIGER); Deng et al., 2025
    (OneRec).

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
        """The embedding of all tokens."""
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
        """Encode prompts (B, T) int64, padded on the right to lengths_B (at least 1 each), and open a decoding session.

        Cost: one pass of the encoder over B x T tokens; the session holds the cross-attention's keys and values. No gradients.
        Prompts that leave no positions for a whole SID raise ArgumentError.
        """
        check_prompts(tokens_BT, lengths_B, self.config, num_new_tokens=self.vocabulary.num_levels - 1)
        lengths_B = checked_lengths(tokens_BT, lengths_B)
        encoded_BTD = self._encode(tokens_BT, lengths_B, lambda x: x)
        start_token = self.config.decoder_start_token_id
        runner = EncoderDecoderRunner(self.decoder, self.shared, self.head, encoded_BTD, lengths_B, start_token)
        return DecodeSession(runner, self.vocabulary, lengths_B)

    def _encode(self, tokens_BT: Tensor, lengths_B: Tensor | None, drop: Dropout) -> Tensor:
        if lengths_B is not None:
            lengths_B = lengths_B.to(tokens_BT.device) if bool((lengths_B < tokens_BT.shape[1]).any()) else None
        return self.encoder(self.shared(tokens_BT), lengths_B, drop)
