"""A batch of texts in progress.

Shapes: B requests, K texts of each.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from leafbeam.automata import Automaton
from leafbeam.decode import SequenceRun
from leafbeam.errors import LogitsError
from leafbeam.text.growing_text import GrowingText
from leafbeam.text.request import Generation, TextRequest
from leafbeam.text.tokenizer import TextTokenizer


class TextBatch(ABC):
    """Requests that the model continues call by call. The two subclasses do so in different ways.

    Examples:
        >>> run = generator.start([request])        # doctest: +SKIP
        >>> while run.advance():                    # doctest: +SKIP
        ...     print(run.pieces(0)[0])
    """

    def __init__(self, requests: Sequence[TextRequest], tokenizer: TextTokenizer) -> None:
        self.requests, self._tokenizer = tuple(requests), tokenizer
        self._results: list[tuple[Generation, ...] | None] = [None] * len(requests)
        self.model_calls = self.calls_saved = 0
        # Texts that grow token by token are followed; those of many beams are read from the search when they are over.
        self._growing = [
            [GrowingText(request, tokenizer) for _ in range(request.num_texts if request.is_stepwise else 0)]
            for request in requests
        ]

    def is_over(self, b: int) -> bool:
        """Return whether the texts of a request will not change any more."""
        return self._results[b] is not None

    @property
    def texts(self) -> tuple[tuple[Generation, ...], ...]:
        """Return the texts of each request so far; a search of many beams has none before its end."""
        growing = (tuple(text.generation for text in texts) for texts in self._growing)
        return tuple(texts if result is None else result for result, texts in zip(self._results, growing, strict=True))

    @abstractmethod
    def advance(self) -> bool:
        """Call the model once more; return False if nothing was left to do.

        Raises:
            LogitsError: If logits are NaN or +inf, or the model excludes every token that may continue a text.
        """

    def pieces(self, b: int) -> tuple[str, ...]:
        """Return what is new in each text of a request since the last call. Pieces are whole characters, and hold back
        text that may be the beginning of a stop.

        The pieces of a search of many beams are empty, because its texts are known only at its end.
        """
        return tuple(text.piece() for text in self._growing[b])

    def cut_off(self, b: int) -> None:
        """Stop a request and continue the others. Its texts stay as they are."""
        if self._results[b] is not None:
            return
        for text in self._growing[b]:
            text.is_over = True
        self._results[b] = self.texts[b]


def state_after(automaton: Automaton, state: int, token: int) -> int:
    """Return the state after a token, -1 if the token is not text that may follow, such as an end token."""
    if token >= automaton.vocabulary_size:
        return -1
    return int(automaton.step(np.array([state]), np.array([token]))[0])


class TextRun(TextBatch):
    """A batch in which all requests advance by one round at a time. It is for searches of many beams, and for scoring
    "full".
    """

    def __init__(self, requests: Sequence[TextRequest], run: SequenceRun, tokenizer: TextTokenizer) -> None:
        super().__init__(requests, tokenizer)
        self._run, self._num_rounds = run, 0
        self._states = [[0] * len(texts) for texts in self._growing]  # of their automata
        self._ends = frozenset(tokenizer.ends)

    def advance(self) -> bool:
        if None not in self._results:
            return False
        trace = next(self._run.rounds)
        self.model_calls, self.calls_saved = trace.calls, trace.rounds_saved
        new_rounds, self._num_rounds = trace.rounds[self._num_rounds :], len(trace.rounds)
        result = None
        for b, (request, texts) in enumerate(zip(self.requests, self._growing, strict=True)):
            if self._results[b] is not None:
                continue
            if not trace.num_valid_B[b]:
                raise LogitsError.none_allowed(b, f"in round {self._num_rounds - 1}")
            for k, text in enumerate(texts):
                for codes_BK, _ in new_rounds:
                    if not text.is_over:
                        self._add(b, k, int(codes_BK[b, k]), float(trace.beams.scores[b, k]))
            if texts and all(text.is_over for text in texts):
                self._results[b] = tuple(text.generation for text in texts)
            elif not texts and (self._num_rounds >= request.max_tokens or not self._run.is_going_on(trace)[b]):
                result = result or self._run.result(trace)
                self._results[b] = tuple(
                    self._cut(request, tokens.tolist(), bool(result.finished[b, k]), float(result.scores[b, k]))
                    for k, tokens in enumerate(result.tokens[b])
                )
        return True

    def _add(self, b: int, k: int, token: int, score: float) -> None:
        """Add the next token of a growing text; an end token ends the text if it may end there."""
        automaton, is_end = self.requests[b].automaton, token in self._ends
        state = self._states[b][k] = state_after(automaton, self._states[b][k], token)
        ends = state < 0 or (is_end and automaton.accepts(state))
        self._growing[b][k].add(token if state >= 0 else None, score, ends=ends)

    def _cut(self, request: TextRequest, tokens: list[int], finished: bool, score: float) -> Generation:
        """Return a text of a search, cut after this request's last token: the search may have continued for other requests."""
        num_tokens = len(tokens) + (not tokens or tokens[-1] not in self._ends)  # an end token may be text
        finished = finished and num_tokens <= request.max_tokens
        kept = tokens[: request.max_tokens]
        return Generation(text=self._tokenizer.decode(kept), tokens=tuple(kept), score=score, finished=finished)
