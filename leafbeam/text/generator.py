"""Generates texts of a language model under constraints.

Shapes: B prompts, T tokens of each, V tokens of the model, D hidden.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from leafbeam.automata import Automaton
from leafbeam.decode import SequenceSearch
from leafbeam.errors import ArgumentError
from leafbeam.model import TextTokens, Transformer
from leafbeam.model.weights import read_hf
from leafbeam.ops.head import HeadCosts
from leafbeam.text.constraints import TextConstraint, compiled
from leafbeam.text.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A generated text. finished: whether it is whole; else it was cut off at max_tokens and can still be completed.

    tokens: without the end token. score: its log-probability, the end token included.
    """

    text: str
    tokens: tuple[int, ...]
    score: float
    finished: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationResult:
    """texts: of each prompt, best first. model_calls: of the batch, the prompts included; calls_saved: by forced tokens."""

    texts: tuple[tuple[Generation, ...], ...]
    model_calls: int
    calls_saved: int


class TextGenerator:
    """A causal language model and its tokenizer. Every text obeys its constraint; one that is cut off can be completed.

    Only the logits of legal tokens are computed where that is cheaper (`ops.head`), and tokens without an alternative are
    appended in one pass (XGrammar, section 3.4: jump-forward decoding, over tokens).

    Raises CheckpointError where the tokenizer has more tokens than the model.

    >>> generator = TextGenerator.load("Qwen3-0.6B")                                            # doctest: +SKIP
    >>> result = generator.generate(["A lamp as JSON: "], JsonSchema(schema=schema))            # doctest: +SKIP
    >>> result.texts[0][0].text                                                                 # doctest: +SKIP
    '{"name":"red lamp","price":12}'
    """

    def __init__(self, model: Transformer, tokenizer: TextTokenizer, *, costs: HeadCosts | None = None) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.num_tokens = model.config.vocab_size
        self._tokens, self._costs = tokenizer.trie(self.num_tokens), costs

    def __repr__(self) -> str:
        return f"TextGenerator({self.model.config.num_hidden_layers} layers, {self.tokenizer!r})"

    @classmethod
    def load(cls, directory: str | PathLike[str]) -> "TextGenerator":
        """A Qwen3 directory of Hugging Face with its tokenizer.json, in float32 on the CPU. Raises CheckpointError."""
        place = Path(directory)
        vocabulary = None
        if not (place / "leafbeam.json").exists():
            size = read_hf(place).get("vocab_size")
            # Without a usable size, from_pretrained refuses the config by name.
            vocabulary = TextTokens(size=size if isinstance(size, int) and size > 0 else 1, num_tokens=1)
        model = Transformer.from_pretrained(place, vocabulary=vocabulary, dtype=torch.float32)
        return cls(model, TextTokenizer.load(place))

    def compile(self, constraint: TextConstraint) -> Automaton:
        """The automaton of a constraint, for many calls of `generate`. Cost: milliseconds for most. Raises AutomatonError."""
        return compiled(constraint, self._tokens)

    def generate(
        self,
        prompts: Sequence[str],
        constraint: TextConstraint | Sequence[TextConstraint],
        *,
        max_tokens: int = 256,
        num_beams: int = 1,
        scoring: Literal["full", "allowed"] = "allowed",
    ) -> GenerationResult:
        """The most likely texts after each prompt that an exact search of `num_beams` beams finds; one beam is greedy.

        constraint: one for all prompts, or one for each. max_tokens: of a text, the end token included. scoring: log-softmax
        over the legal tokens, or over all of them ("full"), which multiplies the whole head; with one beam both choose alike.

        Cost: a pass over the prompts, and at most max_tokens passes over B x num_beams tokens. Raises ArgumentError for no
        prompt, one without tokens, or too long ones; AutomatonError for a constraint.
        """
        if isinstance(prompts, str) or not len(prompts):
            raise ArgumentError(f"prompts are {prompts!r}: expected a list of at least one text")
        rows = [self.tokenizer.encode(prompt) for prompt in prompts]
        for prompt, row in zip(prompts, rows, strict=True):
            if not row:
                raise ArgumentError(f"the prompt {prompt!r} has no tokens: a model needs at least one")
        longest, positions = max(map(len, rows)), self.model.config.max_position_embeddings
        if longest + max_tokens - 1 > positions:
            raise ArgumentError(
                f"a prompt of {longest:,} tokens and max_tokens={max_tokens:,} exceed the model's {positions:,} positions: "
                "shorten the prompt, or lower max_tokens"
            )
        constraints = constraint if isinstance(constraint, Sequence) else [constraint]
        automata = [self.compile(one) for one in constraints]
        search = SequenceSearch(
            automata,
            end_code=self.tokenizer.end,
            num_codes=self.num_tokens,
            num_beams=num_beams,
            max_tokens=max_tokens,
            scoring=scoring,
        )
        tokens_BT = np.array([row + [0] * (longest - len(row)) for row in rows], np.int64)
        session = self.model.start(
            torch.from_numpy(tokens_BT),
            torch.tensor([len(row) for row in rows]),
            beams=num_beams,
            vocabulary=TextTokens(size=self.num_tokens, num_tokens=max_tokens),
            hidden=True,
        )
        head = self.model.head_weight.detach().numpy()
        found = search.run(session.step_fn, len(rows), head=head, costs=self._costs, suffix_fn=session.suffix_fn)
        texts = tuple(
            tuple(
                Generation(
                    text=self.tokenizer.decode(tokens.tolist()),
                    tokens=tuple(tokens.tolist()),
                    score=float(found.scores[row, beam]),
                    finished=bool(found.finished[row, beam]),
                )
                for beam, tokens in enumerate(beams)
            )
            for row, beams in enumerate(found.tokens)
        )
        return GenerationResult(texts=texts, model_calls=found.rounds, calls_saved=found.rounds_saved)
