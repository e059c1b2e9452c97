"""Constrained decoding inside Hugging Face's `model.generate`: a logits processor and a callback.

Neither imports transformers: any caller of `processor(input_ids, scores)` with whole sequences will do (tested with 5.x).

Shapes: B requests, R rows of a call (B x beams, a request's rows together), T tokens of a row (prompt included), t of them
generated, W tokens of the model, S segments, L levels, K sequences returned for a request, C children of a prefix.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode.results import BatchFilters, DenyLists, SearchResult, check_batch, collect_items
from leafbeam.errors import ArgumentError, check_choice, counted
from leafbeam.index import Trie, Version
from leafbeam.integrations.generate_call import GenerateCall, changed_after
from leafbeam.integrations.masking import ScoreMasker
from leafbeam.integrations.prefixes import LegalTokens, PrefixTracker, occurs
from leafbeam.model.code_tokens import CodeTokens, CodeTokensLike, check_sequences
from leafbeam.ops.backend import to_numpy
from leafbeam.ops.constrain import Scoring


class TrieLogitsProcessor:
    """A logits processor with which `generate` returns only items of the index that each request's filter allows.

    Each call gets whole sequences. The leaf ranges of a row follow from its prefix in the previous call, whatever the order of
    the beams, and only the scores of legal tokens are read. One object serves one `generate` at a time, any number in turn.

    `num_tokens` is the number of tokens of a whole item (of the longest with its end, in an index of sequences): the
    `max_new_tokens`.

    Args:
        index: A trie, or a version of a catalog, which this object holds.
        code_tokens: For each level the token of code 0, of code 1, and so on; or a leafbeam vocabulary; or `CodeTokens`, such
            as `tokens` of another processor. None is for an index of sequences (`Trie.from_sequences`), whose codes are tokens.
        eos_token_id: The model's end token, which must not be the token of a code. After the last level it is the only legal
            one.
        prompt_length: The number of columns of the prompts passed to `generate`, with padding: `input_ids.shape[1]` (1 for
            encoder-decoder models, the start token). Prompts of different lengths are padded on the left.
        filters: As for `BeamSearch.run`: one filter for all requests or one for each. A request's beams and return sequences
            share it. A request with nothing allowed ends at once and has an empty result.
        deny: Item ids for each request, as for `BeamSearch.run`.
        scoring: The tokens over which a legal token's score is normalised. "full" takes the tokens of its level and
            "allowed" the legal ones (both as in `BeamSearch`); "vocabulary" leaves scores unchanged, which under beam
            search are normalised over all tokens of the model. Greedy decoding and sampling give the same items under
            all three.
        in_place: If true, it writes into the scores that `generate` passes, which saves a tensor. This is safe under beam
            search; without beams it would also change what `output_logits=True` returns.

    Raises:
        ArgumentError: If the tokens do not fit the index, or another argument is invalid.
        FilterError: If the number of filters is not the number of requests.
        ForeignFilterError: If a filter was made for another index.

    Examples:
        >>> legal = TrieLogitsProcessor(index, code_tokens=tokens, eos_token_id=2, prompt_length=inputs.input_ids.shape[1])
        >>> sequences = model.generate(**inputs, logits_processor=[legal], num_beams=20, num_return_sequences=20,
        ...                            max_new_tokens=legal.num_tokens, length_penalty=0.0)
        >>> legal.results(sequences, num_return_sequences=20).item_ids
    """

    def __init__(
        self,
        index: Trie | Version,
        *,
        code_tokens: CodeTokensLike = None,
        eos_token_id: int,
        prompt_length: int,
        filters: BatchFilters = None,
        deny: DenyLists = None,
        scoring: Scoring = "full",
        in_place: bool = False,
    ) -> None:
        check_choice("scoring", scoring, Scoring)
        if prompt_length < 0:
            raise ArgumentError(f"prompt_length is {prompt_length}: expected the number of columns of the prompts, 0 or more")
        self.version = Version.of(index)
        self.tokens = CodeTokens.for_index(code_tokens, self.version, eos_token_id)
        self.eos_token_id = eos_token_id
        self.prompt_length = prompt_length
        self.scoring: Scoring = scoring
        self.in_place = in_place
        self._requests = check_batch(self.version, _num_requests(filters, deny), filters, deny)
        self._prefixes = PrefixTracker(self.version, self.tokens, self._requests)
        self._variable_length = self.version.segments[0].trie.end_code is not None
        self._masker = ScoreMasker(self._prefixes, self.tokens, eos_token_id, self._variable_length, scoring)
        self._max_token = max(self.tokens.max_token, eos_token_id)
        self._batch = len(self._requests)
        self._last_depth = -1
        self._call: GenerateCall | None = None
        self._returned: set[tuple[int, int]] = set()  # (requests, sequences of each) of the calls of `generate` so far
        self.num_tokens = self.version.num_levels

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of the legal tokens of each row, -inf for all others.

        input_ids (R, T) integers, scores (R, W) floating point, on any device. No row is all -inf: one that has ended, or whose
        legal tokens other processors have excluded, has its end token at -1e20. Raises ArgumentError, LogitsError.
        """
        # Every access to a tensor counts: between a model's layers, a line of Python costs as much as a row of scores.
        try:
            (rows, columns), (score_rows, width) = input_ids.shape, scores.shape
        except ValueError:
            raise self._shape_error(input_ids, scores) from None
        depth = columns - self.prompt_length
        if depth < 0 or score_rows != rows or width <= self._max_token or rows % self._batch:
            raise self._shape_error(input_ids, scores)
        if depth == 0 or depth != self._last_depth + 1:
            self._begin(rows)
        self._last_depth = depth
        out = scores if self.in_place else torch.empty_like(scores)
        if depth < self.num_tokens:
            was_known = self._masker.write_legal(input_ids, self.prompt_length, depth, scores, out)
        else:
            was_known = self._prefixes.advance(input_ids, self.prompt_length, self.num_tokens)
            complete = depth == self.num_tokens and not self._variable_length  # else all rows have ended
            ended_R = ~self._prefixes.legal_R(self.num_tokens) if complete else np.ones(rows, np.bool_)
            self._masker.write_end(ended_R, scores[:, self.eos_token_id] if self.scoring == "vocabulary" else 0.0, out)
        if not was_known and not self._prefixes.legal_R(min(depth, self.num_tokens)).any():
            raise ArgumentError(
                f"no row begins an allowed item with its {counted(depth, 'token')} after the prompt (first row: "
                f"{input_ids[0, self.prompt_length :].tolist()}): is prompt_length={self.prompt_length} the number of columns "
                f"of the prompts? {changed_after(self, self._call, if_any=True)}".rstrip()
            )
        return out

    def _begin(self, num_rows: int) -> None:
        """Check the settings of the `generate` that begins. Raises ArgumentError. Warns GenerationSettingsWarning."""
        self._call = GenerateCall.current()
        if self._call is None:
            return
        same_length = not self._variable_length
        self._call.check(
            eos_token_id=self.eos_token_id, is_code=self._is_code, num_tokens=self.num_tokens, same_length=same_length
        )
        self._returned.add((num_rows // self._call.rows_per_request, self._call.num_return_sequences))

    def _is_code(self, token: int) -> bool:
        return token != self.eos_token_id and occurs(self.version, self.tokens, token)

    def results(self, sequences: Tensor, scores: Tensor | None = None, *, num_return_sequences: int = 1) -> SearchResult:
        """Return the items in the output of `generate`, best first, as `BeamSearch.run` returns them.

        Beams without an item (fewer legal items than beams) and repeated items are left out (see `num_valid`).

        Args:
            sequences: Shape (B x num_return_sequences, T), with the prompts.
            scores: The `sequences_scores` of `generate`; without them the scores are NaN.
            num_return_sequences: The number of sequences of each request.

        Raises:
            ArgumentError: If the shapes do not fit, or `max_new_tokens` was too small for whole items.
        """
        width = num_return_sequences
        batch_size = len(sequences) // max(1, width)
        if width < 1 or batch_size * width != len(sequences) or len(self._requests) not in (1, batch_size):
            requests = "any number of requests" if len(self._requests) == 1 else counted(len(self._requests), "request")
            raise ArgumentError(
                f"{counted(len(sequences), 'sequence is', 'sequences are')} not num_return_sequences={width} for each "
                f"of {requests}: pass the number passed to `generate`"
            )
        if scores is not None and tuple(scores.shape) != (len(sequences),):
            raise ArgumentError(
                f"the scores have shape {tuple(scores.shape)}: expected one for each of {counted(len(sequences), 'sequence')}"
            )
        check_sequences(sequences, self.prompt_length)
        self._check_requests(sequences, width)
        scores_R = np.full(len(sequences), np.nan, np.float32) if scores is None else to_numpy(scores)
        if scores is not None and np.isnan(scores_R).any():
            row = int(np.isnan(scores_R).argmax())
            raise ArgumentError(
                f"the score of sequence {row}, of request {row // width}, is NaN. {changed_after(self, self._call)}"
            )
        tokens_RL = self._whole_items(to_numpy(sequences)[:, self.prompt_length :])
        self._check_complete(tokens_RL, sequences.shape[1] - self.prompt_length)
        self._prefixes.advance(torch.from_numpy(tokens_RL), 0, self.num_tokens)
        rows_of = _distinct(tokens_RL, self._prefixes.legal_R(self.num_tokens), width)
        if not all(len(rows) for rows in rows_of):
            self._check_lost(tokens_RL, [request for request, rows in enumerate(rows_of) if not len(rows)], width)
            self._prefixes.advance(torch.from_numpy(tokens_RL), 0, self.num_tokens)
        ranges_2SBK = np.zeros((2, len(self.version.segments), batch_size, width), np.int64)
        scores_BK = np.full((batch_size, width), -np.inf, np.float32)
        for request, rows in enumerate(rows_of):
            ranges_2SBK[:, :, request, : len(rows)] = self._prefixes.ranges_D2SR[self.num_tokens][:, :, rows]
            scores_BK[request, : len(rows)] = scores_R[rows]
        num_valid_B = np.array([len(rows) for rows in rows_of], np.int64)
        requests = self._requests * (batch_size // len(self._requests))
        return collect_items(self.version, requests, (ranges_2SBK[0], ranges_2SBK[1]), scores_BK, num_valid_B, width)

    def _shape_error(self, input_ids: Tensor, scores: Tensor) -> ArgumentError:
        """Return the error for arguments of a call that do not fit."""
        check_sequences(input_ids, self.prompt_length)
        rows = len(input_ids)
        if rows % self._batch:
            return ArgumentError(
                f"`generate` runs {counted(rows, 'row')}, but filters or deny name {counted(self._batch, 'request')}: "
                "pass one entry for each row of "
                f"the prompts (its beams and return sequences share it)"
            )
        return ArgumentError(
            f"the scores have shape {tuple(scores.shape)}: expected {counted(rows, 'row')} over a vocabulary of more than "
            f"{counted(self._max_token, 'token')}, the max_token of code_tokens and eos_token_id"
        )

    def _check_complete(self, tokens_RL: NDArray[np.int64], length: int) -> None:
        """Raise ArgumentError if the generation stopped after `length` tokens inside an item."""
        if self._last_depth < length < self.num_tokens:  # later calls gave dead ends their end token, which `generate` cuts off
            self._prefixes.advance(torch.from_numpy(tokens_RL), 0, length)
            unfinished_R = self._prefixes.legal_R(length) & ~(tokens_RL[:, :length] == self.eos_token_id).any(1)
            if unfinished_R.any():
                has_room = self._call is not None and self._call.max_new_tokens >= self.num_tokens
                remedy = f"pass max_new_tokens={self.num_tokens} (num_tokens of this processor)"
                remedy = "pass no stopping criterion or time limit that ends items" if has_room else remedy
                raise ArgumentError(
                    f"`generate` stopped after {counted(length, 'token')} inside "
                    f"{counted(int(unfinished_R.sum()), 'item')}, and an item has up to "
                    f"{self.num_tokens}: {remedy}"
                )

    def _check_requests(self, sequences: Tensor, width: int) -> None:
        """Raise ArgumentError unless each `width` rows in turn are the sequences of one request."""
        returned = {each for requests, each in self._returned if requests * each == len(sequences)}
        prompts = sequences[:, : self.prompt_length].unflatten(0, (-1, width))
        if (returned and width not in returned) or bool((prompts != prompts[:, :1]).any()):
            each = counted(max(returned), "sequence") if returned else "fewer sequences"
            raise ArgumentError(
                f"num_return_sequences is {width}, but `generate` returned {each} for each request: pass the number passed to "
                "`generate`"
            )

    def _check_lost(self, tokens_RL: NDArray[np.int64], requests: Sequence[int], width: int) -> None:
        """Raise ArgumentError for a request without an item if a processor after this one took its items away."""
        if self._call is None:
            return
        own, has_beams = self._call.processors_after(self), (self._call.config.num_beams or 1) > 1
        length_R, was_legal_R = np.zeros(len(tokens_RL), np.int64), np.ones(len(tokens_RL), np.bool_)
        for depth in range(self.num_tokens):
            self._prefixes.advance(torch.from_numpy(tokens_RL), 0, depth)
            was_legal_R &= self._prefixes.legal_R(depth)
            length_R[was_legal_R] = depth
        self._prefixes.advance(torch.from_numpy(tokens_RL), 0, 0)
        has_items_R = self._prefixes.legal_R(0)
        for row in (request * width + row for request in requests for row in range(width)):
            token = int(tokens_RL[row, length_R[row]])
            # Where processors before this one left nothing, a row has its end token; beams have any tokens there.
            is_excluded = token not in (-1, self.eos_token_id) and not has_beams
            if has_items_R[row] and (own or is_excluded):
                after = f"after {counted(int(length_R[row]), 'token')} of an item"
                raise ArgumentError(
                    f"request {row // width} has no item: {after}, `generate` took one that this processor excludes. "
                    f"{changed_after(self, self._call)}"
                )

    def _whole_items(self, tokens_Rt: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens (R, L), cut or padded to whole items; in an index of sequences, with the end token after the first
        one.
        """
        tokens_RL = np.full((len(tokens_Rt), self.num_tokens), -1, np.int64)
        width = min(tokens_Rt.shape[1], self.num_tokens)
        tokens_RL[:, :width] = tokens_Rt[:, :width]
        if self._variable_length:
            tokens_RL[np.logical_or.accumulate(tokens_RL == self.eos_token_id, axis=1)] = self.eos_token_id
        return tokens_RL


def _distinct(tokens_RL: NDArray[np.int64], legal_R: NDArray[np.bool_], width: int) -> list[NDArray[np.int64]]:
    """Return for each request (`width` rows) its rows that are items, each item once."""
    distinct: list[NDArray[np.int64]] = []
    for first in range(0, len(tokens_RL), width):
        rows = {tokens_RL[row].tobytes(): row for row in range(first + width - 1, first - 1, -1) if legal_R[row]}
        distinct.append(np.sort(np.fromiter(rows.values(), np.int64, len(rows))))
    return distinct


def _num_requests(filters: BatchFilters, deny: DenyLists) -> int:
    """Return the length of the lists; 1 if neither is a list."""
    return next((len(values) for values in (filters, deny) if isinstance(values, Sequence)), 1)


def prefix_allowed_tokens_fn(
    index: Trie | Version,
    *,
    code_tokens: CodeTokensLike = None,
    eos_token_id: int,
    prompt_length: int,
    filters: BatchFilters = None,
    deny: DenyLists = None,
) -> Callable[[int, Tensor], list[int]]:
    """Return a function (request number, whole sequence) -> legal tokens; `TrieLogitsProcessor` does the same much faster.

    The arguments are those of `TrieLogitsProcessor`. The tokens ascend by code; they are [eos_token_id] if an item is complete
    or no token is legal, because transformers raises on an empty list. A call costs a look-up for one of the last few thousand
    prefixes, otherwise a search and the listing of its children.

    Examples:
        >>> model.generate(**inputs, num_beams=20, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn(index, ...))
    """
    version = Version.of(index)
    tokens = CodeTokens.for_index(code_tokens, version, eos_token_id)
    requests = check_batch(version, _num_requests(filters, deny), filters, deny)
    legal = LegalTokens(version, tokens, eos_token_id, requests)
    same_length = version.segments[0].trie.end_code is None

    def is_code(token: int) -> bool:
        return token != eos_token_id and occurs(version, tokens, token)

    def allowed_tokens(batch_id: int, input_ids: Tensor) -> list[int]:
        request = int(batch_id) if len(requests) > 1 else 0
        if not 0 <= request < len(requests):
            raise ArgumentError(
                f"request {request} has no entry in filters or deny, which name {counted(len(requests), 'request')}"
            )
        check_sequences(input_ids[None], prompt_length)
        generated = input_ids[prompt_length : prompt_length + version.num_levels].tolist()
        if not generated and batch_id == 0 and (call := GenerateCall.current()) is not None:
            call.check(eos_token_id=eos_token_id, is_code=is_code, num_tokens=version.num_levels, same_length=same_length)
        return legal.after(request, generated)

    return allowed_tokens
