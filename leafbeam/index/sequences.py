"""Sequences of different lengths as a table of codes, padded with an end code.

    a sequence of n tokens below V becomes  t1 t2 ... tn V V ... V   over levels 0 .. longest

A level has V + 1 codes; tokens keep their numbers and V is the end code. A sequence that is a prefix of another, the empty one
included, so has a leaf of its own. Shapes: N sequences, T tokens in all, L = longest + 1 levels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError, counted
from leafbeam.index.level import MAX_CODEBOOK, MAX_LEVELS

_SLICE = 1 << 16

TokenSequence = Sequence[int] | NDArray[np.integer]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SequenceTable:
    """The padded (N, L) table of codes; its rows are made when they are read: `table[a:b]` is a uint32 block of them."""

    tokens_T: NDArray[np.uint32]
    sequence_indptr: NDArray[np.int64]
    vocabulary_size: int
    num_levels: int

    @classmethod
    def of(cls, sequences: Sequence[TokenSequence], vocabulary_size: int, max_length: int | None = None) -> "SequenceTable":
        """Check and join the sequences. max_length: of sequences that may come later; None: as the longest of these.

        Raises CodesError (no whole number below `vocabulary_size`, or a sequence that is too long), ArgumentError.
        """
        if not 1 <= vocabulary_size < MAX_CODEBOOK:
            raise ArgumentError(f"vocabulary_size is {vocabulary_size:,}: expected 1 to 2^31 - 1 (one code is the end's)")
        limit = MAX_LEVELS - 1
        if max_length is not None and not 0 <= max_length <= limit:
            raise ArgumentError(f"max_length is {max_length}: expected 0 to {limit}")
        lengths_N = np.fromiter((_length(sequence, n) for n, sequence in enumerate(sequences)), np.int64, len(sequences))
        limit = limit if max_length is None else max_length
        longest = int(lengths_N.max(initial=0))
        if longest > limit:
            number = int(np.argmax(lengths_N > limit))
            raise CodesError(f"sequence {number:,} has {counted(lengths_N[number], 'token')}: expected at most {limit}")
        indptr = np.concatenate([[0], np.cumsum(lengths_N)])
        parts = [
            _joined(sequences[begin : begin + _SLICE], indptr[begin : begin + _SLICE + 1], begin, vocabulary_size)
            for begin in range(0, len(sequences), _SLICE)
        ]
        return cls(
            tokens_T=np.concatenate([np.empty(0, np.uint32), *parts]),
            sequence_indptr=indptr,
            vocabulary_size=vocabulary_size,
            num_levels=1 + (longest if max_length is None else max_length),
        )

    @property
    def end_code(self) -> int:
        return self.vocabulary_size

    @property
    def codebook_sizes(self) -> tuple[int, ...]:
        return (self.vocabulary_size + 1,) * self.num_levels

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.num_levels

    def __len__(self) -> int:
        return len(self.sequence_indptr) - 1

    def __getitem__(self, rows: slice) -> NDArray[np.uint32]:
        begin, end, step = rows.indices(len(self))
        assert step == 1
        indptr = self.sequence_indptr[begin : end + 1]
        tokens, lengths = self.tokens_T[indptr[0] : indptr[-1]], np.diff(indptr)
        block = np.full((end - begin, self.num_levels), self.end_code, np.uint32)
        levels = np.arange(len(tokens)) - np.repeat(indptr[:-1] - indptr[0], lengths)
        block[np.repeat(np.arange(end - begin), lengths), levels] = tokens
        return block


def check_end_codes(codes_NL: NDArray[np.integer], sizes: Sequence[int], end_code: int) -> None:
    """Raise CodesError where the rows are not padded sequences: a code after an end, no end code, other codebooks."""
    if set(sizes) != {end_code + 1}:
        raise CodesError(f"end_code is {end_code}, the codebooks have {sorted(set(sizes))} codes: expected {end_code + 1} each")
    for begin in range(0, len(codes_NL), _SLICE):
        ended_nL = codes_NL[begin : begin + _SLICE] == end_code
        bad = np.flatnonzero(~ended_nL[:, -1] | (ended_nL[:, :-1] > ended_nL[:, 1:]).any(axis=1))
        if bad.size:
            row = begin + int(bad[0])
            raise CodesError(
                f"row {row:,} is {codes_NL[row].tolist()}: expected codes below {end_code}, then the end code {end_code} "
                f"once or more, down to the last level"
            )


def _length(sequence: TokenSequence, number: int) -> int:
    try:
        return len(sequence)
    except TypeError:
        raise CodesError(f"sequence {number:,} is {sequence!r}: expected a list or an array of tokens") from None


def _joined(
    sequences: Sequence[TokenSequence], indptr: NDArray[np.int64], first: int, vocabulary_size: int
) -> NDArray[np.uint32]:
    """Return the checked tokens of some sequences; `first`: the number of the first, for messages."""
    message = f"sequences {first:,} and on hold {{}}: expected whole numbers, in flat lists or arrays"
    if all(isinstance(sequence, np.ndarray) and sequence.ndim == 1 for sequence in sequences):
        arrays = [np.asarray(sequence) for sequence in sequences if len(sequence)]
        dtypes = {array.dtype for array in arrays}
        if any(dtype.kind not in "iu" for dtype in dtypes):
            raise CodesError(message.format(" and ".join(sorted(str(dtype) for dtype in dtypes))))
        arrays = [array.view(np.int64) if array.dtype == np.uint64 else array for array in arrays]  # no dtype holds both
        tokens = np.concatenate([np.empty(0, np.uint8), *arrays])
    else:
        try:
            tokens = np.array(list(chain.from_iterable(sequences)) or np.empty(0, np.uint8))
        except (TypeError, ValueError) as error:
            raise CodesError(message.format(f"something else ({error})")) from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise CodesError(message.format(f"{tokens.dtype} of shape {tokens.shape}"))
    bad = np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))
    if bad.size:
        number = int(np.searchsorted(indptr - indptr[0], bad[0], side="right")) - 1
        index = int(bad[0] - (indptr[number] - indptr[0]))
        raise CodesError(
            f"sequence {first + number:,} has token {tokens[bad[0]]} at index {index}: expected 0 <= token < "
            f"{vocabulary_size:,}, the vocabulary_size"
        )
    return tokens.astype(np.uint32)
