"""Texts whose tokens are final once they are chosen, greedily or by sampling. The texts of a batch grow at different
paces.

    each call of the model: what is new of all texts that are not over, in one pass
    then for each of them, a choice, and behind it what every completion begins with:
        tokens   while one token is legal, and no text may end (`Automaton.chains`)
        text     with `retokenize` (`Automaton.forced_bytes`), as the tokenizer's tokens of (last token that has run, the
                 choice, forced text); they replace the tokens before them, whose keys and values the session drops
    a text that has to end there needs no call for it

(XGrammar, section 3.4; SGLang's compressed automata. With `retokenize` the model may have chosen other tokens, so the text may
differ from that of token by token; it obeys the constraint all the same.)

Shapes: B requests, K texts of each, R = B x K, D hidden.
"""

import codecs
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from leafbeam.automata import Automaton
from leafbeam.decode.automaton_constraint import AutomatonConstraint
from leafbeam.errors import LogitsError
from leafbeam.model import TextSession
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import Beams
from leafbeam.text.growing_text import GrowingText
from leafbeam.text.request import TextRequest
from leafbeam.text.run import TextBatch, state_after
from leafbeam.text.tokenizer import TextTokenizer


class StepwiseRun(TextBatch):
    """A batch in which each text advances as far as it has no choice, then by one choice. Scores are normalised over
    the legal tokens.

    Args:
        requests: The requests of the batch.
        session: The texts in the model.
        constraint: What is legal, and the head of legal tokens.
        tokenizer: The tokenizer of the model.
        logits: Makes the logits of hidden states, where the constraint has no head.
    """

    def __init__(
        self,
        requests: Sequence[TextRequest],
        session: TextSession,
        constraint: AutomatonConstraint,
        tokenizer: TextTokenizer,
        *,
        logits: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(requests, tokenizer)
        self._session, self._constraint, self._logits = session, constraint, logits
        self._writers = [
            _Writer(request, text, tokenizer) for request, texts in zip(requests, self._growing, strict=True) for text in texts
        ]
        self._scores_BK = np.zeros((len(requests), requests[0].num_texts), np.float32)

    def advance(self) -> bool:
        if None not in self._results:
            return False
        number, self.model_calls = self.model_calls, self.model_calls + 1
        # The prompts' call is enough for a choice, unless a text begins with what is forced.
        choosing = [not writer.text.is_over and not (number == 0 and writer.take_forced()) for writer in self._writers]
        if any(choosing):
            self._choose(number, choosing)
        for b, texts in enumerate(self._growing):
            if self._results[b] is None and all(text.is_over for text in texts):
                self._results[b] = tuple(text.generation for text in texts)
        self.calls_saved = max(0, max(writer.text.num_tokens for writer in self._writers) - self.model_calls)
        return True

    @torch.inference_mode()
    def _choose(self, number: int, choosing: Sequence[bool]) -> None:
        """Call the model once, and choose the next token of these texts."""
        pairs = list(zip(self._writers, choosing, strict=True))
        hidden_RD = self._session.hidden_after([writer.text.tokens if chooses else None for writer, chooses in pairs])
        rows = hidden_RD if self._logits is None else self._logits(hidden_RD)
        # A text that does not choose stands where a sequence has ended: its only code is an end code again.
        states = [writer.state if chooses else writer.automaton.num_states for writer, chooses in pairs]
        shape = self._scores_BK.shape
        lo_1BK = np.array(states, np.int64).reshape(1, *shape)
        beams = self._constraint.beams_at(lo_1BK, self._scores_BK)
        best = self._constraint.step(number, beams, rows.unflatten(0, shape))
        found = Beams(**{name: to_numpy(array) for name, array in vars(best).items()})
        if self._constraint.bad_T and (bad := int(self._constraint.bad_T[-1])):
            raise LogitsError.not_finite(*divmod(bad - 1, shape[1]), f"in round {number}")
        if not found.num_valid.all():
            raise LogitsError.none_allowed(int(found.num_valid.argmin()), f"in round {number}")
        self._scores_BK = found.scores
        for row, (writer, chooses) in enumerate(pairs):
            b, k = divmod(row, shape[1])
            if not chooses:
                continue
            writer.choose(int(found.code[b, k]), int(found.lo[0, b, k]), float(found.scores[b, k]))
            # Joined tokens leave room for more choices than max_tokens, for which there are no rounds.
            writer.text.is_over |= self.model_calls >= self.requests[b].max_tokens


class _Writer:
    """A growing text, and the states of its automaton."""

    def __init__(self, request: TextRequest, text: GrowingText, tokenizer: TextTokenizer) -> None:
        self.text, self.automaton, self._tokenizer = text, request.automaton, tokenizer
        self._ends = frozenset(tokenizer.ends)
        self._max_tokens, self._retokenize = request.max_tokens, request.retokenize
        self._states = [0]  # before each token, and after the last
        self._num_run = 0  # tokens that the model has read

    @property
    def state(self) -> int:
        return self._states[-1]

    def choose(self, token: int, state: int, score: float) -> None:
        """Append a choice of the model, and what is forced after it. The model has read all tokens before the choice."""
        self._num_run = len(self.text.tokens)
        if state == self.automaton.num_states:  # ended
            state = state_after(self.automaton, self.state, token)
            self.text.add(token if state >= 0 else None, score, ends=True)
            return
        self.text.add(token, score, ends=False)
        self._states.append(state)
        if not self.text.is_over:
            self.take_forced()

    def take_forced(self) -> bool:
        """Append what is forced, if anything is, and end a text that has to end there. Return whether anything has changed."""
        took = self._take_text() if self._retokenize else self._take_tokens()
        if took and self.text.tokens[-1] in self._ends and self.automaton.accepts(self.state):
            self.text.end(has_end_token=False)
        elif not self.text.is_over and self.automaton.is_final(self.state):
            self.text.end()
        return took or self.text.is_over

    def _take_tokens(self) -> bool:
        chains, before = self.automaton.chains_from(np.array([self.state])), len(self.text.tokens)
        while chains is not None and chains.token_S[self.state] >= 0 and not self.text.is_over:
            self.text.replace(len(self.text.tokens), [int(chains.token_S[self.state])])
            self._states.append(int(chains.next_S[self.state]))
        return len(self.text.tokens) > before

    def _take_text(self) -> bool:
        forced = _whole_characters(self.automaton.forced_bytes(self.state))
        tokens = self.text.tokens
        # With the last token that has run and the choice after it; with the choice alone; on its own.
        for first in sorted({max(0, self._num_run - 1), self._num_run, len(tokens)}) if forced else ():
            spelled = self._tokenizer.spell(self.text.bytes_from(first) + forced)
            if spelled is None or (first < len(tokens) and first + len(spelled) > self._max_tokens):
                continue
            states = _states_after(self.automaton, self._states[first], spelled)
            if states is not None:
                kept = spelled[: self._max_tokens - first]
                self.text.replace(first, kept)
                self._states[first + 1 :] = states[: len(kept)]
                return True
        return False


def _states_after(automaton: Automaton, state: int, tokens: Sequence[int]) -> list[int] | None:
    """Return the state after each token, or None if one is illegal, as with an automaton over other tokens."""
    states: list[int] = []
    for token in tokens:
        state = state_after(automaton, state, token)
        if state < 0:
            return None
        states.append(state)
    return states


def _whole_characters(text: bytes) -> bytes:
    """Return the text without an incomplete character at its end."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        decoder.decode(text)
    except UnicodeDecodeError:  # it begins inside a character
        return text
    return text[: len(text) - len(decoder.getstate()[0])]
