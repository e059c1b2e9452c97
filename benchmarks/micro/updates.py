"""`python -m benchmarks updates`: changes to a live index: time until a search sees them, and their cost for searches.

visible    1,000 inserts and 1,000 deletes in one transaction, from the call to arrays that a search can run on: in memory and
           with a synced log, with a delta that grows from nothing and with one of 100,000 rows
search     whole searches of B = 2 requests and K = 70 beams over base + 1 % delta, with and without dead items in the base,
           against one segment of the same items; parity first
sustained  ten transactions a second of 50 inserts and 50 deletes each beside a thread that searches all the time

One thread each for searches and changes. No peer is known whose constraint changes while it decodes (STATIC leaves it to future
work), so what stands beside each figure is the same search without changes.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.micro.step import B, K, L, V
from benchmarks.rows import interleaved, spread
from benchmarks.workloads import DISTRIBUTIONS, random_codes, random_logits
from leafbeam.decode import BeamSearch
from leafbeam.index import Trie, Version
from leafbeam.live import CompactionPolicy, LiveIndex
from leafbeam.ops.constrain.cpu import step as cpu

__all__ = ["measure", "runs"]

NEVER = CompactionPolicy(fraction=None)
BATCH = 1_000  # inserts, and as many deletes
LARGE_DELTA = 100_000
CHANGES_PER_SECOND, TRANSACTIONS_PER_SECOND = 1_000, 10


def runs(quick: bool, seconds: float = 60.0) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of one row for each distribution."""
    for distribution in DISTRIBUTIONS:
        yield measure(distribution, 100_000 if quick else 10_000_000, min(seconds, 3.0) if quick else seconds)


