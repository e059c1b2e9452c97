"""How many threads the matrix products of a batch use: measured, because small products are slower with more."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from leafbeam.model.cpu.threads import torch_threads

_RUNS, _RUNS_S = 12, 0.25  # of one kind of batch with one count, and the seconds after which no further run begins
_MAX_S = 2.0  # after which no further kind of batch is measured
_GAIN = 1.1  # what more threads must gain: their cores are missed by the rest of the server


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadTimes:
    """Seconds of each kind of batch by the number of threads, and the number chosen."""

    count: int
    seconds: dict[int, tuple[float, ...]]

    def __str__(self) -> str:
        measured = (f"{count}: " + " and ".join(f"{1e3 * x:.3g} ms" for x in times) for count, times in self.seconds.items())
        return f"{self.count} ({'; '.join(measured)})"


def measure_threads(
    most: int, batches: Sequence[Callable[[], object]], clock: Callable[[], float], gain: float = _GAIN
) -> ThreadTimes:
    """Time batches with 1, 2, 4, ... and `most` threads, and choose the fewest that no larger number beats by `gain`.

    batches: each runs one kind of batch, the most frequent first; counts are compared by the geometric mean over the kinds.
    The counts take turns, so that other load on the machine slows all of them. Cost: some runs of each batch and count; about
    2 s, longer where the first kind alone takes longer.
    """
    counts = [*(2**n for n in range(most.bit_length()) if 2**n < most), most]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    stops = clock() + _MAX_S
    for batch in batches:
        for count, median in _seconds(batch, counts, clock).items():
            seconds[count].append(median)
        if clock() >= stops:
            break
    best = counts[0]
    for count in counts[1:]:
        if statistics.geometric_mean(seconds[best]) >= gain * statistics.geometric_mean(seconds[count]):
            best = count
    return ThreadTimes(count=best, seconds={count: tuple(times) for count, times in seconds.items()})


def _seconds(batch: Callable[[], object], counts: Sequence[int], clock: Callable[[], float]) -> dict[int, float]:
    """Return the median of some runs with each count; the first, which starts threads, is dropped if there are others."""
    times: dict[int, list[float]] = {count: [] for count in counts}
    begun = clock()
    for _ in range(_RUNS):
        for count in counts:
            with torch_threads(count, apart=True):
                started = clock()
                batch()
                times[count].append(max(clock() - started, 1e-9))
        if clock() - begun >= _RUNS_S * len(counts):
            break
    return {count: statistics.median(found[1:] or found) for count, found in times.items()}
