"""Sequences of different lengths as a table of codes: a reserved end code after each, and again down to the last level.

    a sequence of n tokens below V becomes  t1 t2 ... tn V V ... V   over levels 0 .. longest

So a level has V + 1 codes, tokens keep their numbers, and the end is the last. A sequence that is the beginning of another,
the empty one included, ends in a leaf of its own. Shapes: N sequences, T tokens in all, L = longest + 1 levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, CodesError
from leafbeam.index.build import MAX_CODEBOOK, MAX_LEVELS

__all__ = ["SequenceTable", "check_end_codes"]

_SLICE = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class SequenceTable:
    """The padded (N, L) table of codes, whose rows are made when they are read.

    tokens_T: uint32, all sequences joined. sequence_indptr: int64, (N + 1,), where each begins. `table[a:b]` is a uint32 block
    of rows; `len` and `shape` are the whole table's. Cost: 4 bytes a token and 8 a sequence.
    """

    tokens_T: NDArray[np.uint32]
    sequence_indptr: NDArray[np.int64]
    vocabulary_size: int
    num_levels: int

    @classmethod
    def of(
        cls,
        sequences: Sequence[Sequence[int] | NDArray[np.integer]],
        vocabulary_size: int,
        max_length: int | None = None,
    ) -> SequenceTable:
        """Check the sequences and lay them end to end.

        max_length: leave room for sequences of this length in later segments; None: as long as the longest.
        Raises CodesError where a token is not a whole number below `vocabulary_size` or a sequence is too long, ArgumentError
        where the other two are out of range.
        """
        if not 1 <= vocabulary_size < MAX_CODEBOOK:
            raise ArgumentError(f"vocabulary_size is {vocabulary_size:,}: expected 1 to 2^31 - 1 (one code is the end's)")
        longest = MAX_LEVELS - 1
        if max_length is not None and not 0 <= max_length <= longest:
            raise ArgumentError(f"max_length is {max_length}: expected 0 to {longest}")
        lengths_N = np.fromiter((_length(one, place) for place, one in enumerate(sequences)), np.int64, len(sequences))
        limit = longest if max_length is None else max_length
        if lengths_N.max(initial=0) > limit:
            place = int(np.argmax(lengths_N > limit))
            raise CodesError(f"sequence {place:,} has {lengths_N[place]:,} tokens: expected at most {limit}")
        sequence_indptr = np.concatenate([[0], np.cumsum(lengths_N)])
        parts = [
            _flatten(sequences[begin : begin + _SLICE], sequence_indptr[begin : begin + _SLICE + 1], begin, vocabulary_size)
            for begin in range(0, len(sequences), _SLICE)
        ]
        deepest = int(lengths_N.max(initial=0)) if max_length is None else max_length
        return cls(
            tokens_T=np.concatenate([np.empty(0, np.uint32), *parts]),
            sequence_indptr=sequence_indptr,
            vocabulary_size=vocabulary_size,
            num_levels=deepest + 1,
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
        starts, tokens = (
            self.sequence_indptr[begin : end + 1],
            self.tokens_T[self.sequence_indptr[begin] : self.sequence_indptr[end]],
        )
        block = np.full((end - begin, self.num_levels), self.end_code, np.uint32)
        lengths = np.diff(starts)
        places = np.arange(len(tokens)) - np.repeat(starts[:-1] - starts[0], lengths)
        block[np.repeat(np.arange(end - begin), lengths), places] = tokens
        return block


def check_end_codes(codes_NL: NDArray[np.integer], sizes: Sequence[int], end_code: int) -> None:
    """Raise CodesError where a table is not one of ended sequences: a code after an end, a row without one, other codebooks."""
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


def _length(sequence: Sequence[int] | NDArray[np.integer], place: int) -> int:
    try:
        return len(sequence)
    except TypeError:
        raise CodesError(f"sequence {place:,} is {sequence!r}: expected a list or an array of tokens") from None


def _flatten(
    sequences: Sequence[Sequence[int] | NDArray[np.integer]], starts: NDArray[np.int64], first: int, vocabulary_size: int
) -> NDArray[np.uint32]:
    """The tokens of some sequences end to end, checked; `first`: the number of the first, for messages."""
    refused = f"sequences {first:,} and on hold {{}}: expected whole numbers, in flat lists or arrays"
    if all(isinstance(one, np.ndarray) and one.ndim == 1 for one in sequences):
        arrays = [np.asarray(one) for one in sequences if len(one)]
        kinds = {one.dtype for one in arrays}
        if any(kind.kind not in "iu" for kind in kinds):
            raise CodesError(refused.format(" and ".join(sorted(str(kind) for kind in kinds))))
        arrays = [one.view(np.int64) if one.dtype == np.uint64 else one for one in arrays]  # no dtype holds both
        tokens = np.concatenate([np.empty(0, np.uint8), *arrays])
    else:
        try:
            tokens = np.array(list(chain.from_iterable(sequences)) or np.empty(0, np.uint8))
        except (TypeError, ValueError) as error:
            raise CodesError(refused.format(f"something else ({error})")) from error
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise CodesError(refused.format(f"{tokens.dtype} of shape {tokens.shape}"))
    bad = np.flatnonzero((tokens < 0) | (tokens >= vocabulary_size))
    if bad.size:
        sequence = int(np.searchsorted(starts - starts[0], bad[0], side="right")) - 1
        place = int(bad[0] - (starts[sequence] - starts[0]))
        raise CodesError(
            f"sequence {first + sequence:,} has token {tokens[bad[0]]} at place {place}: expected 0 <= token < "
            f"{vocabulary_size:,}, the vocabulary_size"
        )
    return tokens.astype(np.uint32)
