"""Block tables of a beam search: pages of keys and values that beams share until one of them writes (copy on write).

    fork    a beam takes its parent's pages; pages that no beam refers to are free again
    write   the page of the next token is copied if another beam refers to it, and a new one is taken at the end of a page

As PagedAttention does it (Kwon et al., 2023, section 4.4): a prompt's pages exist once, only last pages are copied.

Shapes: B requests, K beams, T pages of a beam at most, X pages in all, C copies.
"""

# pyright: basic, reportCallIssue=false, reportArgumentType=false
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.jit import njit

__all__ = ["BlockTables"]

Array = NDArray[Any]


class BlockTables:
    """Which pages hold the tokens of each beam, in order.

    lengths_B: tokens of each prompt. max_new: tokens that a beam adds at most. The first pages are those of the prompts, which
    stay in use, so that a search can start again (`restart`).

    table_RT: int32, the pages of row b x K + k; at first one row a prompt. peak: pages in use at most so far.
    """

    def __init__(self, lengths_B: Array, page: int, max_new: int) -> None:
        self.page, self._lengths_B, self._max_new = page, lengths_B.astype(np.int64), max_new
        counts_B = -(-self._lengths_B // page)
        self.num_prompt_pages = int(counts_B.sum())
        width = int((-(-(self._lengths_B + max_new) // page)).max(initial=0))
        self._prompts_BT = np.zeros((len(lengths_B), width), np.int32)
        for row_N, count, end in zip(self._prompts_BT, counts_B, np.cumsum(counts_B), strict=True):
            row_N[:count] = np.arange(end - count, end)
        self._refs_X = np.zeros(self.num_prompt_pages, np.int32)
        self.restart()

    def restart(self) -> None:
        """Drop the beams and keep the prompts."""
        self.table_RT, self._beams, self._tokens_B = self._prompts_BT, 1, self._lengths_B
        self._refs_X[:] = 0
        self._refs_X[: self.num_prompt_pages] = 2  # the row itself, and the prompt for the next search
        self._free = np.arange(len(self._refs_X) - 1, self.num_prompt_pages - 1, -1, dtype=np.int32)
        self._num_free = np.array([len(self._free)])
        self.peak = self.num_prompt_pages

    @property
    def capacity(self) -> int:
        """X: page numbers are below this."""
        return len(self._refs_X)

    def extend(self, parents_BK: Array, num_new: int) -> Array:
        """Let beams follow their parents and make room for `num_new` tokens of each; the pages to copy, int32 (C, 2): from, to.

        Copy before any token is written. Cost: two passes over the table.
        """
        requests, beams = parents_BK.shape
        self._reserve(requests * beams)
        after_RT = np.zeros((requests * beams, self.table_RT.shape[1]), np.int32)
        copies_C2 = np.empty((requests * beams, 2), np.int32)
        state = self.table_RT, self._beams, parents_BK, self._tokens_B, num_new, self.page
        pages = self._refs_X, self._free, self._num_free
        count = _extend(*state, *pages, after_RT, copies_C2)
        self.table_RT, self._beams, self._tokens_B = after_RT, beams, self._tokens_B + num_new
        self.peak = max(self.peak, self.capacity - int(self._num_free[0]))
        return copies_C2[:count]

    def _reserve(self, rows: int) -> None:
        """Have pages for so many beams: the prompts', and of each beam those that hold its own tokens."""
        own = int((-(-(self._lengths_B + self._max_new) // self.page) - self._lengths_B // self.page).max(initial=0))
        grown = self.num_prompt_pages + rows * own - self.capacity
        if grown > 0:
            added = np.arange(self.capacity, self.capacity + grown, dtype=np.int32)
            self._refs_X = np.concatenate([self._refs_X, np.zeros(grown, np.int32)])
            free = np.concatenate([added[::-1], self._free[: self._num_free[0]]])
            self._free, self._num_free[0] = np.resize(free, self.capacity), len(free)


@njit(cache=True, nogil=True, error_model="numpy")
def _extend(before_RT, width, parents_BK, tokens_B, num_new, page, refs_X, free, num_free, after_RT, copies_C2):
    requests, beams = parents_BK.shape
    for b in range(requests):
        used = (tokens_B[b] + page - 1) // page
        for k in range(beams):
            for n in range(used):
                x = before_RT[b * width + parents_BK[b, k], n]
                after_RT[b * beams + k, n] = x
                refs_X[x] += 1
        for k in range(width):
            for n in range(used):
                x = before_RT[b * width + k, n]
                refs_X[x] -= 1
                if refs_X[x] == 0:
                    free[num_free[0]] = x
                    num_free[0] += 1
    count = 0
    for b in range(requests):
        used = (tokens_B[b] + page - 1) // page
        last = (tokens_B[b] + num_new - 1) // page
        for row in range(b * beams, (b + 1) * beams):
            for n in range(tokens_B[b] // page, last + 1):
                old = after_RT[row, n]
                if n < used and refs_X[old] == 1:
                    continue
                num_free[0] -= 1
                x = free[num_free[0]]
                refs_X[x] = 1
                after_RT[row, n] = x
                if n < used:
                    refs_X[old] -= 1
                    copies_C2[count] = old, x
                    count += 1
    return count
