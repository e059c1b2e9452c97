"""A logits processor of transformers for every kind of constraint: text, items, or a different kind for each row.

Shapes: B requests, R rows of a call (B x beams, a request's rows together), T tokens of a row (prompt included), W tokens of
the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.automata import Automaton
from leafbeam.errors import ArgumentError, check_choice, counted
from leafbeam.integrations.generate_call import GenerateCall, changed_after
from leafbeam.integrations.masking import check_below_infinity, end_score
from leafbeam.integrations.prefixes import occurs
from leafbeam.integrations.served_items import DENY, RULES, ServedItems
from leafbeam.model.code_tokens import check_sequences
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import Scoring
from leafbeam.ops.constrain.cpu.automaton import bind
from leafbeam.text import TextConstraint, TextTokenizer
from leafbeam.text.constraints import compiled

_MAX_PREFIXES = 4096  # cached for each constraint


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemConstraint:
    """The constraint to one of the items that a request may be shown.

    Args:
        items: The items and their filters.
        rules: The names of filters that must all allow the item.
        deny: The ids of items that must not be returned.

    Examples:
        >>> ItemConstraint(items=ServedItems(index=index, eos_token_id=2, filters={"fresh": fresh}), rules=["fresh"])
    """

    items: ServedItems
    rules: Sequence[str] = ()
    deny: Sequence[int | str] = ()

    @property
    def arguments(self) -> dict[str, object]:
        """Return the arguments that `ServedItems.request_filter` reads."""
        return {RULES: list(self.rules), DENY: list(self.deny)}


RowConstraint = TextConstraint | ItemConstraint


@dataclass(frozen=True, kw_only=True, slots=True)
class ConstrainedRow:
    """The part of a row that `generate` wrote.

    Args:
        tokens: The tokens, without the end token.
        text: The text; None without a tokenizer.
        finished: Whether it is whole; otherwise it was cut off, and can be completed.
        item_ids: The items of an ItemConstraint; empty for other constraints.
    """

    tokens: tuple[int, ...]
    text: str | None
    item_ids: tuple[int | str, ...]
    finished: bool


class ConstraintLogitsProcessor:
    """A logits processor with which `generate` writes only what each prompt's constraint allows.

    It masks W bytes for each row and step, and reads the scores once; `TrieLogitsProcessor` is faster for items alone. One
    object serves one `generate` at a time, any number in turn.

    Args:
        constraints: One for all prompts, or one for each: `Regex`, `JsonSchema`, `Choices`, `FreeText`, `Items`, `Template`, an
            `Automaton`, or an `ItemConstraint`, which lists no items and has rules by name. A prompt's beams and return
            sequences share it.
        tokenizer: The tokenizer beside the model, of transformers or a `TextTokenizer`; None for automata and items alone.
        eos_token_id: The model's end token; None for the tokenizer's.
        prompt_length: The columns of the prompts passed to `generate`, with padding: `input_ids.shape[1]`.
        scoring: "full" and "vocabulary" leave the scores of legal tokens as they are, "allowed" normalises them over the legal
            ones. Greedy decoding and sampling write the same texts under all three.

    Raises:
        ArgumentError: If arguments do not go together.
        AutomatonError: If a constraint cannot be compiled.
        FilterError: If a rule is unknown.

    Examples:
        >>> legal = ConstraintLogitsProcessor([schema, choices], tokenizer, prompt_length=inputs.input_ids.shape[1])
        >>> sequences = model.generate(**inputs, logits_processor=[legal], max_new_tokens=200, do_sample=False)
        >>> [row.text for row in legal.results(sequences)]
    """

    def __init__(
        self,
        constraints: RowConstraint | Sequence[RowConstraint],
        tokenizer: object = None,
        *,
        prompt_length: int,
        eos_token_id: int | None = None,
        scoring: Scoring = "full",
    ) -> None:
        check_choice("scoring", scoring, Scoring)
        if prompt_length < 0:
            raise ArgumentError(f"prompt_length is {prompt_length}: expected the number of columns of the prompts, 0 or more")
        self.tokenizer = None if tokenizer is None else TextTokenizer.of(tokenizer, end=eos_token_id)
        end = eos_token_id if self.tokenizer is None else self.tokenizer.end
        if end is None:
            raise ArgumentError("eos_token_id is missing: without a tokenizer, name the token that ends a text")
        self.eos_token_id = end
        self.prompt_length, self.scoring = prompt_length, scoring
        self.constraints = [constraints] if not isinstance(constraints, Sequence) else list(constraints)
        if not self.constraints:
            raise ArgumentError("there are no constraints: expected one, or one for each prompt")
        by_id = {id(constraint): self._rule(constraint) for constraint in self.constraints}
        self._rules = [by_id[id(constraint)] for constraint in self.constraints]
        self._call: GenerateCall | None = None
        self._last_width = -1
        self._min_width = 1 + max(self.eos_token_id, *(rule.max_token for rule in self._rules))

    def __repr__(self) -> str:
        return f"ConstraintLogitsProcessor({counted(len(self.constraints), 'constraint')}, prompt_length={self.prompt_length})"

    def _rule(self, constraint: RowConstraint) -> _Rule:
        if isinstance(constraint, ItemConstraint):
            return _ItemRule(constraint, self.eos_token_id)
        return _AutomatonRule(automaton_of(constraint, self.tokenizer), self.eos_token_id)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of each row's legal tokens, -inf for all others.

        input_ids (R, T) integers, scores (R, W) floating point, on any device. No row is all -inf: one that has ended, or whose
        legal tokens other processors have excluded, has its end token at -1e20. Raises ArgumentError, and LogitsError for a
        legal token's score that is NaN or +inf.
        """
        generated = self._generated(input_ids)
        rows = len(generated)
        if scores.ndim != 2 or len(scores) != rows or scores.shape[1] < self._min_width:
            raise ArgumentError(
                f"the scores have shape {tuple(scores.shape)}: expected {counted(rows, 'row')} over at least "
                f"{counted(self._min_width, 'token')}; "
                "is this the tokenizer of the model?"
            )
        width = generated.shape[1]
        if width == 0 or width != self._last_width + 1:
            self._call = GenerateCall.current()
            if self._call is not None:
                self._call.check(eos_token_id=self.eos_token_id, is_code=self._is_code)
        self._last_width = width
        illegal_RW = np.ones((rows, scores.shape[1]), np.bool_)
        is_prefix = False
        for rule, tokens_T, illegal_W in zip(self._rules_of(rows), generated, illegal_RW, strict=True):
            is_prefix |= self.eos_token_id in tokens_T or rule.allow(tokens_T, illegal_W)
        if not is_prefix:
            raise ArgumentError(
                f"no row begins a legal text with its {counted(generated.shape[1], 'token')} after the prompt (first row: "
                f"{generated[0].tolist()}): is prompt_length={self.prompt_length} the number of columns of the "
                f"prompts? {changed_after(self, self._call, if_any=True)}".rstrip()
            )
        out = scores.masked_fill(torch.from_numpy(illegal_RW).to(scores.device), -torch.inf)
        top_R = out.amax(1)
        check_below_infinity(top_R, np.arange(rows), "among its legal tokens")
        if self.scoring == "allowed":
            lse_R1 = out.logsumexp(1, keepdim=True)
            out -= torch.where(lse_R1 == -torch.inf, 0.0, lse_R1)
        out[:, self.eos_token_id] = torch.where(top_R == -torch.inf, end_score(out.dtype), out[:, self.eos_token_id])
        return out

    def results(self, sequences: Tensor) -> tuple[ConstrainedRow, ...]:
        """Return the generated part of each row of the output of `generate`.

        Raises ArgumentError if the rows do not belong to the prompts.
        """
        generated = self._generated(sequences)
        rows: list[ConstrainedRow] = []
        for rule, tokens_T in zip(self._rules_of(len(generated)), generated, strict=True):
            (ends,) = np.nonzero(tokens_T == self.eos_token_id)
            kept_T = tokens_T[: ends[0]] if len(ends) else tokens_T
            text = None if self.tokenizer is None else self.tokenizer.decode(kept_T.tolist())
            finished, item_ids = rule.read(kept_T, bool(len(ends)))
            rows.append(ConstrainedRow(tokens=tuple(kept_T.tolist()), text=text, item_ids=item_ids, finished=finished))
        self._check_excluded([row.tokens for row in rows])
        return tuple(rows)

    def _check_excluded(self, texts: Sequence[tuple[int, ...]]) -> None:
        """Raise ArgumentError where a processor after this one let only excluded tokens through for a prompt."""
        call, width = self._call, len(texts) // len(self._rules)
        if call is None or (not call.processors_after(self) and (call.config.num_beams or 1) > 1):
            return  # beams without a text have any tokens
        for prompt, rule in enumerate(self._rules):
            rows = texts[prompt * width : (prompt + 1) * width]
            illegal_W = np.ones(self._min_width, np.bool_)
            if not any(rule.allow(np.array(tokens, np.int64), illegal_W) for tokens in rows):
                raise ArgumentError(
                    f"the texts of prompt {prompt} hold tokens that this processor excludes. {changed_after(self, call)}"
                )

    def _is_code(self, token: int) -> bool:
        """Return whether a token other than the end token is legal somewhere in a text."""
        return token != self.eos_token_id and any(rule.allows(token) for rule in self._rules)

    def _generated(self, sequences: Tensor) -> NDArray[np.int64]:
        check_sequences(sequences, self.prompt_length)
        if len(sequences) % len(self._rules):
            raise ArgumentError(
                f"`generate` runs {counted(len(sequences), 'row')} for {counted(len(self._rules), 'constraint')}: "
                "pass one for each row of the "
                "prompts (its beams and return sequences share it)"
            )
        return to_numpy(sequences[:, self.prompt_length :]).astype(np.int64)

    def _rules_of(self, rows: int) -> list[_Rule]:
        return [rule for rule in self._rules for _ in range(rows // len(self._rules))]


def automaton_of(constraint: TextConstraint, tokenizer: TextTokenizer | None) -> Automaton:
    """Return the automaton of a constraint over a tokenizer's tokens. Raises ArgumentError without one, AutomatonError."""
    if isinstance(constraint, Automaton):
        return constraint
    if tokenizer is None:
        raise ArgumentError(
            f"tokenizer is missing: {type(constraint).__name__} is about text, so pass the one beside the model"
        )
    return compiled(constraint, tokenizer.trie(tokenizer.size))


class _Rule(Protocol):
    """The language of one prompt's rows. max_token: the largest token of the language, or of the vocabulary."""

    max_token: int

    def allow(self, tokens_T: NDArray[np.int64], illegal_W: NDArray[np.bool_]) -> bool:
        """Clear the bytes of the tokens that may follow; False where these tokens begin nothing legal."""
        ...

    def allows(self, token: int) -> bool:
        """Return whether the token is legal after any prefix."""
        ...

    def read(self, tokens_T: NDArray[np.int64], has_end: bool) -> tuple[bool, tuple[int | str, ...]]:
        """Return whether these tokens, with or without the end token, are complete, and the items that have them."""
        ...


class _AutomatonRule:
    """The states of the last few thousand prefixes are cached, so that a step looks up one state a row."""

    def __init__(self, automaton: Automaton, eos: int) -> None:
        bind([automaton], end_code=eos, num_codes=max(eos + 1, automaton.vocabulary_size))  # raises where eos has text
        self._automaton, self._eos = automaton, eos
        self._states: dict[bytes, int] = {}
        self.max_token = automaton.vocabulary_size - 1

    def allow(self, tokens_T: NDArray[np.int64], illegal_W: NDArray[np.bool_]) -> bool:
        state = self._state(tokens_T)
        if state < 0:
            return False
        (mask_U,) = self._automaton.masks(np.array([state]))
        size = self._automaton.vocabulary_size
        illegal_W[:size] = np.unpackbits(~mask_U.view(np.uint8), count=size, bitorder="little")
        illegal_W[self._eos] = not self._automaton.accepts(state)
        return True

    def allows(self, token: int) -> bool:
        return self._automaton.has_token(token)

    def read(self, tokens_T: NDArray[np.int64], has_end: bool) -> tuple[bool, tuple[int | str, ...]]:
        state = self._state(tokens_T)
        return has_end and state >= 0 and self._automaton.accepts(state), ()

    def _state(self, tokens_T: NDArray[np.int64]) -> int:
        """Return the state after these tokens, -1 where they are illegal."""
        if not len(tokens_T):
            return 0
        state = self._states.get(tokens_T[:-1].tobytes())
        left = tokens_T if state is None else tokens_T[-1:]
        state = 0 if state is None else state
        for token in left.tolist():
            is_known = state >= 0 and 0 <= token < self._automaton.vocabulary_size
            state = int(self._automaton.step(np.array([state]), np.array([token]))[0]) if is_known else -1
        if len(self._states) >= _MAX_PREFIXES:
            self._states.clear()
        self._states[tokens_T.tobytes()] = state
        return state


class _ItemRule:
    def __init__(self, constraint: ItemConstraint, eos: int) -> None:
        self._constraint, items = constraint, constraint.items
        if items.eos_token_id != eos:
            raise ArgumentError(
                f"the items end with token {items.eos_token_id:,}, the model's texts with {eos:,}: expected one"
            )
        request = items.request_filter(constraint.arguments)
        assert request is not None
        self._legal, self.max_token = items.legal_tokens(request), items.tokens.max_token

    def allow(self, tokens_T: NDArray[np.int64], illegal_W: NDArray[np.bool_]) -> bool:
        if self._legal.ranges(0, tokens_T.tolist()) is None:
            return False
        illegal_W[self._legal.after(0, tokens_T.tolist())] = False
        return True

    def allows(self, token: int) -> bool:
        return occurs(self._constraint.items.version, self._constraint.items.tokens, token)

    def read(self, tokens_T: NDArray[np.int64], has_end: bool) -> tuple[bool, tuple[int | str, ...]]:
        ids = self._constraint.items.item_ids(tokens_T.tolist(), self._constraint.arguments)
        return bool(len(ids)), tuple(ids.tolist())
