"""An engine under requests, changes, cancels and reloads at once; counts lost and wrong answers, and memory growth.

Threads ask (any width, rule, deadline, and a tenth go away again), one changes the catalog all the time (items come and go,
rules are reloaded, segments merged, rows purged), and the model raises, runs out of memory or hangs now and then. Every
request has to be answered or refused, every answer has to hold allowed items only, none of which was gone when it was asked
for, and what the process holds at the end has to be what it held after the first fifth.

Nothing is compared with a peer: it is a check, and its row says how it went.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from benchmarks.resident import growth_bytes, malloc_bytes
from benchmarks.serving.soak_shop import NUM_ITEMS, RULES, draw_codes, index_of, rows_of, small_model
from leafbeam.catalog import Catalog
from leafbeam.engine import COUNTERS, Engine, Request, Result, Settings
from leafbeam.errors import LeafbeamError
from leafbeam.model import DecodeSession, PromptStore, Transformer, Workspace

__all__ = ["TIMED", "Outcome", "runs", "soak"]

TIMED = False  # it makes its own load, and counts

CLIENTS, WORKERS, WATCHDOG_S = 4, 2, 1.0
ENDS = ("refused", "shed", "cancelled", "failed", "answered")  # each request comes to one of these


def runs(quick: bool, seconds: float = 60.0) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of one row."""
    seconds = min(seconds, 10.0) if quick else seconds
    found = soak(seconds)
    parameters = {"seconds": seconds, "clients": CLIENTS, "workers": WORKERS, "items": NUM_ITEMS}
    yield parameters, found.row()


class Sample(NamedTuple):
    """Bytes at one moment: of the process, allocated by Python since the start, and given out by malloc."""

    resident: int
    python: int
    malloc: int