def measure(
    distribution: str, num_items: int, seconds: float, repeats: int = 15, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All three on one catalog; `seconds`: how long changes are sustained."""
    rng = np.random.default_rng(seed)
    feed = Feed.of(rng, distribution, num_items)
    base = Trie.build(feed.codes[:num_items], [V] * L, feed.ids[:num_items])
    logits = [random_logits(rng, B, 1 if level == 0 else K, V) for level in range(L)]
    measured: dict[str, Any] = {"visible_ms": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in (("memory", None), ("synced", Path(folder) / "visible")):
            with LiveIndex.create(path, base, compaction=NEVER) as index:
                measured["visible_ms"][name] = _visible(index, feed.again(), repeats)
        measured["search"] = _search(base, feed.again(), logits, 4 * repeats)
        with LiveIndex.create(Path(folder) / "sustained", base, compaction=NEVER) as index:
            measured["sustained"] = _sustained(index, feed.again(), logits, seconds)
    parameters = {
        "distribution": distribution,
        "num_items": num_items,
        "B": B,
        "K": K,
        "V": V,
        "L": L,
        "threads": 1,
        "seconds": seconds,
        "repeats": repeats,
    }
    return parameters, measured


@dataclass
class Feed:
    """Rows to insert, one after the other, and items of the base to delete, in random order; ids in no order at all."""

    codes: NDArray[np.uint16]
    ids: NDArray[np.int64]
    doomed: NDArray[np.int64]
    row: int
    victim: int = 0

    @classmethod
    def of(cls, rng: np.random.Generator, distribution: str, num_items: int) -> Feed:
        """As many rows beyond the base as the largest part needs."""
        total = num_items + num_items // 100 + 2 * LARGE_DELTA
        codes = np.empty((total, L), np.uint16)
        for at in range(0, total, 1_000_000):
            codes[at : at + 1_000_000] = random_codes(rng, distribution, len(codes[at : at + 1_000_000]), V, L)
        ids = rng.permutation(total) * 3
        return cls(codes=codes, ids=ids, doomed=rng.permutation(ids[:num_items])[: 4 * LARGE_DELTA], row=num_items)

    def again(self) -> Feed:
        """The same feed; called before any row is taken, so from its beginning."""
        return Feed(codes=self.codes, ids=self.ids, doomed=self.doomed, row=self.row)

    def take(self, count: int) -> tuple[NDArray[np.uint16], NDArray[np.int64]]:
        """The next rows to insert."""
        begin, self.row = self.row, self.row + count
        assert self.row <= len(self.codes)
        return self.codes[begin : self.row], self.ids[begin : self.row]

    def victims(self, count: int) -> NDArray[np.int64]:
        """The next items to delete."""
        begin, self.victim = self.victim, self.victim + count
        assert self.victim <= len(self.doomed)
        return self.doomed[begin : self.victim]


def _visible(index: LiveIndex, feed: Feed, repeats: int) -> dict[str, Any]:
    """Milliseconds until 1,000 inserts and 1,000 deletes are in the arrays of the next search."""

    def change() -> None:
        with index.transaction() as transaction:
            transaction.insert(*feed.take(BATCH))
            transaction.delete(feed.victims(BATCH))
        cpu.bind(index.version())

    change()  # compiles
    growing = interleaved({"growing": change}, repeats)["growing"]
    index.insert(*feed.take(LARGE_DELTA - index.status.num_delta))
    large = interleaved({"large": change}, repeats)["large"]
    return {
        "growing_delta": _tail(growing),
        "large_delta": _tail(large),
        "delta_rows": index.status.num_delta,
        "dead_in_base": index.status.num_deleted,
    }


def _search(base: Trie, feed: Feed, logits: list[NDArray[np.float32]], repeats: int) -> dict[str, Any]:
    """Microseconds of a whole search over base + 1 % delta, and over one segment of the same items."""
    share = base.num_items // 100
    with LiveIndex.create(None, base, compaction=NEVER) as index:
        index.insert(*feed.take(share))
        grown = index.version()
        index.delete(feed.victims(share))
        changed = index.version()
        searches = {"base + delta": _searcher(grown, logits), "base + delta, 1 % dead": _searcher(changed, logits)}
        index.compact(wait=True)
        merged = index.version()
    one = {"one segment": _searcher(_rebuilt(grown), logits), "one segment, without the dead": _searcher(merged, logits)}
    for ours, theirs in zip(searches.values(), one.values(), strict=True):
        mine, its = ours(), theirs()
        np.testing.assert_array_equal(mine.scores, its.scores)
        for found, expected in zip(mine.item_ids, its.item_ids, strict=True):
            np.testing.assert_array_equal(found, expected)
    alone = {"base alone": _searcher(Version.of(base), logits)}
    seconds = interleaved({**searches, **one, **alone}, repeats)
    microseconds = {name: spread(taken) for name, taken in seconds.items()}
    ratios = {
        ours: round(microseconds[ours]["p50"] / microseconds[theirs]["p50"], 3)
        for ours, theirs in zip(searches, one, strict=True)
    }
    return {"us": microseconds, "over_one_segment": ratios, "delta_rows": share}


def _sustained(index: LiveIndex, feed: Feed, logits: list[NDArray[np.float32]], seconds: float) -> dict[str, Any]:
    """Search times while changes come in, and while none do, before and after; and how soon the changes were visible."""
    each = CHANGES_PER_SECOND // TRANSACTIONS_PER_SECOND // 2
    with index.transaction() as transaction:  # compiles
        transaction.insert(*feed.take(each))
        transaction.delete(feed.victims(each))
    idle = _search_for(index, logits, seconds / 4)
    visible: list[float] = []
    late: list[float] = []
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            begin = time.perf_counter()
            for number in range(round(seconds * TRANSACTIONS_PER_SECOND)):
                due = begin + number / TRANSACTIONS_PER_SECOND
                time.sleep(max(0.0, due - time.perf_counter()))
                started = time.perf_counter()
                with index.transaction() as transaction:
                    transaction.insert(*feed.take(each))
                    transaction.delete(feed.victims(each))
                visible.append(time.perf_counter() - started)
                late.append(started - due)
        except BaseException as error:
            failures.append(error)
        finally:
            stop.set()

    writer = threading.Thread(target=write)
    before = index.version().number
    began = time.perf_counter()
    writer.start()
    live = _search_for(index, logits, None, stop)
    writer.join()
    took = time.perf_counter() - began
    if failures:
        raise failures[0]
    changes = (index.version().number - before) * 2 * each
    idle += _search_for(index, logits, seconds / 4)
    p99 = {name: float(np.percentile(one, 99)) for name, one in (("idle", idle), ("live", live))}
    return {
        "changes_per_second": round(changes / max(took, seconds), 1),
        "visible_ms": _tail(visible),
        "latest_start_ms": round(max(late) * 1e3, 2),
        "search_ms": {"idle": _tail(idle), "live": _tail(live)},
        "searches": {"idle": len(idle), "live": len(live)},
        "p99_over_idle": round(p99["live"] / p99["idle"], 3),
        "versions_alive": index.status.versions_alive,
        "delta_rows": index.status.num_delta,
    }


def _search_for(
    index: LiveIndex, logits: list[NDArray[np.float32]], seconds: float | None, stop: threading.Event | None = None
) -> list[float]:
    """Seconds of each search until the time is over, binding a version when it is new, as a server does at a batch's start."""
    taken: list[float] = []
    version = index.version()
    search = _searcher(version, logits)
    search()
    until = time.perf_counter() + (seconds or float("inf"))
    while time.perf_counter() < until and not (stop is not None and stop.is_set()):
        begin = time.perf_counter()
        newest = index.version()
        if newest is not version:
            version, search = newest, _searcher(newest, logits)
        search()
        taken.append(time.perf_counter() - begin)
    return taken


def _searcher(version: Version, logits: list[NDArray[np.float32]]) -> Callable[[], Any]:
    """A whole search over given logits."""
    search = BeamSearch(version, num_beams=K, backend="cpu")

    def run() -> Any:
        levels = iter(logits)
        return search.run(lambda codes, parents: next(levels), batch_size=B)

    return run


def _rebuilt(version: Version) -> Version:
    """One trie of a version's items, built in one go."""
    codes = np.concatenate([one.trie.codes_of(one.trie.item_ids).astype(np.uint16) for one in version.segments])
    ids = np.concatenate([one.trie.item_ids for one in version.segments])
    return Version.of(Trie.build(codes, version.codebook_sizes, ids))


def _tail(seconds: list[float]) -> dict[str, float]:
    """p50, p80, p99 and the most, in milliseconds."""
    p50, p80, p99 = np.percentile(np.asarray(seconds) * 1e3, [50, 80, 99])
    most = max(seconds) * 1e3
    return {"p50": round(float(p50), 3), "p80": round(float(p80), 3), "p99": round(float(p99), 3), "max": round(most, 3)}
