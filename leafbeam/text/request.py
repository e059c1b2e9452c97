"""The prompts to continue, and the texts that continue them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leafbeam.automata import Automaton
from leafbeam.automata.json_notes import SchemaNote
from leafbeam.decode import Sampling
from leafbeam.errors import ArgumentError, counted

DEFAULT_MAX_TOKENS = 256
_MAX_STOP_BYTES = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """A generated text.

    Attributes:
        text: The text.
        tokens: Its tokens. The end token is left out, unless it is text.
        score: Its log-probability, the end token included; for a sampled text, that of drawing it.
        finished: Whether the text is complete. Otherwise it was cut off at max_tokens or before a stop, and can be completed.
        stop: The stop before which the text was cut off, if any.
    """

    text: str
    tokens: tuple[int, ...]
    score: float
    finished: bool
    stop: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationResult:
    """The generated texts of a batch.

    Attributes:
        texts: The texts of each prompt, best first.
        model_calls: The number of calls of the model, the prompts included.
        calls_saved: The number of calls of the model that the longest text did without, because its tokens were forced.
        notes: The keywords of each prompt's JSON Schema that were ignored or bounded.
    """

    texts: tuple[tuple[Generation, ...], ...]
    model_calls: int
    calls_saved: int
    notes: tuple[tuple[SchemaNote, ...], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TextRequest:
    """A prompt, and what may follow it.

    Args:
        prompt: The tokens of the prompt.
        automaton: The texts that may follow it.
        max_tokens: The largest number of tokens of a text.
        num_texts: The number of beams of an exact search, where 1 is greedy; or of drawn texts, with `sampling`.
        scoring: As for `TextGenerator.generate`.
        sampling: How texts are drawn.
        seed: The seed of the draws.
        stop: Texts before the first of which a text ends.
        retokenize: See `TextGenerator.generate`.

    Raises:
        ArgumentError: If a value is out of range.
    """

    prompt: tuple[int, ...]
    automaton: Automaton
    max_tokens: int = DEFAULT_MAX_TOKENS
    num_texts: int = 1
    scoring: Literal["full", "allowed"] = "allowed"
    sampling: Sampling | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    retokenize: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ArgumentError("a prompt has no tokens: a model needs at least one")
        if self.max_tokens < 1 or self.num_texts < 1:
            raise ArgumentError(f"max_tokens is {self.max_tokens}, texts are {self.num_texts}: expected at least 1 of each")
        if self.sampling is not None and self.scoring != "allowed":
            raise ArgumentError("sampling normalises over the legal tokens: leave out scoring='full'")
        if self.retokenize and not (self.is_stepwise and self.scoring == "allowed"):
            raise ArgumentError("retokenize is for tokens that are final once chosen: use one beam, or sampling, and 'allowed'")
        if self.stop and not self.is_stepwise:
            raise ArgumentError("a stop ends a text while it is written: use one beam, or sampling")
        for text in self.stop:
            try:
                num_bytes = len(text.encode())
            except UnicodeEncodeError as error:
                raise ArgumentError(f"the stop {text[:80]!r} is not Unicode text: {error}") from error
            if not num_bytes:
                raise ArgumentError("a stop is empty: expected text")
            if num_bytes > _MAX_STOP_BYTES:  # each token may begin one
                raise ArgumentError(f"a stop has {counted(num_bytes, 'byte')}: expected at most {_MAX_STOP_BYTES:,}")

    @property
    def is_stepwise(self) -> bool:
        """Return whether a chosen token is final, as in greedy search and sampling; a search of many beams revises choices."""
        return self.sampling is not None or self.num_texts == 1


def can_run_together(requests: Sequence[TextRequest]) -> bool:
    """Return whether one batch may hold the requests: all of them search in the same way or all draw, and all for the
    same number of texts.
    """
    kinds = {(request.num_texts, request.scoring, request.sampling is None) for request in requests}
    return len(kinds) == 1
