"""Which settings answer each case fastest: vLLM gets those, and leafbeam the faster number of threads, by the same trial."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar

from benchmarks.peers.failure import PeerFailure
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.turns import Case, Way, timed_case

__all__ = ["Chosen", "Opened", "fastest_of", "grouped"]

S = TypeVar("S")
Opened = Callable[[S], AbstractContextManager[Callable[[Case], Way]]]
_TURNS, _ENOUGH_S = 3, 15.0  # of a trial; one turn where the first ones take longer than this


@dataclass(frozen=True, kw_only=True)
class Chosen(Generic[S]):
    """The settings for a case. ms: the median of each that was tried, or the status of what stopped it."""

    settings: S
    ms: Mapping[str, float | str]

    def row(self, name: str = "vllm_settings") -> dict[str, object]:
        """What a row says of them."""
        return {name: str(self.settings), f"{name}_ms": dict(self.ms)}


def fastest_of(run: LoadRun, cases: Sequence[Case], settings: Sequence[S], opened: Opened[S]) -> dict[Case, Chosen[S]]:
    """Each case's fastest settings; the first of those, untried, where there is one, and where none answers.

    opened: starts an engine with some settings, for as long as the context lasts, and gives its way to answer a case.
    """
    found: dict[Case, dict[S, float | str]] = {case: {} for case in cases}
    for one in settings if len(settings) > 1 else ():
        slow: dict[str, list[Case]] = {}
        try:
            with opened(one) as way_of:
                for case in cases:
                    ways = {"engine": way_of(case)}
                    measured = timed_case(run, case, ways, _TURNS, slow, lambda *_: {}, least=1, enough_s=_ENOUGH_S)["engine"]
                    found[case][one] = measured["ms"]["p50"] if "ms" in measured else measured["status"]
        except PeerFailure as failure:
            for case in cases:
                found[case].setdefault(one, failure.status)
    return {case: _chosen(settings[0], by_settings) for case, by_settings in found.items()}


def grouped(chosen: Mapping[Case, Chosen[S]]) -> dict[S, list[Case]]:
    """The cases of each settings, in order."""
    return {one: [case for case in chosen if chosen[case].settings == one] for one in {c.settings: 0 for c in chosen.values()}}


def _chosen(otherwise: S, by_settings: Mapping[S, float | str]) -> Chosen[S]:
    numbers = {one: ms for one, ms in by_settings.items() if not isinstance(ms, str)}
    best = min(numbers, key=numbers.__getitem__, default=otherwise)
    return Chosen(settings=best, ms={str(one): ms for one, ms in by_settings.items()})
