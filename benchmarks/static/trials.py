"""The loop that every table and figure shares: parity, warm-up, then trials with the methods in random order.

    one core, one thread for every library
    parity: each exact method returns the same scores and the same SIDs, all of them in the catalog; what the others get wrong
    a trial: one search of L rounds by every method, in an order drawn anew; before each round its logits are written anew, as a
    model's head would have just done; the rounds alone are timed

A method that has used up its seconds stops taking part, with at least `LEAST` trials.

Shapes: B requests, K beams, V codes, L levels.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rows import moments, spread
from benchmarks.static.catalog import Catalog
from benchmarks.static.methods import LineUp, Method, reason_of
from benchmarks.workloads import random_logits
from leafbeam.index import Trie
from leafbeam.ops.constrain import Beams, request_filters
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = [
    "LEAST",
    "Logits",
    "MethodFailure",
    "check",
    "draw_logits",
    "is_clear",
    "one_core",
    "run",
    "search",
    "searched",
    "summary",
]

LEAST = 3
Logits = list[NDArray[np.float32]]
Seconds = dict[str, NDArray[np.float64]]
_CLOSE = 2e-5  # scores of eight levels are sums of about 60, in float32: five units in the last place
_TABLE_OF_LOGITS = 2**28  # bytes: small codebooks get several sets of logits, so that no trial repeats the last one


class MethodFailure(Exception):
    """A method raised an error in a search: `name`, and why it is left out."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = name, reason


@contextmanager
def one_core() -> Generator[None]:
    """Every thread of this process on one core, one thread for torch, no garbage collection; all as before afterwards.

    JAX has no other way to be held to one thread once it has started.
    """
    threads, collecting = torch.get_num_threads(), gc.isenabled()
    allowed = _affinity()
    gc.collect()
    gc.disable()
    torch.set_num_threads(1)
    _pin({min(allowed)} if allowed else set())
    try:
        yield
    finally:
        _pin(allowed)
        torch.set_num_threads(threads)
        if collecting:
            gc.enable()


def _affinity() -> set[int]:
    """The cores that this process may use; empty where the system cannot say (macOS)."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _pin(cores: set[int]) -> None:
    if cores:
        for task in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):  # a thread may end while it is being looked at
                os.sched_setaffinity(int(task.name), cores)


def draw_logits(rng: np.random.Generator, trie: Trie, batch_size: int, num_beams: int) -> list[Logits]:
    """One to four sets of standard normal logits, one array for each level, that leave no doubt about the beams.

    A set is drawn again where two beams of a round, or the last one kept and the first dropped, are so close that a rounding
    decides their order: logits belong to places, so two exact methods would go different ways from there, and both be right.
    """
    num_codes = trie.codebook_sizes[0]
    size = 4 * batch_size * num_beams * num_codes * trie.num_levels
    sets: list[Logits] = []
    while len(sets) < max(1, min(4, _TABLE_OF_LOGITS // size)):
        logits = [random_logits(rng, batch_size, 1 if level == 0 else num_beams, num_codes) for level in range(trie.num_levels)]
        if is_clear(trie, logits, num_beams):
            sets.append(logits)
    return sets


def is_clear(trie: Trie, logits: Logits, num_beams: int) -> bool:
    """Whether rounding decides no beam's place, in any round."""
    batch_size = len(logits[0])
    arrays = cpu.bind(trie)
    filters = cpu.bind_filters(arrays, request_filters(trie, batch_size, None, None))
    lo = np.zeros((1, batch_size, 1), np.int64)
    hi, scores = np.full_like(lo, trie.num_leaves), np.zeros((batch_size, 1), np.float32)
    for level, values in enumerate(logits):
        beams = cpu.step(arrays, level, Beams.start(lo, hi, scores), values, filters, num_beams=num_beams + 1, scoring="full")
        above, below = beams.scores[:, :-1], beams.scores[:, 1:]
        if (above[below > -np.inf] - below[below > -np.inf] < _CLOSE).any():
            return False
        lo, hi, scores = (np.ascontiguousarray(one[..., :-1]) for one in (beams.lo, beams.hi, beams.scores))
    return True


def search(method: Method, logits: Logits) -> tuple[list[Any], list[float]]:
    """The beams after each round, and the seconds of each."""
    beams: Any = None
    history: list[Any] = []
    seconds: list[float] = []
    fresh = np.empty_like(logits[-1])
    for level, values in enumerate(logits):
        given = fresh if values.shape == fresh.shape else np.empty_like(values)
        np.copyto(given, values)
        ready = method.prepare(given)
        begin = time.perf_counter()
        beams = method.round(level, beams, ready)
        seconds.append(time.perf_counter() - begin)
        history.append(beams)
    return history, seconds


def searched(line_up: LineUp, name: str, logits: Logits) -> tuple[list[Any], list[float]]:
    """`search` by a method of the line-up. Raises MethodFailure for whatever a peer raises."""
    line_up.announce(name)
    try:
        return search(line_up.methods[name], logits)
    except Exception as error:
        if name == "leafbeam":
            raise
        raise MethodFailure(name, reason_of(error)) from error


