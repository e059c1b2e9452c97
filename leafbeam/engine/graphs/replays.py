"""A search of a batch as captured graphs: a first pass, and wider ones for the requests that are not proved yet.

Shapes: B requests, n requests that are searched again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode import SearchResult
from leafbeam.decode.beam_search import result_of
from leafbeam.decode.results import collect_items
from leafbeam.engine.graphs.graph import Graphs
from leafbeam.engine.graphs.static_decode import BatchInputs
from leafbeam.engine.request import PendingRequest

Answer = TypeVar("Answer")


class Timed(Protocol):
    """Makes a function whose seconds count as those of rounds, and which raises if no request waits for the batch."""

    def __call__(self, forward: Callable[..., Answer], /) -> Callable[..., Answer]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    """The result of the graphs of a batch, and the number of beams of the widest one that ran."""

    result: SearchResult
    num_beams: int


def is_final(result: SearchResult, requests: Sequence[PendingRequest]) -> NDArray[np.bool_]:
    """Return which answers of a pass no later one would change: all of a search with fixed beams, and those that are proved."""
    if requests[0].kind is None:
        return np.ones(len(requests), np.bool_)
    return result.is_proved


@dataclass(frozen=True, kw_only=True, slots=True)
class Replays:
    """The searches of one batch as graphs.

    Args:
        graphs: The graphs.
        requests: The requests of the batch.
        timed: Counts the seconds of a function's calls.
        on_pass: Called with the result of each pass but the last.
    """

    graphs: Graphs
    requests: Sequence[PendingRequest]
    timed: Timed
    on_pass: Callable[[SearchResult], None]

    def search(self, inputs: BatchInputs, num_items: Sequence[int]) -> Replayed | None:
        """Return the best items of each request; None if no graph fits, or searches of this kind are not captured.

        The requests that are not proved are searched again with a wider graph, as long as there is one. A graph computes all of
        its beams whatever they score, so that a continuation with fewer live beams would take as long as a whole search.
        """
        first = self.requests[0]
        num_beams = max(pending.size.num_beams for pending in self.requests)
        proves = first.kind is not None
        if first.request.explain or first.request.scoring == "vocabulary" or (not proves and max(num_items) > num_beams):
            self.graphs.skip()
            return None
        replayed = self._once(inputs, num_items, max(num_beams + 1, *num_items) if proves else num_beams)
        while replayed is not None and not (final_B := is_final(replayed.result, self.requests)).all():
            rows_n = np.flatnonzero(~final_B)
            wider = self._once(inputs.of_rows(rows_n), [num_items[row] for row in rows_n.tolist()], replayed.num_beams + 1)
            if wider is None:
                break
            self.on_pass(replayed.result)
            replayed = Replayed(result=_with_rows(replayed.result, wider.result, rows_n), num_beams=wider.num_beams)
        return replayed

    def _once(self, inputs: BatchInputs, num_items: Sequence[int], num_beams: int) -> Replayed | None:
        """Return one search, with the beams of the graph that ran it; a proof takes any graph of at least num_beams."""
        first = self.requests[0]
        replay = partial(self.graphs.search, num_beams=num_beams, scoring=first.request.scoring)
        traced = self.timed(partial(replay, is_proof=first.kind is not None))(inputs)
        if traced is None:
            return None
        trace, config = traced
        rows_B = 1 + sum((scores_BK > -np.inf).sum(1) for scores_BK in trace.kept.values())
        collect = partial(collect_items, inputs.version, inputs.requests)
        result = result_of(trace, collect, config, num_items, boosts=inputs.boosts)
        return Replayed(result=replace(result, rows=np.full(len(num_items), rows_B)), num_beams=config.num_beams[-1])


def _with_rows(whole: SearchResult, part: SearchResult, rows_n: NDArray[np.int64]) -> SearchResult:
    """Return the result of a batch in which some requests were searched again."""
    changed: dict[str, NDArray[np.generic]] = {}
    names = ["scores", "codes", "num_valid", "bound", "beams_needed", *(["boosts"] if whole.boosts is not None else [])]
    for name in names:
        after = getattr(part, name)
        changed[name] = getattr(whole, name).copy()
        if after.ndim > 1:  # as many columns as its longest answer has items
            changed[name][rows_n, : after.shape[1]] = after
        else:
            changed[name][rows_n] = after
    assert whole.rows is not None
    assert part.rows is not None
    rows, item_ids = whole.rows.copy(), list(whole.item_ids)
    rows[rows_n] += part.rows
    for row, ids in zip(rows_n.tolist(), part.item_ids, strict=True):
        item_ids[row] = ids
    return replace(whole, **changed, rows=rows, item_ids=item_ids, passes=whole.passes + part.passes)
