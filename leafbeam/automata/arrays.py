"""The arrays of an automaton, and the limits of its size.

Shapes: S states, E entries of rows, M masks of W words, V tokens, T bytes of all tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypedDict

import numpy as np
from numpy.typing import NDArray

from leafbeam.automata.byte_dfa import ByteDFA
from leafbeam.errors import ArgumentError, AutomatonError, counted
from leafbeam.index.bitmap import Bitmap

UNFILLED = -2  # in place of the number of a mask


class SizeLimits(TypedDict, total=False):
    """The limits of an automaton without masks, as keyword arguments; see `AutomatonLimits`."""

    max_states: int
    max_bytes: int


class Limits(SizeLimits, total=False):
    """`AutomatonLimits` as keyword arguments."""

    dense_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomatonLimits:
    """The limits of an automaton's size, and the share of the vocabulary above which a state gets a mask instead of a row."""

    max_states: int = 1_000_000
    max_bytes: int = 1 << 30
    dense_share: float = 1 / 64

    def __post_init__(self) -> None:
        if self.max_states < 1 or self.max_bytes < 1:
            raise ArgumentError(f"max_states is {self.max_states} and max_bytes {self.max_bytes}: expected 1 or more of each")
        if not (0 <= self.dense_share <= 1 and math.isfinite(self.dense_share)):
            raise ArgumentError(f"dense_share is {self.dense_share}: expected 0 (masks only) to 1 (rows only)")

    def check_states(self, num_states: int) -> None:
        """Raise AutomatonError above `max_states`."""
        if num_states > self.max_states:
            raise AutomatonError(
                f"the automaton has {counted(num_states, 'state')}: expected at most max_states={self.max_states:,}; "
                "simplify it, or raise the limit"
            )

    def checked(self, arrays: AutomatonArrays) -> AutomatonArrays:
        """Return the arrays. Raises AutomatonError if they take more than `max_bytes`."""
        nbytes = sum(arrays.parts.values())
        if nbytes > self.max_bytes:
            raise AutomatonError(
                f"the automaton takes {counted(nbytes, 'byte')}: expected at most max_bytes={self.max_bytes:,}; simplify it, "
                "or raise the limit"
            )
        return arrays


class TransitionTable(NamedTuple):
    """The legal tokens of each state.

    Args:
        row_indptr: int64. The legal tokens of state s, ascending, and their next states are the entries row_indptr[s] to
            row_indptr[s + 1] - 1; a state with a mask has no entries.
        code_E: int32, the token of each entry.
        next_E: int32, the next state of each entry.
        mask_S: int32, the mask of a state, -1 where it has a row, `UNFILLED` where it has neither yet.
        mask_MW: uint64, bit v % 64 of word v // 64 is token v.
    """

    row_indptr: NDArray[np.int64]
    code_E: NDArray[np.int32]
    next_E: NDArray[np.int32]
    mask_S: NDArray[np.int32]
    mask_MW: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AutomatonArrays:
    """The arrays of an automaton: the legal tokens, and the byte automaton that finds next states under masks.

    Args:
        dfa: The byte automaton, whose states below S are those of the automaton. It has no states if there are no masks.
        bytes_T, token_indptr: Token v is bytes_T[token_indptr[v] : token_indptr[v + 1]]; only where there are masks, or
            states without a row.
    """

    vocabulary_size: int
    table: TransitionTable
    accepting: Bitmap
    dfa: ByteDFA
    bytes_T: NDArray[np.uint8]
    token_indptr: NDArray[np.int32]

    @property
    def parts(self) -> dict[str, int]:
        """Return the bytes of each part."""
        table = self.table
        return {
            "rows": table.row_indptr.nbytes + table.code_E.nbytes + table.next_E.nbytes,
            "masks": table.mask_S.nbytes + table.mask_MW.nbytes,
            "accepting": self.accepting.nbytes,
            "walk": self.dfa.nbytes + self.bytes_T.nbytes + self.token_indptr.nbytes,
        }

    def spellings(self) -> list[bytes | None]:
        """Return the bytes of each token, None for special ones; only where `bytes_T` has them."""
        text, ends = self.bytes_T.tobytes(), self.token_indptr.tolist()
        return [text[begin:end] or None for begin, end in pairwise(ends)]

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        """Return all arrays by their names in a file."""
        return {
            **dict(zip(("row_ptr", "code", "next", "mask_of", "masks"), self.table, strict=True)),
            **dict(zip(("dfa.class", "dfa.first", "dfa.label", "dfa.next"), self.dfa.edges, strict=True)),
            "dfa.accepting": self.dfa.accepting_X.view(np.uint8),
            "accepting": self.accepting.words_W,
            "token.bytes": self.bytes_T,
            "token.start": self.token_indptr,
        }
