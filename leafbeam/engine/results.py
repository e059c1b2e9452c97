"""From the output of a batch to the results of its requests."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from leafbeam.engine.channels import MemoryChannel, RankedItems
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import BatchOutput
from leafbeam.engine.request import PendingRequest, Result, Timings

log = logging.getLogger("leafbeam.engine")

_INLINE_ITEMS = 64  # of all requests of a batch: below, handing over to another thread costs more than the work


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """How far an answer is proved, and the work of its search; by default no search ran. See `Result`."""

    num_beams: int = 0
    exact: bool = False
    num_exact: int = 0
    rows: int = 0


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
        """One row of the search as a result, fused with the memory if the request says so."""
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
        stages = output.prefill_s, output.rounds_s, output.constrain_s
        num_exact = 0 if search.num_exact is None else int(search.num_exact[row])
        proof = Proof(
            num_beams=pending.num_beams if pending.kind is None else pending.size.num_beams,
            exact=bool(search.is_proved[row]),
            num_exact=num_exact,
            rows=0 if search.rows is None else int(search.rows[row]),
        )
        result = self._write(pending, items, codes_kL, batch_size, proof, output.started, stages)
        return replace(result, levels=tuple(level.row(row) for level in search.levels)) if search.levels else result

    def memory_result(self, pending: PendingRequest) -> Result:
        """Return the answer of the memory alone, in the caller's thread."""
        assert self._memory is not None
        started = self._clock()
        items = self._memory.rank(pending)
        return self._write(pending, items, pending.version.codes_of(items.item_ids), 1, Proof(), started, (0.0, 0.0, 0.0))

    def _write(
        self,
        pending: PendingRequest,
        items: RankedItems,
        codes_kL: NDArray[np.int64],
        batch_size: int,
        proof: Proof,
        started: float,
        stages: tuple[float, float, float],
    ) -> Result:
        """stages: the seconds of prefill, rounds and constrain."""
        return Result(
            item_ids=tuple(items.item_ids),
            codes=tuple(tuple(codes) for codes in codes_kL.tolist()),
            scores=tuple(items.scores),
            channel=pending.channel,
            reasons=tuple(items.reasons),
            num_valid=len(items.item_ids),
            empty_rules=pending.empty_rules,
            num_beams=proof.num_beams,
            exact=proof.exact,
            num_exact=proof.num_exact,
            rows=proof.rows,
            num_history_used=len(pending.codes),
            num_history_left_out=pending.num_left_out,
            read_user=pending.request.user is not None and self._reads_users,
            ignored_history=pending.ignored_history,
            ignored_deny=pending.ignored_deny,
            index_version=pending.version.name,
            rules_generation=pending.rules_generation,
            batch_size=batch_size,
            timings=Timings(
                prepare=pending.prepared - pending.size.arrived,
                queue=started - pending.prepared,
                prefill=stages[0],
                rounds=stages[1],
                constrain=stages[2],
                postprocess=self._clock() - started - sum(stages),
            ),
        )
