"""What matrix products in bfloat16 do on this machine: measured before its first batch, because few processors have them."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leafbeam.decode import SearchResult

__all__ = ["PrecisionReport", "compare_precisions"]

_RUNS = 3  # of each batch in each precision
_MAX_S = 5.0  # after which no further batch is run
_GAIN = 1.1  # a smaller one is not worth different answers
_Search = Callable[[], SearchResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionReport:
    """Products in bfloat16 beside those in float32, on the same requests.

    speedups: with one request, and with several unless a batch takes seconds. same_items: the share of float32's answers that
    bfloat16 gives too. score_difference: the largest of one item's log-probability, among those.
    """

    speedups: tuple[float, ...]
    same_items: float
    score_difference: float

    @property
    def is_faster(self) -> bool:
        """Return whether bfloat16 is faster by a tenth or more, by the geometric mean of the batches."""
        return statistics.geometric_mean(self.speedups) >= _GAIN

    def __str__(self) -> str:
        speedups = " and ".join(f"{speedup:.2f}" for speedup in self.speedups)
        batches = "with one request" if len(self.speedups) == 1 else "with one request and with several"
        same = f"{self.same_items:.1%} of the items the same"
        return f"{speedups} times as fast as float32 {batches}, {same}, log-probabilities within {self.score_difference:.2g}"


def compare_precisions(batches: Sequence[tuple[_Search, _Search]], clock: Callable[[], float]) -> PrecisionReport:
    """Time each batch in float32 and in bfloat16 by turns, and compare the answers of all.

    Cost: three runs of each batch and precision, the fastest of which counts; no further batch after five seconds.
    """
    speedups: list[float] = []
    answers: list[tuple[SearchResult, SearchResult]] = []
    stops = clock() + _MAX_S
    for float32, bfloat16 in batches:
        runs = [(_timed(float32, clock), _timed(bfloat16, clock)) for _ in range(_RUNS)]
        seconds = [min(each) for each in zip(*((one.seconds, other.seconds) for one, other in runs), strict=True)]
        speedups.append(seconds[0] / seconds[1])
        answers.append((runs[-1][0].answer, runs[-1][1].answer))
        if clock() >= stops:
            break
    pairs = [pair for one, other in answers for pair in zip(_scores(one), _scores(other), strict=True)]
    shared = [(item, one, other) for one, other in pairs for item in one.keys() & other.keys()]
    return PrecisionReport(
        speedups=tuple(speedups),
        same_items=len(shared) / max(1, sum(len(one) for one, _ in pairs)),
        score_difference=max((abs(one[item] - other[item]) for item, one, other in shared), default=0.0),
    )


class _Timed(NamedTuple):
    seconds: float
    answer: SearchResult


def _timed(search: _Search, clock: Callable[[], float]) -> _Timed:
    started = clock()
    answer = search()
    return _Timed(max(clock() - started, 1e-9), answer)


def _scores(answer: SearchResult) -> list[dict[object, float]]:
    """For each request the score of each item."""
    rows = zip(answer.item_ids, answer.scores.tolist(), strict=True)
    return [dict(zip(ids.tolist(), scores, strict=False)) for ids, scores in rows]
