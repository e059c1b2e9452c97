"""Ways to answer the same prompts, in turns: milliseconds of each, how its answers are, or the status of what stopped it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.failure import failure_of
from benchmarks.rows import spread, version_of
from benchmarks.serving.load_run import LoadRun

__all__ = [
    "THREADS",
    "Answers",
    "Case",
    "Prompts",
    "Runs",
    "Turns",
    "Way",
    "compare",
    "items_of",
    "parameters_of",
    "prompts_of",
    "ratios_of",
    "shares_of",
    "timed_case",
    "tokens_of",
]

Runs = Iterator[tuple[dict[str, Any], dict[str, Any]]]
Prompts = Sequence[NDArray[np.int64]]
Answers = Sequence[Sequence[Sequence[int]]]  # tokens of each answer of each request
Turns = Mapping[int, Answers]  # by their number; -1 warms up
Way = Callable[[Prompts], Answers]

THREADS = 2
REPEAT_S, ONCE_S, SLOW_S = 2.0, 30.0, 150.0
_LEAST, _ENOUGH_S = 7, 60.0  # turns that a case has at least, if there are so many; seconds after which it has no more
_OTHERS = 1_000  # turns from here on have prompts that are not timed
WARM_S = 0.1  # for which a way answers other prompts just before
PAUSE_S = 0.25  # before a way is timed: threads of the way before it wait for work in a busy loop so long


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell: items of each history, beams, requests at once."""

    items: int
    beams: int
    batch: int


Judge = Callable[[LoadRun, Case, Turns, Turns], dict[str, float]]


def shares_of(run: LoadRun, case: Case, turns: Turns, exact: Turns) -> dict[str, float]:
    """Of the K answers of each request: no item; missing (fewer than K different items, or than the catalog has); and exact,
    the share of leafbeam's answers in the same turns that are among them, where there are any.
    """
    items = set(map(tuple, items_of(run)))
    answers = [list(map(tuple, one)) for turn in turns.values() for one in turn]
    expected = min(case.beams, len(items)) * len(answers)
    wrong = sum(sid not in items for one in answers for sid in one)
    found = sum(len(set(one) & items) for one in answers)
    shares = {"no_item": round(wrong / max(1, sum(map(len, answers))), 4), "missing": round(1 - found / expected, 4)}
    pairs = [
        (set(map(tuple, mine)), set(map(tuple, one)))
        for turn in turns.keys() & exact.keys()
        for mine, one in zip(exact[turn], turns[turn], strict=True)
    ]
    if pairs:
        common = sum(len(mine & one) for mine, one in pairs)
        shares["exact"] = round(common / max(1, sum(len(mine) for mine, _ in pairs)), 4)
    return shares


def compare(
    named: dict[str, Any],
    run: LoadRun,
    cases: Sequence[Case],
    ways_of: Callable[[Case], dict[str, Way]],
    repeats: int,
    judge: Judge = shares_of,
) -> Runs:
    """A row for each case, smallest first, all ways in turns; a way that was slow on a case is left out of larger ones."""
    slow: dict[str, list[Case]] = {}
    for case in cases:
        engines = timed_case(run, case, ways_of(case), repeats, slow, judge)
        yield parameters_of(run, case) | named, ratios_of(engines)


