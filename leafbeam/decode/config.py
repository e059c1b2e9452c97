"""What a search is, whatever runs it: beams of each round, scoring, codes of each round, end code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from sys import maxsize
from typing import get_args

from leafbeam.errors import ArgumentError
from leafbeam.index import Version
from leafbeam.ops.constrain import Scoring

__all__ = ["SearchConfig", "beams_of_levels", "check_scoring", "end_code_of"]


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The shapes and the scoring of a search.

    num_beams: how many beams each round keeps at most. code_sizes: how many codes each round has logits for. end_code: the code
    after which a beam is finished; None where all items have equally many codes.
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
        num_nodes = [version.num_nodes(level) for level in range(version.num_levels)]
        return cls._of(version.codebook_sizes, end_code_of(version), num_beams, scoring, num_nodes)

    @classmethod
    def fixed(
        cls, code_sizes: Sequence[int], end_code: int | None, num_beams: int | Sequence[int], scoring: Scoring
    ) -> SearchConfig:
        """For every version of an index: no round but the last has more beams than there can be prefixes."""
        num_prefixes = [prod(code_sizes[: level + 1]) for level in range(len(code_sizes) - 1)]
        return cls._of(tuple(code_sizes), end_code, num_beams, scoring, [*num_prefixes, maxsize])

    @classmethod
    def _of(
        cls,
        code_sizes: tuple[int, ...],
        end_code: int | None,
        num_beams: int | Sequence[int],
        scoring: Scoring,
        max_beams: Sequence[int],
    ) -> SearchConfig:
        beams = tuple(map(min, beams_of_levels(num_beams, len(code_sizes)), max_beams))
        return cls(num_beams=beams, code_sizes=code_sizes, scoring=scoring, end_code=end_code)

    @property
    def num_rounds(self) -> int:
        return len(self.num_beams)

    def num_rows(self, number: int) -> int:
        """How many beams round `number` starts from."""
        return self.num_beams[number - 1] if number else 1


def beams_of_levels(num_beams: int | Sequence[int], num_levels: int) -> tuple[int, ...]:
    """A number of beams for each level, from one number or as many. Raises ArgumentError."""
    beams = (num_beams,) * num_levels if isinstance(num_beams, int) else tuple(int(one) for one in num_beams)
    if len(beams) != num_levels or min(beams) < 1:
        raise ArgumentError(
            f"num_beams is {num_beams!r}: expected a positive number, or one for each of the {num_levels} levels"
        )
    return beams


def check_scoring(scoring: Scoring) -> None:
    if scoring not in get_args(Scoring):
        raise ArgumentError(f"scoring is {scoring!r}: expected 'full' or 'allowed'")


def end_code_of(version: Version) -> int | None:
    """The code that ends a sequence; None where the items are no sequences."""
    return version.segments[0].trie.end_code
