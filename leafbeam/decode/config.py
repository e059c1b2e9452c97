"""The configuration of a search, whatever runs it: beams of each round, scoring, codes of each round, end code."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from operator import index, mul

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import ArgumentError, check_choice, counted, short_repr
from leafbeam.index import Version
from leafbeam.ops.constrain import Scoring, num_columns

_NUM_ITEMS = 20
_WIDENING, _MAX_WIDENING = 0.7, 6.0


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The shapes and the scoring of a search: in each round at most `num_beams` beams, and logits for `code_sizes` codes.

    With scoring "vocabulary" the logits have one more column, of any other token.

    end_code: the code after which a beam is finished; None where all items have equally many codes.
    num_nodes: the prefixes of each level, allowed or not; empty where they are not known, as in a search for every version.
    """

    num_beams: tuple[int, ...]
    code_sizes: tuple[int, ...]
    scoring: Scoring
    end_code: int | None = None
    num_nodes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_choice("scoring", self.scoring, Scoring)
        assert len(self.num_beams) == len(self.code_sizes)

    @classmethod
    def of(cls, version: Version, num_beams: int | Sequence[int], scoring: Scoring) -> SearchConfig:
        """Return the configuration for a version of an index: no round has more beams than the level has nodes."""
        nodes = tuple(map(version.num_nodes, range(version.num_levels)))
        beams = tuple(map(min, beams_of_levels(num_beams, version.num_levels), nodes))
        sizes, end_code = version.codebook_sizes, end_code_of(version)
        return cls(num_beams=beams, code_sizes=sizes, scoring=scoring, end_code=end_code, num_nodes=nodes)

    @classmethod
    def fixed(
        cls, code_sizes: Sequence[int], end_code: int | None, num_beams: int | Sequence[int], scoring: Scoring
    ) -> SearchConfig:
        """Return the configuration for any version: no round but the last has more beams than there can be prefixes."""
        num_prefixes = tuple(accumulate(code_sizes, mul))
        beams = beams_of_levels(num_beams, len(code_sizes))
        beams = (*map(min, beams, num_prefixes[:-1]), beams[-1])
        sizes = tuple(code_sizes)
        return cls(num_beams=beams, code_sizes=sizes, scoring=scoring, end_code=end_code, num_nodes=num_prefixes)

    @property
    def num_rounds(self) -> int:
        return len(self.num_beams)

    def num_columns(self, number: int) -> int:
        """Return how many logits of a beam round `number` reads."""
        return num_columns(self.code_sizes[number], self.scoring)

    def keeps_all(self, number: int) -> bool:
        """Return whether round `number` has a beam for every prefix."""
        return bool(self.num_nodes) and self.num_beams[number] >= self.num_nodes[number]

    @property
    def rows_of_rounds(self) -> list[int]:
        """Return the number of beams that each round starts from."""
        return [self.num_rows(number) for number in range(self.num_rounds)]

    def num_rows(self, number: int) -> int:
        """Return how many beams round `number` starts from."""
        return self.num_beams[number - 1] if number else 1


def beams_of_levels(num_beams: int | Sequence[int], num_levels: int, name: str = "num_beams") -> tuple[int, ...]:
    """Return the number of beams of each level, from one number or as many. Raises an ArgumentError that names `name`."""
    try:
        beams = tuple(map(index, num_beams)) if isinstance(num_beams, Sequence) else (index(num_beams),) * num_levels
    except TypeError:  # a part of a beam, or a text
        beams = ()
    if len(beams) != num_levels or min(beams, default=1) < 1:
        raise ArgumentError(
            f"{name} is {num_beams!r}: expected a positive integer, or {num_levels} of them, one for each level"
        )
    return beams


def counts_of_batch(counts: int | Sequence[int] | NDArray[np.int64], batch_size: int, name: str) -> tuple[int, ...]:
    """Return a positive number for each request, from one number or as many. Raises ArgumentError, which says `name`."""
    try:
        found = tuple(map(index, counts)) if isinstance(counts, Sequence | np.ndarray) else (index(counts),) * batch_size
    except TypeError:  # a part of a number, or a text
        found = ()
    if len(found) != batch_size or min(found, default=1) < 1:
        expected = f"a positive integer, or {batch_size} of them, one for each request"
        raise ArgumentError(f"{name} is {short_repr(counts)}: expected {expected}")
    return found


def beams_of_search(
    num_levels: int, num_beams: int | Sequence[int] | None, num_items: int | None, max_rows: int
) -> tuple[int, ...]:
    """Return the beams of each level: those of `num_beams`, or `max_rows` of each level and `num_items` of the last one.

    Raises:
        ArgumentError: For a number below 1, or both `num_beams` and `num_items`.
    """
    if num_beams is not None:
        if num_items is not None:
            raise ArgumentError(f"num_beams={num_beams!r} and num_items={num_items!r}: expected one of them")
        return beams_of_levels(num_beams, num_levels)
    last = beams_of_levels(_NUM_ITEMS if num_items is None else num_items, 1, "num_items")
    return (*beams_of_levels(max_rows, num_levels - 1, "max_rows"), *last)


def first_width(share: float, num_items: int, scoring: Scoring) -> int:
    """Return a guess of the prefixes that a proof of `num_items` items needs at a level, if `share` of the items are allowed.

    Unless the scoring is "allowed", a prefix has the probability of its forbidden items too, so that more prefixes score above
    the last item the fewer items are allowed: measured, about the share of the allowed items to the power of -0.7.
    """
    widening = 1.0 if scoring == "allowed" else min(_MAX_WIDENING, share**-_WIDENING)
    return round(2 * num_items * widening)


def end_code_of(version: Version) -> int | None:
    """Return the code that ends a sequence; None if the items are not sequences."""
    return version.segments[0].trie.end_code


def check_length(name: str, values: object, batch_size: int) -> None:
    """Raise ArgumentError unless there is one value for each request."""
    if values is None:
        return
    if not isinstance(values, Sized) or isinstance(values, str) or getattr(values, "shape", None) == ():
        expected = f"a list with one entry for each of the {counted(batch_size, 'request')}"
        raise ArgumentError(f"{name} is {short_repr(values)}: expected {expected}")
    if len(values) != batch_size:
        raise ArgumentError(
            f"{name} has {counted(len(values), 'entry', 'entries')}: "
            f"expected one for each of the {counted(batch_size, 'request')}"
        )
