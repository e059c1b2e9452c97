"""From the generated tokens to leaf ranges: one child look-up for each row and step.

    before the first token: all leaves
    then, for each row: find the row of the previous call with the same tokens but the last (beams are reordered, repeated and
    dropped between steps), and below its ranges the child with the code of the last token

Shapes: S segments, B requests, R rows of a call (a request's rows together), T tokens of a row, D depths (0 to L tokens
generated), L levels, C children of all rows.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode.results import root_ranges
from leafbeam.index import Filter, Version
from leafbeam.integrations.kernels import advance_rows
from leafbeam.model.code_tokens import CodeTokens, check_end_token, check_sequences
from leafbeam.ops.constrain.cpu import step as cpu

_MAX_PREFIXES = 4096  # cached, of all requests together


class PrefixTracker:
    """The leaf ranges of the rows of a generation.

    It caches the last call of each depth, which changes no answer. Unknown rows are walked from the root, such as those of a
    generation that starts inside an item, or of a speculative one that went back.

    tokens_DRL: int64, the first d tokens of each row in the last call of depth d; -1 before. ranges_D2SR: int64, their leaf
    range (lo, hi) in each segment, empty for an illegal prefix. table: buffer of the prefix look-up.
    """

    def __init__(self, version: Version, tokens: CodeTokens, requests: Sequence[Filter]) -> None:
        self.num_requests = len(requests)
        self.num_levels = version.num_levels
        self._arrays = cpu.bind(version)
        self._bound = cpu.bind_filters(self._arrays, requests)
        self._tokens = tokens
        self._root_2SB1 = np.stack(root_ranges(version, requests))
        self._set_rows(1)
        num_segments = len(version.segments)  # a single segment stands twice in the arrays
        self.levels = [pair[:num_segments] for pair in self._arrays.levels]
        self.filters = self._bound.pair[:num_segments]

    def advance(self, sequences_RT: Tensor, prompt_length: int, depth: int) -> bool:
        """Write the leaf ranges below the first `depth` generated tokens (at most L) of each row to `ranges_D2SR[depth]`.

        sequences_RT: integers on any device, at least prompt_length + depth in a row; R a multiple of the requests. Cost: one
        search a row; int64 on the CPU is read in place. Raises ArgumentError for other types.
        Returns False if a row was unknown and all were walked from the root.
        """
        stride, apart = sequences_RT.stride()
        if not (sequences_RT.is_cpu and sequences_RT.dtype == torch.int64 and apart == 1):
            check_sequences(sequences_RT, prompt_length)
            sequences_RT = sequences_RT[:, prompt_length:].to("cpu", torch.int64).contiguous()
            prompt_length, stride = 0, sequences_RT.stride(0)
        address = sequences_RT.data_ptr()
        self.resize(len(sequences_RT))
        was_known = depth == 0 or self._step(address, stride, prompt_length, depth)
        if not was_known:
            for shallower in range(1, depth + 1):
                is_known = self._step(address, stride, prompt_length, shallower)
                assert is_known
        return was_known

    def resize(self, num_rows: int) -> None:
        """Set the number of rows, a multiple of the requests."""
        if num_rows != self.tokens_DRL.shape[1]:
            self._set_rows(num_rows // self.num_requests)

    def _set_rows(self, rows_per_request: int) -> None:
        """Begin with all rows of each request at its root."""
        num_rows, num_depths = self.num_requests * rows_per_request, self.num_levels + 1
        self.rows_per_request = rows_per_request
        self.tokens_DRL = np.full((num_depths, num_rows, self.num_levels), -1, np.int64)
        self.ranges_D2SR = np.zeros((num_depths, *self._root_2SB1.shape[:2], num_rows), np.int64)
        self.ranges_D2SR[0].reshape(*self._root_2SB1.shape[:3], rows_per_request)[:] = self._root_2SB1
        self.table = np.empty(2 << num_rows.bit_length(), np.int64)

    def _step(self, address: int, stride: int, prompt_length: int, depth: int) -> bool:
        level, sorted_2K = self.levels[depth - 1], self._tokens.levels[depth - 1].sorted_2K
        sequences, state = (address, stride, prompt_length, depth), (self.tokens_DRL, self.ranges_D2SR, self.table)
        return advance_rows(level, self.filters, sorted_2K, *sequences, self.rows_per_request, *state)

    def legal_R(self, depth: int) -> NDArray[np.bool_]:
        """Return which rows are legal prefixes."""
        ranges_2SR = self.ranges_D2SR[depth]
        return np.logical_or.reduce(ranges_2SR[0] < ranges_2SR[1])

    def legal_codes(self, depth: int, ranges_2SR: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (row_indptr, code_C): the legal codes of rows at these ranges of a depth, ragged, ascending within a row."""
        lo_SBK, hi_SBK = ranges_2SR.reshape(2, -1, self.num_requests, self.rows_per_request)
        return cpu.children(self._arrays, depth, lo_SBK, hi_SBK, self._bound)[:2]


