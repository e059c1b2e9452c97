"""From the output of a batch to the results of its requests; the item memory ranks them, alone or fused with the search.

Shapes: N items of the memory, h items of a history, k of a result.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from leafbeam.decode.policy import pick
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import BatchOutput
from leafbeam.engine.request import ItemId, PendingRequest, Result, Timings
from leafbeam.index import Version
from leafbeam.retrieve import BoundMemory, Fusions, ItemMemory, Reason, features
from leafbeam.retrieve.memory import top_rows

log = logging.getLogger("leafbeam.engine")

_POPULAR = 100  # times as many popular items as a list may have are looked at where groups are capped
_INLINE_ITEMS = 64  # of all requests of a batch: below, handing over to another thread costs more than the work


class RankedItems(NamedTuple):
    """Items, best first, with their scores, the largest part of each score, their boosts, and what quotas miss."""

    item_ids: list[ItemId]
    scores: list[float]
    reasons: list[Reason]
    boosts: list[float]
    unmet: Sequence[int] = ()


class _Chosen(NamedTuple):
    """The rows of a list, with their scores; from `num_found` on they are popular items that nothing found."""

    rows_k: NDArray[np.int64]
    scores_k: NDArray[np.float32]
    found_k: NDArray[np.bool_]
    unmet: Sequence[int] = ()


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

        beams: ids and log probabilities of a search, without boosts; None: no search.
        """
        memory, bound = self.memory, self._bind(pending.version)
        allowed_N = bound.allowed(pending.item_filter)
        history_n = memory.rows_of(pending.history)
        rows_h = memory.newest(history_n)
        parts = memory.scores(rows_h, allowed_N)
        features_FN, fusion = None, None
        if beams is None:
            total_N, weights = memory.total(parts), (1.0, memory.config.text_weight)
            is_found_N = total_N > 0
        else:
            fusion = (memory.fusion or Fusions()).of(keeps_history=pending.request.keep_history)
            features_FN, is_found_N = features(parts, memory.beams(*beams), history_n)
            total_N, weights = fusion.scores(features_FN, is_found_N), (fusion.transition, fusion.text)
            is_found_N = total_N > -np.inf
        boost_N = np.zeros(len(total_N), np.float32)
        if pending.objectives.boost is not None:
            values_N = bound.values(pending.objectives.boost)
            boost_N[: len(values_N)] = values_N  # items inserted since then have none
            is_found_N |= (boost_N > 0) & (total_N > -np.inf)
            total_N = total_N + boost_N
        total_N = np.where(is_found_N, total_N, np.float32(-np.inf))
        chosen = self._chosen(pending, bound, total_N, parts.allowed_N)
        rows_f = chosen.rows_k[chosen.found_k]
        reasons = memory.reasons(rows_h, rows_f, weights)
        if features_FN is not None and fusion is not None:
            by_model_f = fusion.log_prob * features_FN[2, rows_f] + fusion.found * features_FN[3, rows_f]
            for row in np.flatnonzero(features_FN[3, rows_f]).tolist():
                if by_model_f[row] >= reasons[row].score:
                    reasons[row] = Reason(channel="model", item_id=None, score=float(by_model_f[row]))
        reasons_of_found = iter(reasons)
        return RankedItems(
            memory.ids_of(chosen.rows_k),
            chosen.scores_k.tolist(),
            [
                next(reasons_of_found) if is_found else Reason(channel="popular", item_id=None, score=score)
                for is_found, score in zip(chosen.found_k.tolist(), chosen.scores_k.tolist(), strict=True)
            ],
            np.where(chosen.found_k, boost_N[chosen.rows_k], 0).tolist(),
            chosen.unmet,
        )

    def _chosen(
        self, pending: PendingRequest, bound: BoundMemory, total_N: NDArray[np.float32], allowed_N: NDArray[np.bool_]
    ) -> _Chosen:
        """Return the best rows, and popular ones if fewer than the request wants were found, under its caps and quotas."""
        policy, num_items = pending.objectives.policy, pending.request.num_items
        max_rows = num_items if policy is None else len(total_N)
        rows_n = top_rows(total_N, max_rows, minimum=-np.inf)
        missing = num_items - len(rows_n) if policy is None else _POPULAR * num_items
        rows_m = np.empty(0, np.int64)
        if missing > 0:
            others_N = allowed_N.copy()
            others_N[rows_n] = False
            rows_m = self.memory.popular(others_N, missing)
        score = np.float32(min([0.0, *total_N[rows_n[-1:]].tolist()]))
        rows_k = np.concatenate([rows_n, rows_m])
        scores_k = np.concatenate([total_N[rows_n], np.full(len(rows_m), score, np.float32)])
        found_k = np.arange(len(rows_k)) < len(rows_n)
        if policy is None:
            return _Chosen(rows_k, scores_k, found_k)
        groups = [bound.values(cap.groups)[rows_k].tolist() for cap in policy.caps]
        members = [bound.allowed(quota.items)[rows_k].tolist() for quota in policy.quotas]
        picked, unmet = pick(policy, groups, members, len(rows_k))
        return _Chosen(rows_k[picked], scores_k[picked], found_k[picked], unmet)

    def _bind(self, version: Version) -> BoundMemory:
        """Return the binding to a version; that of the latest version is kept."""
        with self._lock:
            if self._bound.version is not version:
                self._bound = BoundMemory(self.memory, version, like=self._bound)
            return self._bound


