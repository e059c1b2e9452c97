"""Two stages: a language model first writes text freely, then the Semantic ID of an item behind it.

Shapes: B requests, T tokens of a prompt, N tokens of text at most, G key heads, H query heads, E values of a head.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model.checks import check_prompts, checked_lengths
from leafbeam.model.config import ModelConfig
from leafbeam.model.session import DecodeSession
from leafbeam.model.transformer import Transformer
from leafbeam.model.vocabulary import AnyVocabulary

__all__ = ["GeneratedText", "TwoStage"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GeneratedText:
    """Prompts with the text behind them.

    tokens_BT: padded on the right to lengths_B. texts: for each request the tokens that were written, the marker included.
    """

    tokens_BT: Tensor
    lengths_B: Tensor
    texts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStage:
    """A model that says something before it recommends: reasons, a summary of the user, whatever it was taught.

    Think of it as the model itself with a longer prompt: `start` lets it write, token by token over its whole vocabulary, and
    opens the rounds of a search behind the text. It has what an engine asks of a model, so it goes wherever one goes.

    max_tokens: of the text. marker: the token behind which SIDs begin; writing it ends the text, and a text that reaches
    max_tokens gets it put behind. None: the text is max_tokens long. temperature: 0 takes the likeliest token each time; above,
    tokens are drawn by `seed`, anew in each call.

    Costs one pass over the prompts, max_tokens passes over B tokens, and one pass over prompt and text for the search's cache.

    >>> two = TwoStage(model=model, max_tokens=64, marker=tokenizer.convert_tokens_to_ids("<|sid|>"))   # doctest: +SKIP
    >>> rounds = two.start(tokens_BT, lengths_B)                                                        # doctest: +SKIP
    >>> BeamSearch(index).run(rounds.step_fn, len(tokens_BT), suffix_fn=rounds.suffix_fn)               # doctest: +SKIP
    """

    model: Transformer
    max_tokens: int
    marker: int | None = None
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        size = self.model.config.vocab_size
        if self.max_tokens < 1:
            raise ArgumentError(f"max_tokens={self.max_tokens}: a text has at least one token")
        if self.marker is not None and not 0 <= self.marker < size:
            raise ArgumentError(f"marker={self.marker} is outside the model's {size:,} tokens")
        if not 0 <= self.temperature < float("inf"):
            raise ArgumentError(f"temperature must be at least 0 and finite, not {self.temperature}")
        if self.config.max_position_embeddings < self.vocabulary.num_levels + 1:
            raise ArgumentError(f"max_tokens={self.max_tokens} leaves no room for a SID in the model's positions: write less")

    @property
    def vocabulary(self) -> AnyVocabulary:
        """The model's."""
        return self.model.vocabulary

    @property
    def device(self) -> torch.device:
        """The model's."""
        return self.model.device

    @cached_property
    def config(self) -> ModelConfig:
        """The model's, with as many positions as the longest text leaves for prompts."""
        positions = self.model.config.max_position_embeddings - self.max_tokens - (self.marker is not None)
        if positions < 1:
            raise ArgumentError(f"max_tokens={self.max_tokens} leaves a prompt no room in the model's positions: write less")
        return replace(self.model.config, max_position_embeddings=positions)

    def start(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> DecodeSession:
        """Let the model write behind prompts (B, T), then open the rounds of a search behind what it wrote."""
        written = self.write(tokens_BT, lengths_B)
        return self.model.start(written.tokens_BT, written.lengths_B)

    @torch.inference_mode()
    def write(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> GeneratedText:
        """The first stage alone. Prompts that leave no room for text and SID raise ArgumentError."""
        check_prompts(tokens_BT, lengths_B, self.config, further=self.vocabulary.num_levels - 1)
        lengths_B = checked_lengths(tokens_BT, lengths_B)
        device = tokens_BT.device
        generator = torch.Generator(device=device).manual_seed(self.seed)
        rows_B = torch.arange(len(tokens_BT), device=device)
        room = self.max_tokens + (self.marker is not None)
        tokens_BT = F.pad(tokens_BT.to(torch.int64), (0, room), value=self.vocabulary.pad)
        tokens_BT.masked_fill_(torch.arange(tokens_BT.shape[1], device=device) >= lengths_B[:, None], self.vocabulary.pad)
        ends_B = lengths_B.clone()
        cache = _TextCache(tokens_BT.shape[1])
        body, prompt = self.model.model, tokens_BT[:, :-room]
        hidden_BTD = body(prompt, torch.arange(prompt.shape[1], device=device), cache.read)
        last_BD = hidden_BTD[rows_B, lengths_B - 1]
        writing_B = torch.ones_like(lengths_B, dtype=torch.bool)
        for step in range(self.max_tokens):
            next_B = self._choose(self.model.logits(last_BD), generator)
            tokens_BT[rows_B[writing_B], ends_B[writing_B]] = next_B[writing_B]
            ends_B += writing_B
            if self.marker is not None:
                writing_B = writing_B & (next_B != self.marker)
                if not bool(writing_B.any()):
                    break
            if step + 1 < self.max_tokens:
                cache.position_B = ends_B - 1  # rows that are done write their last token once more: nobody reads what follows
                last_BD = body(tokens_BT[rows_B, cache.position_B][:, None], cache.position_B[:, None], cache.write)[:, 0]
        if self.marker is not None:
            tokens_BT[rows_B[writing_B], ends_B[writing_B]] = self.marker
            ends_B += writing_B
        texts = tuple(
            tuple(row[begin:end])
            for row, begin, end in zip(tokens_BT.tolist(), lengths_B.tolist(), ends_B.tolist(), strict=True)
        )
        longest = int(ends_B.max()) if len(ends_B) else 1
        return GeneratedText(tokens_BT=tokens_BT[:, :longest], lengths_B=ends_B, texts=texts)

    def _choose(self, logits_BV: Tensor, generator: torch.Generator) -> Tensor:
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        shares_BV = (logits_BV.float() / self.temperature).softmax(-1)
        return torch.multinomial(shares_BV, 1, generator=generator)[:, 0]


class _TextCache:
    """Keys and values of prompts and of what is written behind them, a slot for each place; two ways to attend.

    position_B: where the token of each row stands that `write` takes.
    """

    def __init__(self, num_slots: int) -> None:
        self.position_B = torch.zeros(0, dtype=torch.int64)
        self._num_slots = num_slots
        self._keys: list[Tensor] = []  # per layer, (B, G, T + N, E)
        self._values: list[Tensor] = []

    def read(self, layer: int, query_BTHE: Tensor, key_BTGE: Tensor, value_BTGE: Tensor) -> Tensor:
        """The prompts: every token sees itself and those before it."""
        query, key, value = (x.transpose(1, 2) for x in (query_BTHE, key_BTGE, value_BTGE))
        free = self._num_slots - key.shape[2]
        self._keys.append(F.pad(key, (0, 0, 0, free)))
        self._values.append(F.pad(value, (0, 0, 0, free)))
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)

    def write(self, layer: int, query_B1HE: Tensor, key_B1GE: Tensor, value_B1GE: Tensor) -> Tensor:
        """One token of each row, into its slot; it sees all slots up to its own."""
        keys, values = self._keys[layer], self._values[layer]
        rows_B = torch.arange(len(keys), device=keys.device)
        keys[rows_B, :, self.position_B] = key_B1GE[:, 0]
        values[rows_B, :, self.position_B] = value_B1GE[:, 0]
        seen = (torch.arange(self._num_slots, device=keys.device) <= self.position_B[:, None])[:, None, None]
        query = query_B1HE.transpose(1, 2)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=True).transpose(1, 2)