def occurs(version: Version, tokens: CodeTokens, token: int) -> bool:
    """Return whether an item of the version has this token at any level.

    This costs a pass over the levels of which it is a code.
    """
    levels = [pair for segment in version.segments for pair in zip(segment.trie.levels, tokens.levels, strict=True)]
    return any((code := own.code_of(token)) >= 0 and bool((level.plain_codes == code).any()) for level, own in levels)


class LegalTokens:
    """The legal tokens after one prefix at a time, with those of the last few thousand prefixes cached.

    `eos_token_id` is the token where nothing else is legal. `arrays` are those of `cpu.bind(version)`, which several may share.
    """

    def __init__(
        self,
        version: Version,
        tokens: CodeTokens,
        eos_token_id: int,
        requests: Sequence[Filter],
        arrays: cpu.VersionArrays | None = None,
    ) -> None:
        self._version, self._tokens, self._eos = version, tokens, eos_token_id
        self._arrays = cpu.bind(version) if arrays is None else arrays
        self._bound = [cpu.bind_filters(self._arrays, [request]) for request in requests]
        self._roots = [root_ranges(version, [request]) for request in requests]
        self._ends = version.segments[0].trie.end_code is not None
        self._children = lru_cache(maxsize=_MAX_PREFIXES)(self._list)

    def after(self, request: int, generated: Sequence[int]) -> list[int]:
        """Return the tokens that may follow, ascending by code; [eos_token_id] if an item is complete or nothing is legal."""
        return self._children(request, *generated)[2].copy()

    def ranges(self, request: int, generated: Sequence[int]) -> NDArray[np.int64] | None:
        """Return the leaf ranges (lo and hi, by segment) of a prefix; None where it is not one of an allowed item."""
        if not generated:
            return np.stack(self._roots[request])[:, :, 0, 0]
        if len(generated) > self._version.num_levels:
            return None
        codes_C, ranges_2SC, _ = self._children(request, *generated[:-1])
        code = self._tokens.levels[len(generated) - 1].code_of(generated[-1])
        child = int(np.searchsorted(codes_C, code))
        is_legal = child < len(codes_C) and int(codes_C[child]) == code
        return ranges_2SC[:, :, child] if is_legal else None

    def _list(self, request: int, *generated: int) -> tuple[NDArray[np.int64], NDArray[np.int64], list[int]]:
        """Return (code_C, lo and hi [2, S, C], tokens) of the legal children of a prefix."""
        ranges_2S, depth = self.ranges(request, generated), len(generated)
        is_complete = depth == self._version.num_levels or (self._ends and self._eos in generated)
        if ranges_2S is None or is_complete:
            return np.empty(0, np.int64), np.empty((2, len(self._version.segments), 0), np.int64), [self._eos]
        level, (lo_S11, hi_S11) = self._tokens.levels[depth], ranges_2S[:, :, None, None]
        _, code_C, lo_SC, hi_SC = cpu.children(self._arrays, depth, lo_S11, hi_S11, self._bound[request])
        check_end_token(level, code_C)
        return code_C, np.stack([lo_SC, hi_SC]), level.token_V[code_C].tolist() or [self._eos]
