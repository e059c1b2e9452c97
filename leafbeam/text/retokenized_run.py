"""Texts whose forced part is appended as the tokenizer's own tokens, in one call (text-level jump-forward decoding).

    after each choice: the text that every completion begins with is known (`Automaton.forced_bytes`)
        tokens = tokenizer's tokens of (last token that has run, the choice, forced text)
        tokens that have run and are no longer there are rolled back; the others run in one call
    a text whose forced part is its end needs no call for it

(XGrammar, section 3.4; SGLang's compressed automata. The model may have chosen other tokens, so the text may differ from that
of token by token; it obeys the constraint all the same.)
"""

import codecs
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from leafbeam.automata import Automaton
from leafbeam.decode import SequenceRun
from leafbeam.model import DecodeSession
from leafbeam.ops.constrain import Beams
from leafbeam.text.growing_text import GrowingText
from leafbeam.text.request import TextRequest
from leafbeam.text.run import TextBatch
from leafbeam.text.tokenizer import TextTokenizer


class RetokenizedRun(TextBatch):
    """Requests with a session and calls of their own, because their jumps differ."""

    def __init__(
        self, requests: Sequence[TextRequest], runs: Sequence[tuple[DecodeSession, SequenceRun]], tokenizer: TextTokenizer
    ) -> None:
        super().__init__(requests, tokenizer)
        self._writers = [
            _Writer(request, text, *run, tokenizer)
            for request, (text,), run in zip(self.requests, self._growing, runs, strict=True)
        ]

    def advance(self) -> bool:
        """Call the model once more for each request; False where nothing was left to do. Raises LogitsError."""
        if None not in self._results:
            return False
        for b, writer in enumerate(self._writers):
            if self._results[b] is None:
                writer.advance()
                self._results[b] = (writer.text.generation,) if writer.text.is_over else None
        self.model_calls = sum(writer.calls for writer in self._writers)
        self.calls_saved = sum(max(0, writer.rounds - writer.calls) for writer in self._writers)
        return True


class _Writer:
    """One text. calls: of the model, the prompt's included. rounds: tokens so far, the end token included."""

    def __init__(
        self, request: TextRequest, text: GrowingText, session: DecodeSession, run: SequenceRun, tokenizer: TextTokenizer
    ) -> None:
        self.text, self._automaton, self._max_tokens = text, request.automaton, request.max_tokens
        self._session, self._constraint, self._tokenizer = session, run.constraint, tokenizer
        self._beams: Beams[Any] = run.constraint.root()
        self._states = [0]  # before each token, and after the last
        self._num_run = 0  # tokens whose keys and values the session holds
        self._num_choices = self.calls = 0

    @property
    def rounds(self) -> int:
        return len(self.text.tokens) + self.text.generation.finished

    def advance(self) -> None:
        """One call of the model, a choice, and the forced text after it."""
        self.calls += 1
        if self.calls == 1:
            hidden = self._session.step_fn()
            if self._take_forced():
                return
        else:
            codes_11T = np.array([[self.text.tokens[self._num_run :]]])
            hidden = self._session.suffix_fn(codes_11T, np.zeros((1, 1), np.int64))[-1]
            self._num_run = len(self.text.tokens)
        self._beams = self._constraint.step(self._num_choices, self._beams, hidden)
        self._num_choices += 1
        if not self._beams.num_valid[0]:  # the model excludes every legal token by -inf: a text that is not whole
            self.text.is_over = True
            return
        self.text.add(int(self._beams.code[0, 0]), float(self._beams.scores[0, 0]))
        self._states.append(int(self._beams.lo[0, 0, 0]))
        if not self.text.is_over:
            self._take_forced()
        # Joined tokens leave room for more choices than max_tokens, for which there are no rounds.
        self.text.is_over |= self._num_choices >= self._max_tokens

    def _take_forced(self) -> bool:
        """Append the forced text, if there is some, and end a text that it completes."""
        forced = _whole_characters(self._automaton.forced_bytes(self._states[-1]))
        tokens = self.text.tokens
        # With the last token that has run and the choice after it; with the choice alone; on its own.
        for first in sorted({max(0, self._num_run - 1), self._num_run, len(tokens)}) if forced else ():
            spelled = self._tokenizer.spell(self.text.bytes_from(first) + forced)
            if spelled is None or (first < len(tokens) and first + len(spelled) > self._max_tokens):
                continue
            states = _states_after(self._automaton, self._states[first], spelled)
            if states is not None:
                self._replace(first, spelled[: self._max_tokens - first], states)
                break
        else:
            return False
        if not self.text.is_over and self._automaton.is_final(self._states[-1]):
            self.text.end()
        return True

    def _replace(self, first: int, spelled: Sequence[int], states: Sequence[int]) -> None:
        old = self.text.tokens[first:]
        same = next((n for n, (mine, new) in enumerate(zip(old, spelled, strict=False)) if mine != new), len(old))
        if self._num_run > first + same:
            self._session.roll_back(self._num_run - first - same)
            self._num_run = first + same
        self.text.replace(first, spelled)
        self._states[first + 1 :] = states[: len(spelled)]
        state_111 = np.full_like(self._beams.lo, self._states[-1])
        self._beams = replace(self._beams, lo=state_111, hi=state_111 + 1)


def _states_after(automaton: Automaton, state: int, tokens: Sequence[int]) -> list[int] | None:
    """The state after each token; None where one is illegal, which happens to automata over other tokens."""
    states: list[int] = []
    for token in tokens:
        if token >= automaton.vocabulary_size:
            return None
        state = int(automaton.step(np.array([state]), np.array([token]))[0])
        if state < 0:
            return None
        states.append(state)
    return states


def _whole_characters(text: bytes) -> bytes:
    """Without the first bytes of a character at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(text)
    except UnicodeDecodeError:  # it begins inside a character
        return text
    return text[: len(text) - len(decoder.getstate()[0])]