def timed_case(
    run: LoadRun,
    case: Case,
    ways: Mapping[str, Way],
    repeats: int,
    slow: dict[str, list[Case]],
    judge: Judge = shares_of,
    *,
    least: int = _LEAST,
    enough_s: float = _ENOUGH_S,
    pause_s: float = PAUSE_S,
) -> dict[str, dict[str, Any]]:
    """Milliseconds of each way and what `judge` says of its answers, or its status.

    repeats: turns at most; after `enough_s` seconds no more than `least`. pause_s: seconds before a way, for threads of the way
    before it to fall asleep. A way that takes more than ONCE_S seconds runs once. One that takes less than REPEAT_S answers
    other prompts just before, for WARM_S, because the ways before it emptied the machine's caches; "first_ms" is what the first
    of these answers took. The turn that warms up counts for a way that takes over SLOW_S.
    """
    engines: dict[str, dict[str, Any]] = {}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    first: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, dict[int, Answers]] = {name: {} for name in ways}
    last: dict[str, float] = {}
    started = time.perf_counter()
    for turn in range(-1, repeats):  # the first turn warms up, and starts what is not running
        if turn >= least and time.perf_counter() - started > enough_s:
            break
        prompts, others = prompts_of(run, case, turn + 1), prompts_of(run, case, turn + 1 + _OTHERS)
        for name, way in ways.items():
            if name in engines:
                continue
            before = [one for one in slow.get(name, ()) if _is_within(one, case)]
            if before:
                reason = f"{before[0].batch} x {before[0].beams} beams of {before[0].items} items took over {SLOW_S:g} s"
                engines[name] = {"status": "left out", "reason": reason}
                continue
            time.sleep(pause_s)
            try:
                if last.get(name, REPEAT_S) < REPEAT_S:
                    first[name].append(_warm(way, others))
                began = time.perf_counter()
                found = way(prompts)
            except Exception as error:  # whatever stops a peer; leafbeam's own errors are errors of the benchmark
                if name == "leafbeam":
                    raise
                engines[name] = failure_of(error).row
                continue
            taken = last[name] = time.perf_counter() - began
            answers[name][turn] = found
            if turn < 0 and taken <= SLOW_S:
                continue
            seconds[name].append(taken)
            if taken > SLOW_S:
                slow.setdefault(name, []).append(case)
            if taken > ONCE_S:
                engines[name] = {}
    for name in ways:
        if seconds[name]:
            found = judge(run, case, answers[name], answers.get("leafbeam", {}))
            cold = {"first_ms": spread(first[name], 1e-3)} if first[name] else {}
            timed = {"ms": spread(seconds[name], 1e-3), "repeats": len(seconds[name])}
            engines[name] = {"status": "ok"} | timed | cold | found
    return {name: engines[name] for name in ways}


def _warm(way: Way, prompts: Prompts) -> float:
    """Answer for WARM_S; what the first answer took."""
    began = time.perf_counter()
    way(prompts)
    taken = time.perf_counter() - began
    while time.perf_counter() - began < WARM_S:
        way(prompts)
    return taken


def _is_within(smaller: Case, case: Case) -> bool:
    return smaller.items <= case.items and smaller.beams <= case.beams and smaller.batch <= case.batch


def ratios_of(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The engines, and how many times leafbeam's time each one's is, or its status: medians, and first answers."""
    over: dict[str, Any] = {"engines": engines}
    for name, fields in (("over_leafbeam", ("ms",)), ("first_over_leafbeam", ("first_ms", "ms"))):
        medians = {who: next((one[field]["p50"] for field in fields if field in one), None) for who, one in engines.items()}
        mine = medians["leafbeam"]
        over[name] = {
            who: round(median / mine, 2) if mine and median else engines[who]["status"] for who, median in medians.items()
        }
    return over


def parameters_of(run: LoadRun, case: Case) -> dict[str, Any]:
    config = run.model.config
    return {
        "prompt_tokens": run.model.vocabulary.prompt_length(case.items),
        "K": case.beams,
        "B": case.batch,
        "threads": THREADS,
        "dtype": "float32",
        "num_items": run.trie.num_items,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "transformers": version_of("transformers"),
    }


def prompts_of(run: LoadRun, case: Case, turn: int) -> Prompts:
    """Leaves of histories of items drawn at random, different ones for each turn and case."""
    rng = np.random.default_rng([turn, case.items, case.beams, case.batch])
    return [rng.integers(0, run.trie.num_leaves, case.items) for _ in range(case.batch)]


def items_of(run: LoadRun) -> list[list[int]]:
    """The tokens of every item, by leaf."""
    return run.model.vocabulary.tokens(run.trie.codes_at(np.arange(run.trie.num_leaves))).tolist()


def tokens_of(run: LoadRun, prompts: Prompts) -> list[list[int]]:
    tokens_BT, lengths_B = run.model.vocabulary.prompts([run.trie.codes_at(one) for one in prompts])
    return [tokens_T[:length].tolist() for tokens_T, length in zip(tokens_BT, lengths_B, strict=True)]
