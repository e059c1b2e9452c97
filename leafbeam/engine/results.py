"""From the output of a batch to the results of its requests; the item memory ranks them, alone or fused with the search.

Shapes: N items of the memory, h items of a history, k of a result.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode import SearchResult
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import BatchOutput
from leafbeam.engine.request import ItemId, PendingRequest, Result, Timings
from leafbeam.index import Version
from leafbeam.retrieve import BoundMemory, Fusions, ItemMemory, Reason, features
from leafbeam.retrieve.memory import top_rows

log = logging.getLogger("leafbeam.engine")

_INLINE_ITEMS = 64  # of all requests of a batch: below, handing over to another thread costs more than the work


class RankedItems(NamedTuple):
    """Items, best first, with their scores and the largest part of each score."""

    item_ids: list[ItemId]
    scores: list[float]
    reasons: list[Reason]


class MemoryChannel:
    """Ranks the items that a request allows by an item memory, alone or fused with the beams of its search."""

    def __init__(self, memory: ItemMemory, version: Version) -> None:
        self.memory = memory
        self._lock = threading.Lock()
        self._bound = BoundMemory(memory, version)

    def rank(
        self, pending: PendingRequest, beams: tuple[NDArray[np.generic], NDArray[np.float32]] | None = None
    ) -> RankedItems:
        """Return the best of the allowed items that were found, and then the most popular of the other allowed items.

        beams: ids and log probabilities of a search; None: no search.
        """
        memory, num_items = self.memory, pending.request.num_items
        allowed_N = self._bind(pending.version).allowed(pending.item_filter)
        history_n = memory.rows_of(pending.history)
        if pending.deny is not None:
            deny_n = memory.rows_of(pending.deny)
            allowed_N[deny_n[deny_n >= 0]] = False
        rows_h = memory.newest(history_n)
        parts = memory.scores(rows_h, allowed_N)
        if beams is None:
            total_N, weights = memory.total(parts), (1.0, memory.config.text_weight)
            best_k = top_rows(total_N, num_items, minimum=0.0)
            ranked = RankedItems(memory.ids_of(best_k), total_N[best_k].tolist(), memory.reasons(rows_h, best_k, weights))
            return self._filled(ranked, best_k, allowed_N, num_items)
        fusion = (memory.fusion or Fusions()).of(keeps_history=pending.request.keep_history)
        features_FN, found_N = features(parts, memory.beams(*beams), history_n)
        total_N = fusion.scores(features_FN, found_N)
        best_k = top_rows(total_N, num_items, minimum=-np.inf)
        reasons = memory.reasons(rows_h, best_k, (fusion.transition, fusion.text))
        by_model_k = fusion.log_prob * features_FN[2, best_k] + fusion.found * features_FN[3, best_k]
        for place in np.flatnonzero(features_FN[3, best_k]).tolist():
            if by_model_k[place] >= reasons[place].score:
                reasons[place] = Reason(channel="model", item_id=None, score=float(by_model_k[place]))
        return self._filled(RankedItems(memory.ids_of(best_k), total_N[best_k].tolist(), reasons), best_k, allowed_N, num_items)

    def _filled(
        self, ranked: RankedItems, rows_k: NDArray[np.int64], allowed_N: NDArray[np.bool_], num_items: int
    ) -> RankedItems:
        """Return the ranked items, at `rows_k`, followed by popular ones if fewer than `num_items` were found."""
        missing = num_items - len(rows_k)
        if missing <= 0:
            return ranked
        others_N = allowed_N.copy()
        others_N[rows_k] = False
        rows_m = self.memory.popular(others_N, missing)
        score = min([0.0, *ranked.scores[-1:]])
        return RankedItems(
            ranked.item_ids + self.memory.ids_of(rows_m),
            ranked.scores + [score] * len(rows_m),
            ranked.reasons + [Reason(channel="popular", item_id=None, score=score)] * len(rows_m),
        )

    def _bind(self, version: Version) -> BoundMemory:
        """Return the binding to a version; that of the latest version is kept."""
        with self._lock:
            if self._bound.version is not version:
                self._bound = BoundMemory(self.memory, version, like=self._bound)
            return self._bound


class ResultWriter:
    """Completes the requests of a batch. reads_users: whether the model has user tokens.

    Between `start` and `stop` long answers are written in `threads` threads of their own, beside the workers.
    """

    def __init__(
        self, counts: Counts, clock: Callable[[], float], memory: MemoryChannel | None = None, *, reads_users: bool
    ) -> None:
        self._counts, self._clock, self._memory, self._reads_users = counts, clock, memory, reads_users
        self._pool: ThreadPoolExecutor | None = None

    def start(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="leafbeam-host")

    def stop(self, *, wait: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait)

    def deliver(self, requests: Sequence[PendingRequest], output: BatchOutput) -> None:
        """Complete every request whose answer is final and that is not done, here or in another thread."""
        if self._pool is None or sum(pending.request.num_items for pending in requests) <= _INLINE_ITEMS:
            self._complete(requests, output)
        elif not all(pending.is_done for pending in requests):
            self._pool.submit(self._complete, requests, output)

    def _complete(self, requests: Sequence[PendingRequest], output: BatchOutput) -> None:
        for row, pending in enumerate(requests):
            if pending.is_done or not output.final_B[row]:
                continue
            try:
                result = self.result(pending, row, len(requests), output)
            except Exception as error:
                log.exception("a result could not be built")
                if pending.complete(error):
                    self._counts.add("failed", "error")
                continue
            if pending.complete(result):
                self._counts.add("answered", "in_time" if self._clock() <= pending.size.deadline else "late")

    def result(self, pending: PendingRequest, row: int, batch_size: int, output: BatchOutput) -> Result:
        """Return one row of the search as a result, fused with the memory if the request says so."""
        search = output.search
        num_valid = int(search.num_valid[row])
        item_ids, scores_k = search.item_ids[row][:num_valid], search.scores[row, :num_valid]
        if pending.channel == "model":
            kept = slice(pending.request.num_items)
            items = RankedItems(item_ids[kept].tolist(), scores_k[kept].tolist(), [])
            codes_kL = search.codes[row, :num_valid][kept]
        else:
            assert self._memory is not None
            items = self._memory.rank(pending, (item_ids, scores_k))
            codes_kL = pending.version.codes_of(items.item_ids)
        num_exact = 0 if search.num_exact is None else int(search.num_exact[row])
        return replace(
            self._write(pending, items, codes_kL, output.started, (output.prefill_s, output.rounds_s, output.constrain_s)),
            num_beams=pending.num_beams if pending.kind is None else pending.size.num_beams,
            exact=bool(search.is_proved[row]),
            num_exact=num_exact,
            rows=0 if search.rows is None else int(search.rows[row]),
            batch_size=batch_size,
            levels=tuple(level.row(row) for level in search.levels),
            boosts=() if pending.objectives.boost is None else self._boosts(search, row, len(items.item_ids)),
            unmet=_unmet(pending, output.unmet[row] if output.unmet else ()),
        )

    @staticmethod
    def _boosts(search: SearchResult, row: int, count: int) -> tuple[float, ...]:
        return (0.0,) * count if search.boosts is None else tuple(search.boosts[row, :count].tolist())

    def memory_result(self, pending: PendingRequest) -> Result:
        """Return the answer of the memory alone, in the caller's thread."""
        assert self._memory is not None
        started = self._clock()
        items = self._memory.rank(pending)
        return self._write(pending, items, pending.version.codes_of(items.item_ids), started, (0.0, 0.0, 0.0))

    def _write(
        self,
        pending: PendingRequest,
        items: RankedItems,
        codes_kL: NDArray[np.int64],
        started: float,
        stages: tuple[float, float, float],
    ) -> Result:
        """Return the result without what a search says of itself. stages: the seconds of prefill, rounds and constrain."""
        return Result(
            item_ids=tuple(items.item_ids),
            codes=tuple(tuple(codes) for codes in codes_kL.tolist()),
            scores=tuple(items.scores),
            channel=pending.channel,
            reasons=tuple(items.reasons),
            num_valid=len(items.item_ids),
            empty_rules=pending.empty_rules,
            num_beams=0,
            exact=False,
            num_exact=0,
            rows=0,
            num_history_used=len(pending.codes),
            num_history_left_out=pending.num_left_out,
            read_user=pending.request.user is not None and self._reads_users,
            ignored_history=pending.ignored_history,
            ignored_deny=pending.ignored_deny,
            index_version=pending.version.name,
            rules_generation=pending.rules_generation,
            batch_size=1,
            timings=Timings(
                prepare=pending.prepared - pending.size.arrived,
                queue=started - pending.prepared,
                prefill=stages[0],
                rounds=stages[1],
                constrain=stages[2],
                postprocess=self._clock() - started - sum(stages),
            ),
        )


def _unmet(pending: PendingRequest, missing: Sequence[int]) -> dict[str, int]:
    """Return the quotas that a list does not meet, with the number of items that it lacks."""
    pairs = zip(pending.objectives.quotas, missing, strict=False)
    return {name: count for name, count in pairs if count}
