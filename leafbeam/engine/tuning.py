"""The choices that an engine measures for this machine before its first batch: threads, precision, products.

The words are those of its log, `/readyz` and `leafbeam doctor`.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leafbeam.decode import SearchResult
from leafbeam.model.cpu.products import ProductTuning
from leafbeam.model.cpu.threads import torch_threads
from leafbeam.precision import Precision

_PRECISION_RUNS = 3  # of each batch in each precision
_MAX_PRECISION_S = 5.0  # after which no further batch is run
_THREAD_RUNS = 12  # of one kind of batch with one count
_MAX_RUNS_S = 0.25  # for each count, after which no further run begins
_MAX_THREADS_S = 2.0  # after which no further kind of batch is measured
_GAIN = 1.1  # a smaller one is not worth different answers, or cores that the rest of the server misses
_Search = Callable[[], SearchResult]


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionReport:
    """Products in another precision beside those of the model, on the same requests, without graphs.

    precision: the other. baseline: the model's. speedups: with one request, and with several unless a batch takes seconds.
    same_items: the share of the model's answers that the other gives too. score_difference: the largest difference of an item's
    log-probability, among those answers.
    """

    precision: Precision
    speedups: tuple[float, ...]
    same_items: float
    score_difference: float
    baseline: str = "float32"

    @property
    def is_faster(self) -> bool:
        """Return whether the other precision is faster by a tenth or more, by the geometric mean of the batches."""
        return statistics.geometric_mean(self.speedups) >= _GAIN

    @property
    def is_taken(self) -> bool:
        """Return whether an engine takes the other precision: where it is faster, and fp8 always, which is for memory too and
        whose time without graphs says little about that of graphs.
        """
        return self.is_faster or self.precision == "fp8"

    def __str__(self) -> str:
        speedups = " and ".join(f"{speedup:.2f}" for speedup in self.speedups)
        batches = "with one request" if len(self.speedups) == 1 else "with one request and with several"
        same = f"{self.same_items:.1%} of the items the same"
        close = f"log-probabilities within {self.score_difference:.2g}"
        return f"{speedups} times as fast as {self.baseline} {batches}, {same}, {close}"


def compare_precisions(
    precision: Precision,
    batches: Sequence[tuple[_Search, _Search]],
    clock: Callable[[], float],
    baseline: str = "float32",
) -> PrecisionReport:
    """Time each batch in the model's precision and in another by turns, and compare the answers of all.

    Cost: three runs of each batch and precision, the fastest of which counts; no further batch after five seconds.
    """
    speedups: list[float] = []
    answers: list[tuple[SearchResult, SearchResult]] = []
    stops = clock() + _MAX_PRECISION_S
    for exact, rounded in batches:
        runs = [(_timed(exact, clock), _timed(rounded, clock)) for _ in range(_PRECISION_RUNS)]
        seconds = [min(each) for each in zip(*((one.seconds, other.seconds) for one, other in runs), strict=True)]
        speedups.append(seconds[0] / seconds[1])
        answers.append((runs[-1][0].answer, runs[-1][1].answer))
        if clock() >= stops:
            break
    pairs = [pair for one, other in answers for pair in zip(_scores(one), _scores(other), strict=True)]
    shared = [(item, one, other) for one, other in pairs for item in one.keys() & other.keys()]
    return PrecisionReport(
        precision=precision,
        speedups=tuple(speedups),
        same_items=len(shared) / max(1, sum(len(one) for one, _ in pairs)),
        score_difference=max((abs(one[item] - other[item]) for item, one, other in shared), default=0.0),
        baseline=baseline,
    )


class _Timed(NamedTuple):
    seconds: float
    answer: SearchResult


def _timed(search: _Search, clock: Callable[[], float]) -> _Timed:
    started = clock()
    answer = search()
    return _Timed(max(clock() - started, 1e-9), answer)


def _scores(answer: SearchResult) -> list[dict[object, float]]:
    """Return the score of each item, for each request."""
    rows = zip(answer.item_ids, answer.scores.tolist(), strict=True)
    return [dict(zip(ids.tolist(), scores, strict=False)) for ids, scores in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadTimes:
    """Seconds of each kind of batch by the number of threads, and the number chosen."""

    count: int
    seconds: dict[int, tuple[float, ...]]

    def __str__(self) -> str:
        measured = (f"{count}: " + " and ".join(f"{1e3 * x:.3g} ms" for x in times) for count, times in self.seconds.items())
        return f"{self.count} ({'; '.join(measured)})"


def measure_threads(most: int, batches: Sequence[Callable[[], object]], clock: Callable[[], float]) -> ThreadTimes:
    """Time batches with 1, 2, 4, ... and `most` threads, and choose the fewest that no larger number beats by a tenth.

    batches: each runs one kind of batch, the most frequent first; counts are compared by the geometric mean over the kinds.
    The counts take turns, so that other load on the machine slows all of them. Cost: some runs of each batch and count; about
    2 s, longer where the first kind alone takes longer.
    """
    counts = [*(2**n for n in range(most.bit_length()) if 2**n < most), most]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    stops = clock() + _MAX_THREADS_S
    for batch in batches:
        for count, median in _seconds(batch, counts, clock).items():
            seconds[count].append(median)
        if clock() >= stops:
            break
    best = counts[0]
    for count in counts[1:]:
        if statistics.geometric_mean(seconds[best]) >= _GAIN * statistics.geometric_mean(seconds[count]):
            best = count
    return ThreadTimes(count=best, seconds={count: tuple(times) for count, times in seconds.items()})


def _seconds(batch: Callable[[], object], counts: Sequence[int], clock: Callable[[], float]) -> dict[int, float]:
    """Return the median of some runs with each count; the first, which starts threads, is dropped if there are others."""
    times: dict[int, list[float]] = {count: [] for count in counts}
    begun = clock()
    for _ in range(_THREAD_RUNS):
        for count in counts:
            with torch_threads(count, apart=True):
                started = clock()
                batch()
                times[count].append(max(clock() - started, 1e-9))
        if clock() - begun >= _MAX_RUNS_S * len(counts):
            break
    return {count: statistics.median(seconds[1:] or seconds) for count, seconds in times.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tuning:
    """The choices of an engine, which are made once, before its first batch.

    Args:
        threads: The threads of each worker's matrix products; None before the warm-up.
        thread_times: The times of batches with each number of threads; None if there was nothing to choose.
        precision: The precision of the layers' matrix products.
        precision_report: How the precision that the settings ask for compares with float32; None if that is float32.
        products: How the layers' matrices are multiplied; None except for a Transformer in float32 on a CPU.
    """

    threads: int | None = None
    thread_times: ThreadTimes | None = None
    precision: Precision = "float32"
    precision_report: PrecisionReport | None = None
    products: ProductTuning | None = None

    @property
    def is_measured(self) -> bool:
        """Return whether any of the choices needed a measurement."""
        is_product = self.products is not None and self.products.is_measured
        return is_product or self.thread_times is not None or self.precision_report is not None

    def lines(self) -> dict[str, str]:
        """Return each choice in words, with what was measured for it, by its name."""
        report = self.precision_report
        lines = {"precision": self.precision if report is None else f"{self.precision}; {report.precision} is {report}"}
        if self.threads is not None:
            lines["threads"] = str(self.threads if self.thread_times is None else self.thread_times)
        if self.products is not None:
            lines["products"] = str(self.products)
        return lines

    def __str__(self) -> str:
        return "; ".join(f"{name}: {words}" for name, words in self.lines().items())
