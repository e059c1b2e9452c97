"""Exact constrained beam search over a language model in another inference engine, which returns only
log-probabilities.

    for each level: list the legal children of every beam, ask the engine for the log-probabilities of their tokens after the
    beam's tokens, keep the best

Shapes: B requests, K beams, T tokens generated, V codes of a level, C children of all rows together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.beam_search import ItemSearch, Requests
from leafbeam.decode.config import SearchConfig, beams_of_search
from leafbeam.decode.constraint import Cut, TrieConstraint
from leafbeam.decode.model_calls import ModelCalls
from leafbeam.decode.results import BatchFilters, DenyLists, SearchResult, check_batch
from leafbeam.decode.sampling import log_softmax
from leafbeam.errors import ArgumentError, InferenceError, check_choice, counted
from leafbeam.index import Trie, Version
from leafbeam.integrations.logprobs import LogprobModel, TokenQuery, answers_of
from leafbeam.model.code_tokens import CodeTokens, CodeTokensLike, check_end_token
from leafbeam.ops.backend import BoundIndex
from leafbeam.ops.constrain import Beams, HostBeams, Scoring
from leafbeam.ops.constrain.cpu.ragged import TrieChildren, extend_ragged


@dataclass(frozen=True, kw_only=True, eq=False)
class LogprobSearchResult(SearchResult):
    """Ranked items, and the requests that failed.

    Attributes:
        failures: The error of each request for which the engine failed. Such a request has no items at all.
        num_queries: The number of prefixes that were sent to the engine.
    """

    failures: Mapping[int, InferenceError]
    num_queries: int

    @property
    def is_complete(self) -> bool:
        """Return whether every request was answered."""
        return not self.failures


class LogprobBeamSearch(ItemSearch):
    """Beam search over the items of an index with a language model in vLLM, SGLang or another engine, which stays unmodified.

    It returns what `BeamSearch` does on the same weights, up to rounding. The engine reads each prompt once if it caches
    prefixes; every level is one batch of one-token requests.

    Args:
        index: A trie, or a version of a live index.
        model: `VllmModel`, `VllmServer`, `SglangServer`, `OpenAIServer`, or an object of your own (`LogprobModel`).
        code_tokens: For each level the token of code 0, of code 1, and so on; or a leafbeam vocabulary; or `CodeTokens`, such
            as `tokens` of another search. None is for an index of sequences (`Trie.from_sequences`), whose codes are tokens.
        eos_token_id: The model's end token; only an index of sequences needs it.
        num_items: The number of items of an answer, proved to be the best; 20 if neither this nor num_beams is set.
        num_beams: For a beam search, one number or one for each level; the last is the number of items of an answer.
        max_rows: With num_items, the largest number of prefixes of a level that a pass may keep, see `BeamSearch`.
        scoring: The tokens over which a token's probability is normalised. "vocabulary" takes all tokens of the model,
            as vLLM's own beam search does; "allowed" the legal tokens; "full" the tokens of the level, all of which are
            requested. All are those of `BeamSearch`. With "allowed", no request is made for beams
            without a choice.

    Examples:
        >>> search = LogprobBeamSearch(index, VllmServer("http://localhost:8000", model="m"), code_tokens=tokens, num_items=50)
        >>> result = search.run(prompts, filters=[fresh, None])
        >>> result.item_ids[0][:10], result.scores[0, :10]
    """

    def __init__(
        self,
        index: Trie | Version,
        model: LogprobModel,
        *,
        code_tokens: CodeTokensLike = None,
        eos_token_id: int | None = None,
        num_beams: int | Sequence[int] | None = None,
        scoring: Scoring = "vocabulary",
        num_items: int | None = None,
        max_rows: int = 512,
    ) -> None:
        check_choice("scoring", scoring, Scoring)
        version = Version.of(index)
        beams = beams_of_search(version.num_levels, num_beams, num_items, max_rows)
        config = SearchConfig.of(version, beams, "allowed" if scoring == "allowed" else "full")
        super().__init__(index, config, "cpu", "auto", num_items=beams[-1], proves=num_beams is None)
        self.model, self.scoring = model, scoring
        self.tokens = CodeTokens.for_index(code_tokens, version, eos_token_id)

    def __repr__(self) -> str:
        return f"LogprobBeamSearch({counted(self.version.num_items, 'item')}, {self.model!r}, scoring={self.scoring!r})"

    def run(
        self,
        prompts: Sequence[Sequence[int]],
        filters: BatchFilters = None,
        deny: DenyLists = None,
        *,
        allow_partial: bool = False,
    ) -> LogprobSearchResult:
        """Decode a batch of prompts (tokens), each with its own filter and its own denied items.

        The engine is called once per level, with a query for each beam that has a choice (with "allowed"; otherwise for each
        beam). An item is returned only if all of its scores arrived.

        Args:
            prompts: The tokens of each prompt.
            filters: As for `BeamSearch.run`.
            deny: As for `BeamSearch.run`.
            allow_partial: If true and the engine fails a request, the others are answered and `failures` names it; otherwise
                its InferenceError is raised.

        Raises:
            ArgumentError: If the arguments do not fit each other.
            ForeignFilterError: If a filter was made for another index.
            InferenceError: If the engine fails.
        """
        requests = check_batch(self.version, len(prompts), filters, deny)
        rounds = _Rounds(self, [_checked(prompt, number) for number, prompt in enumerate(prompts)], allow_partial)

        def search(config: SearchConfig, cut: Cut | None) -> SearchResult:
            model = ModelCalls(rounds.step_fn, more_fn=rounds.more_fn if self._proves else None)
            return self._run(requests, model, rounds.constraint, config, cut=cut)

        result = self._passes(requests, search, has_spares=self._proves)
        if rounds.failures and result.bound is not None:  # nothing is proved of a request that the engine failed
            bound_B = result.bound.copy()
            bound_B[list(rounds.failures)] = np.inf
            result = replace(result, bound=bound_B)
        return LogprobSearchResult(**vars(result), failures=rounds.failures, num_queries=rounds.num_queries)


class _Rounds:
    """One search: the tokens of its beams, and their log-probabilities from the engine."""

    def __init__(self, search: LogprobBeamSearch, prompts: Sequence[list[int]], allow_partial: bool) -> None:
        self._search, self._prompts, self._allow_partial = search, prompts, allow_partial
        self._levels: list[NDArray[np.int64]] = []  # the codes of the beams that ran, for each number of codes
        self.failures: dict[int, InferenceError] = {}
        self.num_queries = 0

    def step_fn(self, codes_BK: NDArray[np.int64] | None, parents_BK: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return the codes of each beam so far, int64 (B, K, T): what stands for logits until the legal children are known."""
        if codes_BK is None or parents_BK is None:
            self._levels = [np.empty((len(self._prompts), 1, 0), np.int64)]
            return self._levels[0]
        return self.more_fn(codes_BK, parents_BK, len(self._levels) - 1)

    def more_fn(self, codes_BJ: NDArray[np.int64], parents_BJ: NDArray[np.int64], level: int) -> NDArray[np.int64]:
        """Return the codes of more beams, (B, J, level + 1); they extend the beams that have run with one code less."""
        before_BJT = np.take_along_axis(self._levels[level], parents_BJ[:, :, None], 1)
        codes_BJT = np.concatenate([before_BJT, codes_BJ[:, :, None]], 2)
        ran = self._levels[level + 1 : level + 2]
        self._levels[level + 1 : level + 2] = [np.concatenate([*ran, codes_BJT], 1)]
        return codes_BJT

    def constraint(
        self, bound: BoundIndex, requests: Requests, hi_SB: NDArray[np.int64], config: SearchConfig
    ) -> TrieConstraint:
        filters = bound.ops.bind_filters(bound.arrays, requests)
        return _AskingConstraint(config, hi_SB, partial(self._launch, bound, filters))

    def _launch(
        self,
        bound: BoundIndex,
        filters: object,
        level: int,
        beams: HostBeams,
        codes_BKT: NDArray[np.int64],
        num_beams: int,
    ) -> tuple[HostBeams, None]:
        children = bound.children(level, beams, filters)
        log_p_C = self._log_p(level, beams, children, codes_BKT).astype(np.float32)
        lse_R = np.zeros(beams.scores.size, np.float32)
        chosen = extend_ragged(children.legal, log_p_C, lse_R, beams.scores, num_beams=num_beams, where=f"at level {level}")
        return children.beams_at(*chosen), None

    def _log_p(self, level: int, beams: HostBeams, children: TrieChildren, codes_BKT: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return log p of each child under the search's scoring; -inf for the children of a request that the engine failed."""
        scoring, num_rows, legal = self._search.scoring, children.num_rows, children.legal
        row_C = legal.row_C
        tokens = self._search.tokens.levels[level]
        check_end_token(tokens, legal.code_C)
        token_C = tokens.token_V[legal.code_C]
        row_R, first_R, size_R = np.unique(row_C, return_index=True, return_counts=True)
        end_code = self._search.config.end_code
        certain_R = np.zeros(len(row_R), np.bool_) if level == 0 or end_code is None else beams.code.flat[row_R] == end_code
        if scoring == "allowed":
            certain_R |= size_R == 1
        spans = [(int(row), slice(first, first + size)) for row, first, size in zip(row_R, first_R, size_R, strict=True)]
        spans = [one for one, certain in zip(spans, certain_R, strict=True) if not certain]
        queries = [
            TokenQuery(
                prefix=self._prefix(row, num_rows, codes_BKT),
                tokens_C=tokens.sorted_2K[0] if scoring == "full" else token_C[span],
            )
            for row, span in spans
        ]
        self.num_queries += len(queries)
        log_p_C = np.zeros(len(token_C))
        for (row, span), query, answer in zip(spans, queries, answers_of(self._search.model, queries), strict=True):
            if isinstance(answer, InferenceError):
                if not self._allow_partial:
                    raise answer
                self.failures.setdefault(row // num_rows, answer)
            elif scoring == "full":
                # -inf, not NaN, if the engine excludes every token of the level
                log_p_level = log_softmax(answer.astype(np.float64), np.zeros(len(answer), np.int64))
                log_p_C[span] = log_p_level[np.searchsorted(query.tokens_C, token_C[span])]
            else:
                log_p_C[span] = answer
        if scoring == "allowed":
            log_p_C = log_softmax(log_p_C, row_C)
        if self.failures:
            log_p_C[np.isin(row_C // num_rows, list(self.failures))] = -np.inf
        return log_p_C

    def _prefix(self, row: int, num_rows: int, codes_BKT: NDArray[np.int64]) -> list[int]:
        request, beam = divmod(row, num_rows)
        levels = zip(self._search.tokens.levels, codes_BKT[request, beam].tolist(), strict=False)
        return self._prompts[request] + [int(tokens.token_V[code]) for tokens, code in levels]


class _AskingConstraint(TrieConstraint):
    """A trie whose rounds get codes in the place of logits, and ask for the log-probabilities of legal children themselves."""

    def read(self, number: int, beams: Beams[object], logits: object) -> Any:
        return logits


def _checked(prompt: Sequence[int], number: int) -> list[int]:
    try:
        tokens = np.asarray(prompt)
    except ValueError:  # lists of different lengths
        tokens = np.empty(0, np.int64)
    if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu" or tokens.min() < 0:
        raise ArgumentError(f"prompt {number} is {str(prompt)[:80]}: expected a list of at least one token id, 0 or more")
    return tokens.astype(np.int64).tolist()
