"""What an engine runs before its first request: every kind of search once, and batches that the latency model learns from."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from leafbeam.catalog import Catalog
from leafbeam.decode import SearchResult
from leafbeam.engine.batcher import BatchSize
from leafbeam.engine.decoder import Decoder
from leafbeam.engine.objectives import Objectives
from leafbeam.engine.prepare import RequestPreparer
from leafbeam.engine.request import ItemId, PendingRequest, Request, Scoring
from leafbeam.engine.settings import Settings
from leafbeam.engine.tuning import PrecisionReport, ThreadTimes, compare_precisions, measure_threads
from leafbeam.index import ItemColumn, Trie, Version

_MAX_CALIBRATION_S = 1.0
_COMPARED_REQUESTS = 4  # of the larger batch that precisions are compared on
_COMPARED_ITEMS = 20  # of each history that precisions are compared on


def warm_up_requests(version: Version, num_beams: int, scorings: Sequence[Scoring]) -> Iterator[Request]:
    """Yield one request for each scoring, with one beam and with `num_beams`."""
    item = _live_item(version)
    for scoring in scorings:
        for beams in (1, num_beams):
            yield Request(history=item, deny_item_ids=item, num_items=1, num_beams=beams, scoring=scoring)


def run_filtered(preparer: RequestPreparer, decoder: Decoder, num_beams: int, clock: Callable[[], float]) -> None:
    """Search once under a filter, with a boost and with a changed one: all may come later, and no request should wait for a
    compilation.
    """
    item, version = _live_item(preparer.version), preparer.version
    pending = preparer.prepare(Request(history=item, num_items=1, num_beams=num_beams, keep_history=True), clock())
    decoder.run([replace(pending, item_filter=version.filter(item_ids=item))])
    tries = [segment.trie for segment in version.segments]
    parts = [ItemColumn(parts=(np.zeros(trie.num_items, np.float32),), index=trie) for trie in tries]
    decoder.run([replace(pending, objectives=Objectives(boost=ItemColumn.joined(parts, version)))])
    first_n = np.arange(min(1, tries[0].num_items))
    parts[0].with_values(first_n, np.ones(len(first_n), np.float32), tries[0]).bounds(tries[:1])


def change_a_copy(catalog: Catalog) -> None:
    """Delete, insert and compact in a catalog of two of its items: the first change should not compile either."""
    trie = catalog.version().segments[0].trie
    ids = trie.items.ids_of(np.arange(min(2, trie.num_items)))
    if not len(ids) or trie.end_code is not None:
        return
    codes = trie.codes_of(ids)
    copy = Trie.build(codes, trie.codebook_sizes, item_ids=ids)
    with Catalog.in_memory(pa.table({"item_id": ids.tolist()}), copy, {"all": "true"}, background=False) as changed:
        changed.delete(ids[:1])
        changed.insert(codes[:1], ids[:1].tolist())
        changed.compact(wait=True)


def choose_threads(
    preparer: RequestPreparer, settings: Settings, decoder: Decoder, most: int, clock: Callable[[], float]
) -> ThreadTimes:
    """Return the number of threads that batches of one request and full ones run best with."""
    request = Request(history=_live_item(preparer.version), num_items=1, num_beams=settings.beams)
    pending = preparer.prepare(request, clock())
    full = settings.capacity.max_requests(pending.size.tokens, settings.beams)
    return measure_threads(most, [partial(decoder.run, [pending] * requests) for requests in sorted({1, full})], clock)


def measure_precision(
    preparer: RequestPreparer, settings: Settings, exact: Decoder, rounded: Decoder, clock: Callable[[], float], baseline: str
) -> PrecisionReport:
    """Compare the settings' precision with the model's, on a batch of one request and on one of several.

    Histories are drawn from the index.
    """
    rng = np.random.default_rng(0)
    items = max(preparer.version.segments, key=lambda segment: segment.num_items).trie.items
    length = min(preparer.max_history, _COMPARED_ITEMS) if items.num_items else 0

    def pending() -> PendingRequest:
        history = items.ids_of(rng.integers(items.num_items, size=length)).tolist() if length else []
        request = Request(history=tuple(history), num_items=1, num_beams=settings.beams, keep_history=True)
        return preparer.prepare(request, clock())

    first = pending()
    several = min(_COMPARED_REQUESTS, settings.capacity.max_requests(first.size.tokens, settings.beams))
    drawn = [first, *(pending() for _ in range(several - 1))]
    batches = [drawn[:requests] for requests in sorted({1, several})]
    searches = [(partial(_search, exact, one), partial(_search, rounded, one)) for one in batches]
    return compare_precisions(settings.precision, searches, clock, baseline)


def _search(decoder: Decoder, batch: Sequence[PendingRequest]) -> SearchResult:
    return decoder.run(batch).search


def calibrate(
    preparer: RequestPreparer,
    settings: Settings,
    decoder: Decoder,
    observe: Callable[[BatchSize, float], None],
    clock: Callable[[], float],
) -> None:
    """Time small and large batches for about a second, and pass their seconds to `observe`."""
    item, num_beams, capacity = _live_item(preparer.version), settings.beams, settings.capacity
    lengths = range(preparer.max_history + 1)
    max_history = max(1, bisect_right(lengths, settings.max_batch_tokens, key=preparer.num_positions) - 1)
    stops = clock() + _MAX_CALIBRATION_S
    shapes = ((1, 1), (1, max_history), (4, 1), (4, max_history), (capacity.requests, 1), (2, max_history // 2))
    for max_requests, items in shapes:
        pending = preparer.prepare(Request(history=item * items, num_items=1, num_beams=num_beams), clock())
        requests = min(max_requests, capacity.max_requests(pending.size.tokens, num_beams))
        if clock() >= stops:
            return
        decoder.run([pending] * requests)  # the first run of a shape allocates its memory
        started = clock()
        decoder.run([pending] * requests)
        observe(BatchSize.of(requests, pending.size.tokens, num_beams), clock() - started)


def _live_item(version: Version) -> tuple[ItemId, ...]:
    """Return the id of an item that is not deleted, if there is one."""
    for segment in version.segments:
        if segment.num_items:
            leaf = 0 if segment.live is None else int(segment.live.ordinals.positions()[0])
            items = segment.trie.items
            return tuple(items.ids_of(items.order_N[leaf : leaf + 1]).tolist())
    return ()