class ResultWriter:
    """Completes the requests of a batch.

    Between `start` and `stop` long answers are written in `threads` threads of their own, beside the workers.
    """

    def __init__(self, counts: Counts, clock: Callable[[], float], memory: MemoryChannel | None = None) -> None:
        self._counts, self._clock, self._memory = counts, clock, memory
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
            boosts = [] if search.boosts is None else search.boosts[row, :num_valid][kept].tolist()
            unmet = output.unmet[row] if output.unmet else ()
            items = RankedItems(item_ids[kept].tolist(), scores_k[kept].tolist(), [], boosts, unmet)
            codes_kL = search.codes[row, :num_valid][kept]
        else:
            assert self._memory is not None
            items = self._memory.rank(pending, (item_ids, search.model_scores[row, :num_valid]))
            codes_kL = pending.version.codes_of(items.item_ids)
        num_exact = 0 if search.num_exact is None else int(search.num_exact[row])
        return self._write(
            pending,
            items,
            codes_kL,
            output.started,
            (output.prefill_s, output.rounds_s, output.constrain_s),
            num_beams=pending.num_beams if pending.kind is None else pending.size.num_beams,
            exact=bool(search.is_proved[row]),
            num_exact=num_exact,
            rows=0 if search.rows is None else int(search.rows[row]),
            batch_size=batch_size,
            levels=tuple(level.row(row) for level in search.levels),
        )

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
        **of_search: Any,
    ) -> Result:
        """Return the result. stages: the seconds of prefill, rounds and constrain. of_search: what a search says of itself."""
        return Result(
            item_ids=tuple(items.item_ids),
            codes=tuple(tuple(codes) for codes in codes_kL.tolist()),
            scores=tuple(items.scores),
            channel=pending.channel,
            reasons=tuple(items.reasons),
            boosts=_boosts(pending, items),
            unmet=_unmet(pending, items.unmet),
            num_valid=len(items.item_ids),
            empty_rules=pending.empty_rules,
            num_history_used=len(pending.codes),
            num_history_left_out=pending.num_left_out,
            read_user=pending.reads_user,
            ignored_history=pending.ignored_history,
            ignored_deny=pending.ignored_deny,
            index_version=pending.version.name,
            rules_generation=pending.rules_generation,
            timings=Timings(
                prepare=pending.prepared - pending.size.arrived,
                queue=started - pending.prepared,
                prefill=stages[0],
                rounds=stages[1],
                constrain=stages[2],
                postprocess=self._clock() - started - sum(stages),
            ),
            **of_search,
        )


def _boosts(pending: PendingRequest, items: RankedItems) -> tuple[float, ...]:
    if pending.objectives.boost is None:
        return ()
    return tuple(items.boosts) if items.boosts else (0.0,) * len(items.item_ids)


def _unmet(pending: PendingRequest, missing: Sequence[int]) -> dict[str, int]:
    """Return the quotas that a list does not meet, with the number of items that it lacks."""
    pairs = zip(pending.objectives.quotas, missing, strict=False)
    return {name: count for name, count in pairs if count}
