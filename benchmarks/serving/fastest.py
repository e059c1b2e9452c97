"""Which settings of vLLM answer each case fastest: it gets those, as leafbeam's engine measures its number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from benchmarks.peers.failure import PeerFailure
from benchmarks.peers.vllm_cpu import VllmSettings
from benchmarks.serving.load_run import LoadRun
from benchmarks.serving.turns import Case, Way, timed_case

__all__ = ["Chosen", "Opened", "fastest_of", "grouped"]

Opened = Callable[[VllmSettings], AbstractContextManager[Callable[[Case], Way]]]
_TURNS, _ENOUGH_S = 3, 15.0  # of a trial; one turn where the first ones take longer than this


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The settings for a case. ms: the median of each that was tried, or the status of what stopped it."""

    settings: VllmSettings
    ms: Mapping[str, float | str]

    @property
    def row(self) -> dict[str, object]:
        return {"vllm_settings": str(self.settings), "vllm_settings_ms": dict(self.ms)}


def fastest_of(run: LoadRun, cases: Sequence[Case], settings: Sequence[VllmSettings], opened: Opened) -> dict[Case, Chosen]:
    """Each case's fastest settings; the first of those, untried, where there is one, and where none answers.

    opened: starts vLLM with some settings, for as long as the context lasts, and gives its way to answer a case.
    """
    found: dict[Case, dict[VllmSettings, float | str]] = {case: {} for case in cases}
    for one in settings if len(settings) > 1 else ():
        slow: dict[str, list[Case]] = {}
        try:
            with opened(one) as way_of:
                for case in cases:
                    ways = {"vllm": way_of(case)}
                    measured = timed_case(run, case, ways, _TURNS, slow, lambda *_: {}, least=1, enough_s=_ENOUGH_S)["vllm"]
                    found[case][one] = measured["ms"]["p50"] if "ms" in measured else measured["status"]
        except PeerFailure as failure:
            for case in cases:
                found[case].setdefault(one, failure.status)
    return {case: _chosen(settings[0], by_settings) for case, by_settings in found.items()}


def grouped(chosen: Mapping[Case, Chosen]) -> dict[VllmSettings, list[Case]]:
    """The cases of each settings, in order."""
    return {one: [case for case in chosen if chosen[case].settings == one] for one in {c.settings: 0 for c in chosen.values()}}


def _chosen(otherwise: VllmSettings, by_settings: Mapping[VllmSettings, float | str]) -> Chosen:
    numbers = {one: ms for one, ms in by_settings.items() if not isinstance(ms, str)}
    best = min(numbers, key=numbers.__getitem__, default=otherwise)
    return Chosen(settings=best, ms={str(one): ms for one, ms in by_settings.items()})
