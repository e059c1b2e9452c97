"""Forced suffixes: when every live beam has one leaf left, the remaining codes are known.

    "full": one pass of the model over all of them scores what would have been many rounds
    "allowed": nothing is left to score, among one legal code that one is certain

(DESIGN §1.6.) A trie of Semantic IDs has no re-tokenisation problem, which is what made this inexact for text.

Shapes: S segments, B requests, K beams, T codes of a suffix, V codes of a level, L levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leafbeam.errors import LogitsError
from leafbeam.index import Version
from leafbeam.ops.backend import to_kind_of, to_numpy
from leafbeam.ops.constrain import RequestFilter

__all__ = ["SuffixFn", "SuffixReplay", "Suffixes"]

SuffixFn = Callable[[Any, Any], Sequence[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Suffixes:
    """The one leaf that each live beam can still reach.

    leaves_SBK: int64, -1 in a segment that does not have it, and for dead beams. codes_BKL: int64, its SID, 0 for dead beams.
    """

    leaves_SBK: NDArray[np.int64]
    codes_BKL: NDArray[np.int64]
    end_code: int | None

    @classmethod
    def of(
        cls,
        version: Version,
        requests: Sequence[tuple[RequestFilter, ...]],
        ranges: tuple[NDArray[np.int64], NDArray[np.int64]],
        num_valid_B: NDArray[np.int64],
    ) -> Suffixes | None:
        """None unless every live beam has one allowed SID left (it may stand in both segments). Cost: two ranks a beam."""
        lo_SBK, hi_SBK = ranges
        live_BK = np.arange(lo_SBK.shape[2]) < num_valid_B[:, None]
        if not any(parts[0].leaves for parts in requests) and (hi_SBK - lo_SBK)[:, live_BK].max(initial=0) > 1:
            return None
        leaves_SBK = np.full(lo_SBK.shape, -1, np.int64)
        codes_BKL = np.zeros((*live_BK.shape, version.num_levels), np.int64)
        for s, segment in enumerate(version.segments):
            for b, parts in enumerate(requests):
                mine = np.flatnonzero(live_BK[b] & (hi_SBK[s, b] > lo_SBK[s, b]))
                leaves = parts[s].sole_leaves(lo_SBK[s, b, mine], hi_SBK[s, b, mine])
                if (leaves < 0).any():
                    return None
                codes = segment.trie.codes_at(leaves)
                again = leaves_SBK[:s, b, mine].max(axis=0, initial=-1) >= 0
                if not np.array_equal(codes[again], codes_BKL[b, mine[again]]):
                    return None
                leaves_SBK[s, b, mine], codes_BKL[b, mine] = leaves, codes
        return cls(leaves_SBK=leaves_SBK, codes_BKL=codes_BKL, end_code=version.segments[0].trie.end_code)

    @property
    def ranges(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The leaves as ranges: (0, 0) where there is none."""
        return np.maximum(self.leaves_SBK, 0), self.leaves_SBK + 1

    def num_rounds(self, level: int) -> int:
        """How many levels from `level` on have something to score: all, or until the longest sequence has ended."""
        if self.end_code is None:
            return self.codes_BKL.shape[2] - level
        live_BK = self.leaves_SBK.max(axis=0) >= 0
        going_T = (self.codes_BKL[live_BK, level:] != self.end_code).any(axis=0)
        return min(len(going_T), int(going_T.sum()) + 1)


class SuffixReplay:
    """A step_fn that answers from one pass over the suffixes what the model would have answered round by round.

    Being asked like the model, it leaves everything else of the search as it is: order, ties, widths, excluded codes.
    """

    def __init__(self, logits_T: Sequence[Any], num_rounds: int) -> None:
        if len(logits_T) != num_rounds:
            raise LogitsError(
                f"suffix_fn returned the logits of {len(logits_T)} levels: expected {num_rounds}, one for each code"
            )
        self._logits_T = logits_T
        self._round = 0
        self._origin_BK: Any = None  # the beam of the pass that each beam now descends from

    def __call__(self, codes_BK: Any, parents_BK: Any) -> Any:
        logits_BKV = self._logits_T[self._round]
        self._round += 1
        if self._round == 1:  # the pass has already followed these parents
            return logits_BKV
        self._origin_BK = self.origins(parents_BK)
        return _of_beams(logits_BKV, self._origin_BK)

    @property
    def is_over(self) -> bool:
        """Whether every round of the pass was asked for."""
        return self._round == len(self._logits_T)

    @property
    def last(self) -> Any:
        """The answer for the last round, if every beam of the pass is still its own parent."""
        return self._logits_T[-1]

    def origins(self, parents_BK: Any) -> Any:
        """The beams of the pass that these beams of the newest round descend from: parents, to a model that goes on."""
        return parents_BK if self._origin_BK is None else _of_beams(self._origin_BK, parents_BK)


def _of_beams(array_BK: Any, beams_BK: Any) -> Any:
    """array_BK[b, beams_BK[b, k]] for every b and k, in numpy or in torch as the array is."""
    array_BK = array_BK if hasattr(array_BK, "detach") else to_numpy(array_BK)
    beams_BK = to_kind_of(beams_BK, array_BK)
    return array_BK[to_kind_of(np.arange(len(beams_BK))[:, None], array_BK), beams_BK]
