"""Log-probabilities of next tokens after prefixes, which are all that a search needs from an inference engine.

Shapes: C tokens of a query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import InferenceError, counted

Logprobs = NDArray[np.float32]
Answers = Sequence[Logprobs | InferenceError]

# What engines write for -inf, which JSON does not have: vLLM -9999, SGLang's forks -999999999. No log-probability is so small.
_EXCLUDED = -9999.0
# How far a log-probability, or the log of a sum of probabilities, may exceed 0 by rounding (half precisions included).
_ROUNDING = 0.02
_OPEN_BATCHES = 32


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class TokenQuery:
    """A prefix and the tokens that may follow it.

    Attributes:
        prefix: The tokens of a prompt and of the generated text.
        tokens_C: int64, distinct tokens that may come next.
    """

    prefix: Sequence[int]
    tokens_C: NDArray[np.int64]


class LogprobModel(Protocol):
    """A causal language model in an inference engine: `VllmModel`, `VllmServer`, `SglangServer`, `OpenAIServer`, or yours."""

    def logprobs(self, queries: Sequence[TokenQuery]) -> Answers:
        """Return for each query log p(token | prefix) of its tokens, float32 [C], over the model's whole vocabulary.

        A token that the engine excludes has -inf. An InferenceError in place of an answer fails that query alone.
        """
        ...


def answer_to(query: TokenQuery, tokens: Sequence[object], logprobs: Sequence[object]) -> Logprobs:
    """Return the log-probabilities of a query from those of an engine, which may return more tokens than it was asked for.

    Raises InferenceError where a token is missing or has two values, or where a value is not a log-probability.
    """
    if len(tokens) != len(logprobs):
        raise InferenceError(
            f"the engine returned {counted(len(logprobs), 'log-probability', 'log-probabilities')} for "
            f"{counted(len(tokens), 'token')}: expected one each"
        )
    token_n, value_n = _numbers(tokens, "iu", "tokens"), _numbers(logprobs, "iuf", "log-probabilities").astype(np.float64)
    if not (value_n <= _ROUNDING).all():
        value = value_n[~(value_n <= _ROUNDING)][0]
        raise InferenceError(
            f"the engine gave {value:g} for token {token_n[value_n == value][:1]}: expected a log-probability, at most 0; vLLM "
            "must run with logprobs_mode raw_logprobs or processed_logprobs"
        )
    order = np.argsort(token_n, kind="stable")
    token_n, value_n = token_n[order], value_n[order]
    twice = (token_n[1:] == token_n[:-1]) & (value_n[1:] != value_n[:-1])
    if twice.any():
        raise InferenceError(
            f"the engine gave token {token_n[1:][twice][0]} two different log-probabilities: expected one", reason="duplicate"
        )
    at_C = np.searchsorted(token_n, query.tokens_C)
    at_C[at_C == len(token_n)] = 0
    found_C = token_n[at_C] == query.tokens_C if len(token_n) else np.zeros(len(at_C), np.bool_)
    if not found_C.all():
        raise InferenceError(
            f"the engine returned the log-probabilities of {int(found_C.sum())} of {counted(len(found_C), 'token')} (token "
            f"{query.tokens_C[~found_C][0]} is missing): it must return every token that it is asked for",
            reason="missing_tokens",
        )
    values_C = value_n[at_C]
    if np.exp(values_C).sum() > 1 + _ROUNDING:
        raise InferenceError(
            "the probabilities of distinct next tokens sum to more than 1: the engine returned something else than "
            "log-probabilities; vLLM must run with logprobs_mode raw_logprobs or processed_logprobs"
        )
    return np.where(values_C <= _EXCLUDED, -np.inf, values_C).astype(np.float32)


def _numbers(values: Sequence[object], kinds: str, what: str) -> NDArray[np.number]:
    try:
        array = np.asarray(values) if len(values) else np.empty(0, np.int64)
    except (ValueError, OverflowError):  # ragged lists
        array = np.empty(0, object)
    if array.ndim != 1 or array.dtype.kind not in kinds:
        raise InferenceError(f"the engine's {what} are {str(values)[:80]}: expected numbers")
    return array


def answers_of(model: LogprobModel, queries: Sequence[TokenQuery]) -> Answers:
    """Return what a model says, checked: for each query as many log-probabilities as tokens. Raises InferenceError."""
    answers = model.logprobs(queries) if queries else []
    if len(answers) != len(queries):
        raise InferenceError(
            f"{model!r} answered {len(answers)} of {counted(len(queries), 'query', 'queries')}", reason="missing_answer"
        )
    for answer, query in zip(answers, queries, strict=True):
        if isinstance(answer, InferenceError):
            continue
        if np.shape(answer) != query.tokens_C.shape or not (np.asarray(answer) <= _ROUNDING).all():
            said = np.array2string(np.asarray(answer), threshold=8)
            raise InferenceError(
                f"{model!r} answered {said} for {counted(len(query.tokens_C), 'token')}: "
                "expected as many log-probabilities, at most 0"
            )
    return answers


def in_slices(
    queries: Sequence[TokenQuery], max_tokens: int | None, ask: Callable[[Sequence[TokenQuery]], Answers]
) -> list[Logprobs | InferenceError]:
    """Call `ask(queries)` with at most `max_tokens` tokens in a query: longer ones are sent in slices and put together."""
    parts: list[tuple[int, TokenQuery]] = []
    for number, query in enumerate(queries):
        width = max(1, len(query.tokens_C)) if max_tokens is None else max_tokens
        for first in range(0, len(query.tokens_C), width):
            parts.append((number, TokenQuery(prefix=query.prefix, tokens_C=query.tokens_C[first : first + width])))
    answers = list(ask([part for _, part in parts])) if parts else []
    assert len(answers) == len(parts)
    whole: list[Logprobs | InferenceError] = [np.empty(0, np.float32) for _ in queries]
    for number, pieces in groupby(zip(parts, answers, strict=True), key=lambda pair: pair[0][0]):
        values = [answer for _, answer in pieces]
        failed = next((value for value in values if isinstance(value, InferenceError)), None)
        whole[number] = failed or np.concatenate([value for value in values if not isinstance(value, InferenceError)])
    return whole


def batches_of(queries: Sequence[TokenQuery], *, max_prefixes: int, max_tokens: int | None = None) -> list[list[int]]:
    """Yield the numbers of the queries that one call may ask together: few prefixes, and few different tokens in all.

    Each query joins the first batch that it fits into, of the last 32: slices of equal tokens come together.
    """
    batches: list[tuple[list[int], set[int]]] = []  # and the tokens of each
    for number, query in enumerate(queries):
        tokens = set(query.tokens_C.tolist()) if max_tokens is not None else set[int]()
        for members, union in batches[-_OPEN_BATCHES:]:
            if len(members) < max_prefixes and (max_tokens is None or len(union) + len(tokens - union) <= max_tokens):
                members.append(number)
                union |= tokens
                break
        else:
            batches.append(([number], tokens))
    return [members for members, _ in batches]