def check(line_up: LineUp, catalog: Catalog, sets: list[Logits]) -> dict[str, dict[str, float]]:
    """Parity before any speed: an assertion for the exact methods, measured shares for the others.

    found: the share of the exact SIDs that a method returns. invalid: the share of what it returns that no item has.
    """
    shares: dict[str, dict[str, float]] = {}
    for logits in sets:
        expected = _result(line_up, "leafbeam", logits)
        for name, method in line_up.methods.items():
            scores_BK, sids_BKL = expected if name == "leafbeam" else _result(line_up, name, logits)
            found = float(np.mean([_same(mine, best) for mine, best in zip(sids_BKL, expected[1], strict=True)]))
            alive = sids_BKL[scores_BK > -np.inf]
            invalid = sum(tuple(sid) not in catalog.trie for sid in alive.tolist()) / max(1, len(alive))
            if method.exact:
                np.testing.assert_allclose(scores_BK, expected[0], rtol=1e-5, atol=1e-4, err_msg=name)
                # Scores that differ by a rounding may change places at the end of the list.
                assert found > 0.97, f"{name} returned {found:.1%} of the SIDs"
                assert invalid == 0, f"{name} returned SIDs that are in no item"
            known = shares.setdefault(name, {"found": 0.0, "invalid": 0.0})
            known["found"] += found / len(sets)
            known["invalid"] += invalid / len(sets)
    return {name: {kind: round(share, 4) for kind, share in one.items()} for name, one in shares.items()}


def _result(line_up: LineUp, name: str, logits: Logits) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """(scores_BK, sids_BKL) of a search."""
    taken = line_up.methods[name].taken
    history = [taken(beams) for beams in searched(line_up, name, logits)[0]]
    scores_BK, at_BK, code_BK = history[-1]
    columns = [code_BK]
    for _, parent_BK, earlier_BK in reversed(history[:-1]):
        columns.append(np.take_along_axis(earlier_BK, at_BK, axis=1))
        at_BK = np.take_along_axis(parent_BK, at_BK, axis=1)
    return scores_BK, np.stack(columns[::-1], axis=2).astype(np.int64)


def _same(mine_KL: NDArray[np.int64], best_KL: NDArray[np.int64]) -> float:
    best = {tuple(sid) for sid in best_KL.tolist()}
    return len(best & {tuple(sid) for sid in mine_KL.tolist()}) / len(best)


@dataclass
class _Clock:
    left: float
    trials: int = 0

    @property
    def runs(self) -> bool:
        return self.left > 0 or self.trials < LEAST


def run(line_up: LineUp, sets: list[Logits], *, num_trials: int, seconds_each: float, seed: int = 0) -> Seconds:
    """name -> (trials, L) seconds; a row of NaN where a method no longer took part."""
    rng = np.random.default_rng(seed)
    names = list(line_up.methods)
    taken = {name: np.full((num_trials, len(sets[0])), np.nan) for name in names}
    clocks = {name: _Clock(left=seconds_each) for name in names}
    for trial in range(num_trials):
        for name in rng.permutation(names).tolist():
            clock = clocks[name]
            if clock.runs:
                taken[name][trial] = searched(line_up, name, sets[trial % len(sets)])[1]
                clock.left -= float(taken[name][trial].sum())
                clock.trials += 1
    return taken


def summary(line_up: LineUp, seconds: Seconds) -> dict[str, Any]:
    """A step (mean over the levels) and its overhead over unconstrained in the same trial, in microseconds.

    Of each p20, p50 and p80, and as the paper has them mean and standard deviation over the trials.
    """
    steps = {name: taken.mean(axis=1) for name, taken in seconds.items()}
    step_us: dict[str, Any] = {}
    overhead_us: dict[str, Any] = {}
    for name, step in steps.items():
        mine = ~np.isnan(step)
        step_us[name] = _spread_and_moments(step[mine])
        floor = line_up.methods[name].floor
        if name != floor and floor in steps:
            both = mine & ~np.isnan(steps[floor])
            overhead_us[name] = _spread_and_moments((step - steps[floor])[both])
    return {
        "step_us": step_us,
        "overhead_us": overhead_us,
        "by_level_us": {name: np.nanmedian(taken * 1e6, axis=0).round(1).tolist() for name, taken in seconds.items()},
        "trials": {name: int((~np.isnan(step)).sum()) for name, step in steps.items()},
        "nbytes": {name: method.nbytes for name, method in line_up.methods.items()},
        "forms": {name: {"dtype": method.dtype, "form": method.form} for name, method in line_up.methods.items()},
        "left_out": line_up.left_out,
        "waiting": line_up.waiting,
    }


def _spread_and_moments(seconds: NDArray[np.float64]) -> dict[str, float]:
    return spread(seconds.tolist()) | moments(seconds.tolist())
