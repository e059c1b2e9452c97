"""What a search is, whatever runs it: beams of each round, scoring, codes of each round, end code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log2
from operator import index, mul
from typing import get_args

from leafbeam.errors import ArgumentError
from leafbeam.index import Version, VersionFilter
from leafbeam.ops.constrain import Scoring


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The shapes and the scoring of a search: in each round at most `num_beams` beams, and logits for `code_sizes` codes.

    end_code: the code after which a beam is finished; None where all items have equally many codes.
    """

    num_beams: tuple[int, ...]
    code_sizes: tuple[int, ...]
    scoring: Scoring
    end_code: int | None = None

    def __post_init__(self) -> None:
        check_scoring(self.scoring)
        assert len(self.num_beams) == len(self.code_sizes)

    @classmethod
    def of(cls, version: Version, num_beams: int | Sequence[int], scoring: Scoring) -> SearchConfig:
        """For a version of an index: no round has more beams than the level has nodes."""
        beams = beams_of_levels(num_beams, version.num_levels)
        beams = tuple(map(min, beams, map(version.num_nodes, range(version.num_levels))))
        return cls(num_beams=beams, code_sizes=version.codebook_sizes, scoring=scoring, end_code=end_code_of(version))

    @classmethod
    def fixed(
        cls, code_sizes: Sequence[int], end_code: int | None, num_beams: int | Sequence[int], scoring: Scoring
    ) -> SearchConfig:
        """For every version of an index: no round but the last has more beams than there can be prefixes."""
        num_prefixes = accumulate(code_sizes[:-1], mul)
        beams = beams_of_levels(num_beams, len(code_sizes))
        beams = (*map(min, beams, num_prefixes), beams[-1])
        return cls(num_beams=beams, code_sizes=tuple(code_sizes), scoring=scoring, end_code=end_code)

    @property
    def num_rounds(self) -> int:
        return len(self.num_beams)

    def num_rows(self, number: int) -> int:
        """How many beams round `number` starts from."""
        return self.num_beams[number - 1] if number else 1


def beams_of_levels(num_beams: int | Sequence[int], num_levels: int) -> tuple[int, ...]:
    """A number of beams for each level, from one number or as many. Raises ArgumentError."""
    try:
        beams = tuple(map(index, num_beams)) if isinstance(num_beams, Sequence) else (index(num_beams),) * num_levels
    except TypeError:  # a part of a beam, or a text
        beams = ()
    if len(beams) != num_levels or min(beams) < 1:
        raise ArgumentError(f"num_beams is {num_beams!r}: expected a positive integer, or {num_levels} of them, one a level")
    return beams


def beams_under(
    version: Version, item_filter: VersionFilter | None, scoring: Scoring, *, num_beams: int, widest: int
) -> tuple[int, bool]:
    """Beams of all levels but the last under a filter, and whether they hold every allowed prefix: the answer is the best then.

    From `num_beams` to `widest`, between them a power of two so that requests share batches. As many as the widest level has
    allowed prefixes, if they fit; else inverse to the share of the items that are allowed: so many hold about `num_beams`
    prefixes of likely allowed items, because with scoring "full" a prefix has the probability of what is forbidden too.
    "allowed" needs no more beams.
    """
    widest = max(num_beams, widest)
    prefixes = tuple(map(version.num_nodes, range(version.num_levels))) if item_filter is None else item_filter.num_prefixes
    most = None if prefixes is None else max(prefixes[:-1], default=0)
    if most is not None and most <= widest:
        return num_beams if most <= num_beams else min(widest, 1 << (most - 1).bit_length()), True
    if scoring == "allowed" or item_filter is None or not len(item_filter):
        return num_beams, False
    return max(num_beams, min(widest, 1 << round(log2(num_beams * version.num_items / len(item_filter))))), False


def check_scoring(scoring: Scoring) -> None:
    if scoring not in get_args(Scoring):
        raise ArgumentError(f"scoring is {scoring!r}: expected 'full' or 'allowed'")


def end_code_of(version: Version) -> int | None:
    """The code that ends a sequence; None where the items are no sequences."""
    return version.segments[0].trie.end_code