@dataclass(kw_only=True)
class Outcome:
    """What a soak found. wrong: answers that broke a rule or held what was gone. lost: requests that got no answer at all.

    samples: of memory, taken all the time.
    """

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    asked: int = 0
    changes: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: int = 0
    samples: list[Sample] = field(default_factory=list[Sample])

    @property
    def ended(self) -> int:
        """Requests that the engine knows how they ended."""
        return sum(sum(self.counts[kind].values()) for kind in ENDS)

    def growth(self, name: str) -> float:
        """Growth in bytes of a field of the samples."""
        return growth_bytes([getattr(sample, name) for sample in self.samples])

    def row(self) -> dict[str, Any]:
        first, last = self.samples[len(self.samples) // 5], self.samples[-1]
        tenths = np.array_split([sample.resident for sample in self.samples], min(10, len(self.samples)))
        return {
            "asked": self.asked,
            "ended": self.ended,
            "lost": self.lost,
            "wrong": len(self.wrong),
            "changes": self.changes,
            "counts": {kind: {why: n for why, n in found.items() if n} for kind, found in self.counts.items()},
            "resident_mb": {"first": round(first.resident / 1e6, 1), "last": round(last.resident / 1e6, 1)},
            "python_mb": {"first": round(first.python / 1e6, 2), "last": round(last.python / 1e6, 2)},
            "malloc_mb": {"first": round(first.malloc / 1e6, 1), "last": round(last.malloc / 1e6, 1)},
            "resident_mb_by_tenth": [round(float(np.median(part)) / 1e6, 1) for part in tenths],
            "growth_mb": {
                "resident": round(self.growth("resident") / 1e6, 2),
                "python": round(self.growth("python") / 1e6, 3),
                "malloc": round(self.growth("malloc") / 1e6, 2),
            },
        }


class _BadDays:
    """A model's `start`, on a device that has bad days. faults: how often; stall_s: for how long it hangs."""

    def __init__(self, start: Callable[..., DecodeSession]) -> None:
        self._start = start
        self.faults, self.stall_s = 0.0, 0.0

    def __call__(
        self,
        tokens_BT: torch.Tensor,
        lengths_B: torch.Tensor | None = None,
        *,
        workspace: Workspace | None = None,
        store: PromptStore | None = None,
        hidden: bool = False,
        other_tokens: bool = False,
    ) -> DecodeSession:
        if random.random() < self.faults:
            kind = random.randrange(4)
            if kind == 0:
                raise RuntimeError("a fault of the device")
            if kind == 1 or (kind == 2 and len(tokens_BT) > 1):
                raise MemoryError("no memory on the device")
            time.sleep(self.stall_s if kind == 3 else self.stall_s / 10)
        return self._start(tokens_BT, lengths_B, workspace=workspace, store=store, hidden=hidden, other_tokens=other_tokens)


def soak(seconds: float, *, faults: float = 0.03, trace: bool = True, seed: int = 0) -> Outcome:
    """Run it all for so many seconds. faults: the share of batches that meet one. trace: count Python's bytes too (slower)."""
    log = logging.getLogger("leafbeam.engine")
    level = log.level
    log.setLevel(logging.CRITICAL)  # faults are wanted here
    try:
        made = _Soak(faults, seed)
        gc.collect()
        gc.freeze()  # what is there by now stays: it need not be looked at again and again
        if trace:
            tracemalloc.start()
        return made.run(seconds)
    finally:
        tracemalloc.stop()
        gc.unfreeze()
        log.setLevel(level)


class _Soak:
    """The shop, its engine, and the threads around it.

    Item ids only grow and the oldest go first, so what is gone is what is below `_horizon`: no list of it has to be kept.
    """

    def __init__(self, faults: float, seed: int) -> None:
        self._catalog, model = _shop(seed)
        self._device = _BadDays(model.start)
        model.start = self._device  # type: ignore[method-assign]
        settings = Settings(workers=WORKERS, slo_s=0.5, watchdog_s=WATCHDOG_S, max_queue=24, num_beams=20)
        self._engine = Engine(model, self._catalog, settings=settings)
        self._faults, self._seed = faults, seed
        self._outcome = Outcome()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._horizon, self._next = 0, NUM_ITEMS

    def run(self, seconds: float) -> Outcome:
        work = [lambda number=number: self._ask(number) for number in range(CLIENTS)]
        threads = [threading.Thread(target=self._guarded, args=(one,)) for one in (*work, self._change)]
        with self._catalog, self._engine:
            self._device.faults, self._device.stall_s = self._faults, 1.2 * WATCHDOG_S
            for thread in threads:
                thread.start()
            began = time.monotonic()
            while time.monotonic() - began < seconds and not self._over.is_set():
                self._outcome.samples.append(_held())
                self._over.wait(max(0.5, seconds / 200))
            self._over.set()
            for thread in threads:
                thread.join(60)
        self._outcome.counts = {kind: self._engine.counts.of(kind) for kind in COUNTERS}
        return self._outcome

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._wrong(f"a thread of the soak ended: {error!r}")
            self._over.set()
            raise

    def _wrong(self, what: str) -> None:
        with self._lock:
            self._outcome.wrong.append(what)

    def _ask(self, number: int) -> None:
        dice = random.Random(f"{self._seed} {number}")
        while not self._over.is_set():
            asked = [self._submit(dice) for _ in range(dice.randint(1, 8))]
            for one in asked:
                if one is not None:
                    self._collect(dice, *one)
            time.sleep(dice.expovariate(1 / 0.02))

    def _submit(self, dice: random.Random) -> tuple[Request, int, Future[Result]] | None:
        with self._lock:
            self._outcome.asked += 1
        horizon = self._horizon
        request = Request(
            history=tuple(dice.randint(horizon, self._next + 5) for _ in range(dice.randint(0, 30))),
            num_items=dice.randint(1, 5),
            num_beams=dice.choice([5, 20, 50]),
            rules=dice.choice([(), ("cheap",), ("dear",), ("cheap", "in_stock")]),
            scoring=dice.choice(["full", "allowed"]),  # type: ignore[arg-type]
            deadline_s=dice.choice([None, None, None, 0.02, 0.2, -1.0]),
        )
        try:
            return request, horizon, self._engine.submit(request)
        except LeafbeamError:  # counted by the engine
            return None

    def _collect(self, dice: random.Random, request: Request, horizon: int, future: Future[Result]) -> None:
        if dice.random() < 0.1:
            time.sleep(dice.random() * 0.005)
            future.cancel()
        try:
            result = future.result(20)
        except TimeoutError:
            with self._lock:
                self._outcome.lost += 1
            self._wrong("a request got no answer within 20 s")
        except (LeafbeamError, RuntimeError, CancelledError):  # counted by the engine
            pass
        else:
            self._judge(request, horizon, result)

    def _judge(self, request: Request, horizon: int, result: Result) -> None:
        items = np.array(result.item_ids, np.int64)
        obeys = {"cheap": items % 40 < 20, "dear": items % 40 >= 20, "in_stock": items % 3 > 0}
        if len(items) != request.num_items or len(set(result.item_ids)) != len(items):
            self._wrong(f"{len(items)} items for {request}")
        if not all(obeys[rule].all() for rule in request.rules):
            self._wrong(f"{result.item_ids} for {request.rules}")
        if (items < horizon).any():
            self._wrong(f"{result.item_ids} hold items, removed before the request (below {horizon})")

    def _change(self) -> None:
        rng = np.random.default_rng(self._seed)
        while not self._over.wait(0.03):
            kind = rng.choice(["items", "reload", "compact", "purge"], p=[0.85, 0.05, 0.05, 0.05])
            if kind == "items":
                number = int(rng.integers(1, 30))
                first, self._next = self._next, self._next + number
                with self._catalog.transaction() as change:
                    ids = np.arange(first, first + number)
                    change.insert(draw_codes(rng, number), ids, rows_of(ids))
                    change.delete(np.arange(self._horizon, self._horizon + number))
                self._horizon += number
            elif kind == "reload":
                if not self._catalog.reload().ok:
                    self._wrong("the rules could not be read again")
            elif kind == "compact":
                self._catalog.compact()
            else:
                self._catalog.purge()
            self._outcome.changes += 1


def _held() -> Sample:
    gc.collect()
    statm = Path("/proc/self/statm")
    resident = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
    return Sample(resident, tracemalloc.get_traced_memory()[0], malloc_bytes())


def _shop(seed: int) -> tuple[Catalog, Transformer]:
    trie = index_of(draw_codes(np.random.default_rng(seed), NUM_ITEMS))
    return Catalog.in_memory(pa.Table.from_pylist(rows_of(range(NUM_ITEMS))), trie, RULES), small_model(seed)
