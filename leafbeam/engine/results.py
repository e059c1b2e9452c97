"""From the output of a batch to the results of its requests."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import BatchOutput
from leafbeam.engine.request import PendingRequest, Result, Timings
from leafbeam.index import Version

log = logging.getLogger("leafbeam.engine")

_INLINE_ITEMS = 64  # of all requests of a batch: below, handing over to another thread costs more than the work


class ResultWriter:
    """Completes the requests of a batch. reads_users: whether the model has user tokens.

    Between `start` and `stop` long answers are written in `threads` threads of their own, beside the workers.
    """

    def __init__(self, counts: Counts, clock: Callable[[], float], *, reads_users: bool) -> None:
        self._counts, self._clock, self._reads_users = counts, clock, reads_users
        self._pool: ThreadPoolExecutor | None = None

    def start(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="leafbeam-host")

    def stop(self, *, wait: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait)

    def deliver(self, requests: Sequence[PendingRequest], output: BatchOutput) -> None:
        """Complete every request that is not done, here or in another thread."""
        if self._pool is None or sum(pending.request.num_items for pending in requests) <= _INLINE_ITEMS:
            self._complete(requests, output)
        elif not all(pending.is_done for pending in requests):
            self._pool.submit(self._complete, requests, output)

    def _complete(self, requests: Sequence[PendingRequest], output: BatchOutput) -> None:
        for row, pending in enumerate(requests):
            if pending.is_done:
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
        """One row of the search as a result."""
        search = output.search
        num_valid = min(int(search.num_valid[row]), pending.request.num_items)
        decoded_s = output.prefill_s + output.rounds_s + output.constrain_s
        return Result(
            item_ids=tuple(search.item_ids[row][:num_valid].tolist()),
            sids=tuple(tuple(sid) for sid in search.codes[row, :num_valid].tolist()),
            scores=tuple(search.scores[row, :num_valid].tolist()),
            num_valid=num_valid,
            num_beams=pending.size.num_beams,
            num_history_used=len(pending.codes),
            read_user=pending.request.user is not None and self._reads_users,
            ignored_history=pending.ignored_history,
            ignored_deny=pending.ignored_deny,
            index_version=version_name(pending.version),
            rules_generation=pending.rules_generation,
            batch_size=batch_size,
            timings=Timings(
                prepare=pending.prepared - pending.size.arrived,
                queue=output.started - pending.prepared,
                prefill=output.prefill_s,
                rounds=output.rounds_s,
                constrain=output.constrain_s,
                postprocess=self._clock() - output.started - decoded_s,
            ),
        )


def version_name(version: Version) -> str:
    """The fingerprint of a version's base index, and its number of changes since, if any."""
    base = version.segments[0].trie.version
    return f"{base}+{version.number}" if version.number else base
