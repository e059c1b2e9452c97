"""Two stages: a language model generates text, then the Semantic ID of an item after it.

Shapes: B requests, T tokens of a prompt, V tokens of the vocabulary.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from leafbeam.errors import ArgumentError
from leafbeam.model.config import ModelConfig
from leafbeam.model.session import DecodeSession, checked_lengths
from leafbeam.model.transformer import TorchRunner, Transformer
from leafbeam.model.vocabulary import AnyVocabulary


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GeneratedText:
    """Prompts followed by their text, padded to lengths_B. texts: the generated tokens, the marker included."""

    tokens_BT: Tensor
    lengths_B: Tensor
    texts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoStage:
    """A model that generates text, such as reasoning, before it recommends; an `Engine` takes it like any model.

    max_tokens: of the text. marker: the token that ends a text, and is appended to one that reaches max_tokens; None: every
    text has max_tokens tokens. temperature: 0 is greedy; above 0 tokens are sampled with `seed`, the same way in each call.

    Cost: one pass over the prompts, max_tokens passes over B tokens, and one pass over prompt and text for the search.

    >>> two = TwoStage(model=model, max_tokens=64, marker=tokenizer.convert_tokens_to_ids("<|sid|>"))   # doctest: +SKIP
    >>> session = two.start(tokens_BT, lengths_B)                                                       # doctest: +SKIP
    >>> BeamSearch(index).run(session.step_fn, len(tokens_BT), suffix_fn=session.suffix_fn)             # doctest: +SKIP
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
            raise ArgumentError(f"max_tokens={self.max_tokens} leaves no room for a SID in the model's positions: lower it")

    @property
    def vocabulary(self) -> AnyVocabulary:
        return self.model.vocabulary

    @property
    def device(self) -> torch.device:
        return self.model.device

    @cached_property
    def config(self) -> ModelConfig:
        """The model's, with the positions that the longest text leaves for prompts."""
        positions = self.model.config.max_position_embeddings - self._max_new_tokens
        if positions < 1:
            raise ArgumentError(f"max_tokens={self.max_tokens} leaves a prompt no room in the model's positions: lower it")
        return replace(self.model.config, max_position_embeddings=positions)

    @property
    def _max_new_tokens(self) -> int:
        return self.max_tokens + (self.marker is not None)

    def start(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> DecodeSession:
        """Generate text after prompts (B, T), then open a decoding session after the text."""
        generated = self.generate(tokens_BT, lengths_B)
        return self.model.start(generated.tokens_BT, generated.lengths_B)

    @torch.inference_mode()
    def generate(self, tokens_BT: Tensor, lengths_B: Tensor | None = None) -> GeneratedText:
        """The first stage alone. Prompts that leave no positions for text and SID raise ArgumentError."""
        lengths_B = checked_lengths(tokens_BT, lengths_B, self.config, self.vocabulary.num_levels)
        device = tokens_BT.device
        generator = torch.Generator(device=device).manual_seed(self.seed)
        rows_B, parents_B1 = torch.arange(len(tokens_BT), device=device), torch.zeros_like(lengths_B)[:, None]
        # Text is a search with one beam over the whole vocabulary.
        runner = TorchRunner(self.model.model, lambda hidden, _: self.model.logits(hidden), tokens_BT, lengths_B)
        tokens_BT = F.pad(tokens_BT.to(torch.int64), (0, self._max_new_tokens), value=self.vocabulary.pad)
        tokens_BT.masked_fill_(torch.arange(tokens_BT.shape[1], device=device) >= lengths_B[:, None], self.vocabulary.pad)
        ends_B = lengths_B.clone()
        unfinished_B = torch.ones_like(lengths_B, dtype=torch.bool)
        logits_BV = runner.root_logits()
        for step in range(self.max_tokens):
            next_B = self._choose(logits_BV, generator)
            tokens_BT[rows_B[unfinished_B], ends_B[unfinished_B]] = next_B[unfinished_B]
            ends_B += unfinished_B
            if self.marker is not None:
                unfinished_B = unfinished_B & (next_B != self.marker)
                if not bool(unfinished_B.any()):
                    break
            if step + 1 < self.max_tokens:  # finished rows run too; their tokens are not used
                logits_BV = runner.extend(next_B[:, None, None], parents_B1, step)[0][:, 0]
        if self.marker is not None:
            tokens_BT[rows_B[unfinished_B], ends_B[unfinished_B]] = self.marker
            ends_B += unfinished_B
        spans = zip(tokens_BT.tolist(), lengths_B.tolist(), ends_B.tolist(), strict=True)
        texts = tuple(tuple(row[begin:end]) for row, begin, end in spans)
        longest = int(ends_B.max()) if len(ends_B) else 1
        return GeneratedText(tokens_BT=tokens_BT[:, :longest], lengths_B=ends_B, texts=texts)

    def _choose(self, logits_BV: Tensor, generator: torch.Generator) -> Tensor:
        if self.temperature == 0:
            return logits_BV.argmax(-1)
        logits_BV = logits_BV.double()
        below_BV = logits_BV - logits_BV.amax(-1, keepdim=True)  # at a tiny temperature -inf for all but the best
        probabilities_BV = (below_BV / self.temperature).softmax(-1)
        return torch.multinomial(probabilities_BV, 1, generator=generator)[:, 0]
