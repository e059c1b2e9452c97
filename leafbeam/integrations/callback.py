"""The callback of `generate(prefix_allowed_tokens_fn=...)`.

Shapes: S segments, C children of a prefix.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leafbeam.decode.results import check_batch, root_ranges
from leafbeam.errors import ArgumentError
from leafbeam.index import Filter, Trie, Version, VersionFilter
from leafbeam.index.items import ItemIds
from leafbeam.integrations.masking import check_end_token
from leafbeam.integrations.tokens import CodeTokens, CodeTokensLike, check_sequences
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["num_requests", "prefix_allowed_tokens_fn"]

_MAX_PREFIXES = 4096  # cached, of all requests together


@dataclass(frozen=True, kw_only=True, eq=False)
class _Children:
    """The legal children of a prefix: ascending codes, their leaf ranges, their tokens."""

    code_C: NDArray[np.int64]
    lo_SC: NDArray[np.int64]
    hi_SC: NDArray[np.int64]
    tokens: list[int]


def num_requests(filters: Filter | VersionFilter | Sequence[object] | None, deny: Sequence[object] | None) -> int:
    """The length of the lists; 1 if neither is a list."""
    return next((len(values) for values in (filters, deny) if isinstance(values, Sequence)), 1)


def prefix_allowed_tokens_fn(
    index: Trie | Version,
    *,
    code_tokens: CodeTokensLike = None,
    eos_token_id: int,
    prompt_length: int,
    filters: Filter | VersionFilter | Sequence[Filter | VersionFilter | None] | None = None,
    deny: Sequence[ItemIds | None] | None = None,
) -> Callable[[int, Tensor], list[int]]:
    """A function (request number, whole sequence) -> legal tokens; `TrieLogitsProcessor` does the same much faster.

    Arguments as for `TrieLogitsProcessor`. The tokens ascend by code; [eos_token_id] if an item is complete or no token is
    legal, because transformers raises on an empty list. Cost: a look-up for one of the last few thousand prefixes, else a
    search and the listing of its children.

    >>> model.generate(**inputs, num_beams=20, prefix_allowed_tokens_fn=prefix_allowed_tokens_fn(index, ...))
    """
    version = Version.of(index)
    tokens = CodeTokens.for_index(code_tokens, version, eos_token_id)
    requests = check_batch(version, num_requests(filters, deny), filters, deny)
    arrays = cpu.bind(version)
    bound = [cpu.bind_filters(arrays, [request]) for request in requests]
    roots = [root_ranges(version, [request]) for request in requests]
    no_ranges = np.empty((len(version.segments), 0), np.int64)
    end = _Children(code_C=no_ranges[0], lo_SC=no_ranges, hi_SC=no_ranges, tokens=[eos_token_id])
    variable_length = version.segments[0].trie.end_code is not None
    cache: OrderedDict[tuple[int, ...], _Children] = OrderedDict()

    def children(key: tuple[int, ...]) -> _Children:
        """The legal children of the tokens key[1:] of request key[0]."""
        if key in cache:
            cache.move_to_end(key)
            return cache[key]
        request, *generated = key
        lo_S11, hi_S11 = roots[request]
        if generated:
            parent = children(key[:-1])
            code = tokens.levels[len(generated) - 1].code_of(generated[-1])
            child = int(np.searchsorted(parent.code_C, code))
            if child == len(parent.code_C) or int(parent.code_C[child]) != code:
                return end
            lo_S11, hi_S11 = parent.lo_SC[:, child, None, None], parent.hi_SC[:, child, None, None]
        if len(generated) == version.num_levels or (variable_length and eos_token_id in generated):
            return end
        level = tokens.levels[len(generated)]
        _, code_C, lo_SC, hi_SC = cpu.children(arrays, len(generated), lo_S11, hi_S11, bound[request])
        check_end_token(level, code_C)
        allowed = level.token_V[code_C].tolist() or [eos_token_id]
        cache[key] = _Children(code_C=code_C, lo_SC=lo_SC, hi_SC=hi_SC, tokens=allowed)
        if len(cache) > _MAX_PREFIXES:
            cache.popitem(last=False)
        return cache[key]

    def allowed_tokens(batch_id: int, input_ids: Tensor) -> list[int]:
        request = int(batch_id) if len(requests) > 1 else 0
        if not 0 <= request < len(requests):
            raise ArgumentError(f"request {request} has no entry in filters or deny, which name {len(requests)} requests")
        check_sequences(input_ids[None], prompt_length)
        generated = input_ids[prompt_length : prompt_length + version.num_levels].tolist()
        return children((request, *generated)).tokens.copy()

    return allowed_tokens
