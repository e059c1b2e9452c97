"""The encoder-decoder: T5's body, with experts if wanted, a head of which any level is a slice, and the ways in and out.

Shapes: B requests, T tokens of a prompt, S codes of a target, D hidden, V codes of a level.
"""

from math import sqrt
from os import PathLike
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leafbeam.errors import ArgumentError
from leafbeam.model.checks import check_dtype, check_prompts, check_vocabulary, checked_lengths, dropping
from leafbeam.model.experts import Experts
from leafbeam.model.qwen3 import Dropout, RMSNorm
from leafbeam.model.session import DecodeSession
from leafbeam.model.t5 import RelativeBias, T5Decoder, T5Encoder
from leafbeam.model.t5_cache import attend_codes
from leafbeam.model.t5_config import EncoderDecoderConfig
from leafbeam.model.t5_runner import EncoderDecoderRunner
from leafbeam.model.vocabulary import AnyVocabulary
from leafbeam.model.weights import read_config, read_tensors, write_checkpoint

__all__ = ["EncoderDecoder"]


class EncoderDecoder(nn.Module):
    """An encoder over the history and a decoder over the levels of one SID: TIGER with T5's layers, OneRec with experts.

    Think of it as a reader and a writer: the reader sees the whole prompt at once, both ways, and runs once per request; the
    writer has as many positions as a SID has levels and looks at the prompt through cross-attention alone, whose keys and
    values are what the beams of a search share.

    Dropout falls on the embeddings, on every block's output and on the final norms. Weights are drawn as T5 draws them, from
    `generator` (one seeded with 0 where none is given). T5's layers: Raffel et al., 2020; over SIDs: Rajput et al., 2023
    (TIGER); with experts: Deng et al., 2025 (OneRec).

    >>> from leafbeam.model import Vocabulary
    >>> vocabulary = Vocabulary(codebook_sizes=(256, 256, 256, 8))
    >>> model = EncoderDecoder(EncoderDecoderConfig(vocab_size=vocabulary.size), vocabulary)
    >>> tokens_BT, lengths_B = vocabulary.prompts([[[17, 4, 99, 0], [3, 250, 12, 1]]])
    >>> hidden_BSD = model(torch.from_numpy(tokens_BT), torch.zeros(1, 0, dtype=torch.int64))
    >>> model.head(hidden_BSD[:, -1], level=0).shape
    torch.Size([1, 256])
    """

    lm_head: nn.Linear | None

    def __init__(
        self,
        config: EncoderDecoderConfig,
        vocabulary: AnyVocabulary,
        generator: torch.Generator | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        check_vocabulary(vocabulary, config)
        self.config = config
        self.vocabulary = vocabulary
        self.shared = nn.Embedding(config.vocab_size, config.d_model, device="meta")
        self.encoder = T5Encoder(config)
        self.decoder = T5Decoder(config)
        untied = not config.tie_word_embeddings
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False, device="meta") if untied else None
        if torch.device(device).type != "meta":  # there the caller fills the weights
            self._draw(generator or torch.Generator().manual_seed(0), torch.device(device))

    def _draw(self, generator: torch.Generator, device: torch.device) -> None:
        """Norms at 1, the rest normal, with the deviations that keep T5's unscaled scores near 1."""
        self.to_empty(device=device)
        config = self.config
        for name, weight in self.named_parameters():
            module = self.get_submodule(name.rpartition(".")[0])
            if isinstance(module, RMSNorm):
                nn.init.ones_(weight)
                continue
            last = name.split(".")[-2] if name.endswith(".weight") else name.split(".")[-1]
            fan_in = {"q": config.d_model * config.d_kv, "o": config.inner_size, "wo": config.d_ff}.get(last, config.d_model)
            deviation = 1.0 if last == "shared" else config.initializer_factor / sqrt(fan_in)
            assert isinstance(module, nn.Linear | nn.Embedding | RelativeBias | Experts)
            drawn = torch.empty(weight.shape, device=generator.device).normal_(std=deviation, generator=generator)
            with torch.no_grad():
                weight.copy_(drawn)

    @property
    def head_weight(self) -> Tensor:
        """The matrix (vocab_size, D) from hidden states to logits; the embedding itself where the two are tied."""
        return self.shared.weight if self.lm_head is None else self.lm_head.weight

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.shared.weight.device

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
        each SID; the hidden state at place s is what `head(_, level=s)` reads. dropout: see `Transformer.forward`.
        balance: a list to which every layer of experts adds its load-balancing loss (see `Experts`).
        """
        check_prompts(tokens_BT, lengths_B, self.config)
        if targets_BS.ndim != 2 or len(targets_BS) != len(tokens_BT):
            raise ArgumentError(f"targets must be tokens of shape ({len(tokens_BT)}, S), got {tuple(targets_BS.shape)}")
        drop = dropping(self.config.dropout if self.training else 0.0, dropout)
        encoded_BTD = self._encode(tokens_BT, lengths_B, drop)
        prompts = self.decoder.prompt_keys_values(encoded_BTD)
        padding = None
        if lengths_B is not None:
            places_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
            padding = (places_T < lengths_B.to(tokens_BT.device)[:, None])[:, None, None]

        def codes(_: int, query_BSHE: Tensor, key_BSHE: Tensor, value_BSHE: Tensor) -> Tensor:
            return attend_codes(self.decoder.bias, query_BSHE[:, None], key_BSHE[:, None], value_BSHE[:, None])[:, 0]

        def prompt(layer: int, query_BSHE: Tensor) -> Tensor:
            query, key, value = (x.transpose(1, 2) for x in (query_BSHE, *prompts[layer]))
            return F.scaled_dot_product_attention(query, key, value, attn_mask=padding, scale=1.0).transpose(1, 2)

        start_B1 = targets_BS.new_full((len(targets_BS), 1), self.config.decoder_start_token_id)
        hidden_BSD = self.shared(torch.cat((start_B1, targets_BS), 1))
        return self.decoder(hidden_BSD, codes, prompt, drop, balance)

    def head(self, hidden: Tensor, level: int) -> Tensor:
        """Logits (..., V) of one level's codes from hidden states (..., D); only that level's rows are multiplied."""
        return F.linear(hidden, self.vocabulary.level_rows(self.head_weight, level))

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (..., vocab_size) of every token from hidden states (..., D)."""
        return F.linear(hidden, self.head_weight)

    @torch.inference_mode()
    def start(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> DecodeSession:
        """Encode prompts (B, T) int64, padded on the right to lengths_B (at least 1 each), and open the rounds of a search.

        Costs one pass of the encoder over B x T tokens; the keys and values of the cross-attention live as long as the answer.
        No gradients. Prompts longer than the model's positions leave for a SID raise ArgumentError.
        """
        check_prompts(tokens_BT, lengths_B, self.config, further=self.vocabulary.num_levels - 1)
        lengths_B = checked_lengths(tokens_BT, lengths_B)
        encoded_BTD = self._encode(tokens_BT, lengths_B, lambda x: x)
        start_token = self.config.decoder_start_token_id
        runner = EncoderDecoderRunner(self.decoder, self.shared, self.head, encoded_BTD, lengths_B, start_token)
        return DecodeSession(runner, self.vocabulary, lengths_B)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | PathLike[str],
        *,
        vocabulary: AnyVocabulary | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> "EncoderDecoder":
        """Read a model that leafbeam saved, or a T5 of transformers, in evaluation mode: see `Transformer.from_pretrained`."""
        check_dtype(dtype)
        config, vocabulary = read_config(Path(directory), vocabulary, EncoderDecoderConfig)
        model = cls(config, vocabulary, device="meta")
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        tensors = read_tensors(
            Path(directory),
            shapes,
            tied=config.tie_word_embeddings,
            dtype=dtype,
            device=torch.device(device),
            embedding="shared.weight",
            copies=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
            unused=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),  # of the first T5s
        )
        model.load_state_dict(tensors, assign=True)
        return model.eval()

    def save_pretrained(self, directory: str | PathLike[str]) -> None:
        """Write config.json, model.safetensors and leafbeam.json; without experts, transformers reads the first two as a T5."""
        write_checkpoint(Path(directory), self.config, self.vocabulary, dict(self.named_parameters()))

    def _encode(self, tokens_BT: Tensor, lengths_B: Tensor | None, drop: Dropout) -> Tensor:
        if lengths_B is not None:
            lengths_B = lengths_B.to(tokens_BT.device) if bool((lengths_B < tokens_BT.shape[1]).any()) else None
        return self.encoder(self.shared(tokens_BT), lengths_B, drop)
