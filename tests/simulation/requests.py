"""Schedules of the engine's scheduler, batcher, workers and results in simulated time: clients, cancellations, faults, hangs.

Every request ends exactly once: refused by name, answered, cancelled or failed. None starts after its deadline, no limit is
exceeded, no thread sleeps while there is work, a hang is noticed in time, and `close` leaves nothing behind.
"""

import logging
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from leafbeam.decode import SearchResult
from leafbeam.engine import scheduler, worker
from leafbeam.engine.batcher import RequestSize
from leafbeam.engine.counts import Counts
from leafbeam.engine.decoder import BatchAbandoned, BatchOutput
from leafbeam.engine.request import PendingRequest, Request
from leafbeam.engine.results import ResultWriter
from leafbeam.engine.settings import Settings
from leafbeam.engine.worker import SlowBatches
from leafbeam.errors import OverloadedError, UnavailableError
from leafbeam.index import Trie, Version
from tests.simulation.threads import LATENCY_S, World

VERSION = Version.of(Trie.build([[0, 1], [1, 0]], [2, 2], ["a", "b"]))


class Decoder:
    """Takes time, fails, runs out of memory and hangs, as the seed says."""

    def __init__(self, schedule: "Schedule") -> None:
        self._schedule = schedule

    def release_memory(self) -> None:
        self._schedule.counts["released"] += 1

    def run(self, requests: list[PendingRequest], on_pass: Any = None) -> BatchOutput:
        schedule, world = self._schedule, self._schedule.world
        random, started = schedule.random, world.now
        schedule.check_batch(requests)
        seconds = schedule.seconds * (0.5 + len(requests)) * random.uniform(0.8, 1.2)
        fate = random.random()
        if fate < schedule.hang_rate:
            schedule.counts["hangs"] += 1
            seconds = schedule.settings.watchdog_s * random.choice([1.5, 1.5, 5.0])
        for _ in range(4):
            world.sleep(seconds / 4)
            if all(pending.is_done for pending in requests):
                raise BatchAbandoned
        fate = random.random()
        if fate < schedule.fault_rate:
            raise random.choice([ZeroDivisionError("of the model"), MemoryError(), SystemExit(1)])
        batch, num_items = len(requests), 2
        search = SearchResult(
            item_ids=[np.array(["a", "b"])] * batch,
            scores=np.zeros((batch, num_items), np.float32),
            codes=np.zeros((batch, num_items, 2), np.int64),
            num_items=np.full(batch, num_items),
            num_valid=np.full(batch, num_items),
        )
        final_B = np.ones(batch, np.bool_)
        return BatchOutput(
            search=search, final_B=final_B, started=started, prefill_s=0.0, rounds_s=world.now - started, constrain_s=0.0
        )


class Schedule:
    """One seeded schedule. counts: what happened in it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.counts: Counter[str] = Counter()
        self.world = World(random, before_advance=self.check_idle)
        self.seconds = random.choice([0.01, 0.05])
        self.hang_rate, self.fault_rate = random.choice([0, 0, 0.1]), random.choice([0, 0.1])
        self.settings = Settings(
            workers=random.randint(1, 3),
            max_batch=random.randint(1, 4),
            max_batch_tokens=random.choice([20, 100]),
            max_beam_rows=random.choice([20, 1000]),
            max_queue=random.randint(1, 8),
            wait_s=random.choice([0.0, 0.0, 0.03]),
            slo_s=random.choice([None, 0.3]),
            watchdog_s=random.choice([0.5, 2.0]),
            predict=random.random() < 0.7,
        )
        self.accepted: list[PendingRequest] = []
        self.ended: dict[int, float] = {}  # when, by the id of the request
        self.begun: dict[int, float] = {}
        self.seen: dict[int, int] = {}  # how often a request was in a batch

    def run(self) -> Counter[str]:
        world, settings = self.world, self.settings
        self.engine_counts = Counts()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, "threading", world)
            self.scheduler = scheduler.Scheduler(settings, world.clock, self.engine_counts)
            results = ResultWriter(self.engine_counts, world.clock)
            self.decoders = [Decoder(self) for _ in range(settings.workers)]
            workers: list[Any] = []
            for number in range(settings.workers):
                one = worker.Worker(
                    number,
                    self.scheduler,
                    results.deliver,
                    world.clock,
                    slow_batches=SlowBatches(),
                )
                workers.append(world.Thread(target=one.run, name=f"worker {number}"))
            self.scheduler.open()
            clients = [world.Thread(target=self.client, name=f"client {number}") for number in range(self.random.randint(1, 4))]
            for thread in [*workers, *clients]:
                thread.start()
            if self.random.random() < 0.8:
                for client in clients:
                    client.join()
            else:
                world.sleep(self.random.uniform(0, 1))
            self.stop(workers)
            for client in clients:
                client.join()
            for thread in workers:
                thread.join()  # the hung ones too
            for thread in [*workers, *clients]:
                if thread.error is not None:
                    raise thread.error
        self.check_end()
        return self.counts

    def stop(self, workers: list[Any]) -> None:
        """As `Engine.stop`."""
        over = self.world.now + self.random.choice([0.0, 3.0])
        self.scheduler.drain()
        with pytest.raises(UnavailableError):
            self.scheduler.enqueue(self.new_request())
        for thread in workers:
            thread.join(max(0.0, over - self.world.now))
        self.scheduler.close()
        assert all(pending.is_done for pending in self.accepted), "close left a request without an answer"
        assert not self.scheduler._watchdog.is_alive()
        assert len(self.scheduler._batcher) == 0

    def client(self) -> None:
        random, world = self.random, self.world
        for _ in range(random.randint(1, 12)):
            world.sleep(random.choice([0.0, random.expovariate(1 / self.seconds), 0.2]))
            pending = self.new_request()
            pending.future.add_done_callback(partial(self.end, pending))
            self.counts["submitted"] += 1
            try:
                if self.scheduler.is_saturated:
                    self.scheduler.check_admission(pending.size)
                self.scheduler.enqueue(pending)
            except OverloadedError as error:
                if not error.retry_after_s >= 0:
                    raise AssertionError("no time to try again") from error
                self.counts[f"refused: {error.reason}"] += 1
                assert not pending.is_done
                continue
            self.accepted.append(pending)
            assert self.scheduler.load.waiting <= self.settings.max_queue
            if random.random() < 0.2:
                world.sleep(random.choice([0.0, self.seconds / 2, self.seconds * 2]))
                is_cancelled = pending.future.cancel()  # other threads go on during this
                self.counts["cancelled"] += is_cancelled

    def new_request(self) -> PendingRequest:
        random, now = self.random, self.world.now
        num_beams = random.choice([5, 20])
        deadline_s = random.choice([self.settings.deadline_s] * 3 + [self.seconds * 2, 0.0])
        return PendingRequest(
            request=Request(num_items=2),
            size=RequestSize(
                key=num_beams, tokens=random.randint(1, 20), num_beams=num_beams, arrived=now, deadline=now + deadline_s
            ),
            num_beams=num_beams,
            kind=None,
            widths=(2,),
            version=VERSION,
            decoders=self.decoders,
            item_filter=VERSION.all_items,
            rules_generation=None,
            codes=np.zeros((0, 2), np.int64),
            ignored_history=(),
            ignored_deny=(),
            prepared=now,
        )

    # Checks.

    def end(self, pending: PendingRequest, _: object) -> None:
        assert id(pending) not in self.ended
        self.ended[id(pending)] = self.world.now

    def check_batch(self, requests: list[PendingRequest]) -> None:
        """When a batch starts."""
        settings, now = self.settings, self.world.now
        assert requests
        assert not any(pending.is_done for pending in requests)
        assert len({pending.size.key for pending in requests}) == 1
        assert len(requests) <= settings.max_batch
        assert len(requests) * max(pending.size.tokens for pending in requests) <= settings.max_batch_tokens
        assert sum(pending.size.num_beams for pending in requests) <= settings.max_beam_rows
        load = self.scheduler.load
        assert load.busy_workers <= settings.workers
        for pending in requests:
            self.seen[id(pending)] = seen = self.seen.get(id(pending), 0) + 1
            assert seen <= 2, "retried twice"
            if seen == 1:
                assert now < pending.size.deadline, "started after its deadline"
                self.begun[id(pending)] = now

    def check_idle(self) -> None:
        """When all threads wait: nothing may be left to do now."""
        now, inner = self.world.now - 1e-9, self.scheduler  # less the rounding of sums
        if inner._state == "new":
            return
        idle = self.settings.workers - len(inner._running)
        if idle and inner._state != "closed":
            assert inner._batcher.closes_at(now) > now, "a batch is closed and a worker idle"
            assert inner._state == "open" or not len(inner._batcher), "a worker sleeps while the queue drains"
        waiting = [entry for group in inner._batcher._groups.values() for entry in group]
        assert not any(entry.request.is_done for entry in waiting), "a request that has ended is in the queue"
        assert not (waiting and inner._all_hung()), "requests wait for workers that hang"
        if inner._state != "closed":
            assert inner._batcher.expires_at() > now, "a request that expired is in the queue"
            for running in inner._running.values():
                assert running.hung or running.since + self.settings.watchdog_s > now, "a hang that was not noticed"

    def check_end(self) -> None:
        counts = self.engine_counts
        ends = {name: sum(counts.of(name).values()) for name in ("shed", "cancelled", "failed", "answered")}
        assert sum(ends.values()) == len(self.accepted), (ends, len(self.accepted))
        assert ends["cancelled"] == self.counts["cancelled"]
        late = in_time = 0
        for pending in self.accepted:
            assert pending.is_done
            ended, begun, deadline = self.ended[id(pending)], self.begun.get(id(pending)), pending.size.deadline
            if pending.future.cancelled():
                continue
            error = pending.future.exception()
            if error is None:
                assert pending.future.result().num_valid == 2
                late += ended > deadline
                in_time += ended <= deadline
            elif isinstance(error, UnavailableError):
                assert error.reason in ("draining", "wedged", "out_of_memory")
            elif isinstance(error, OverloadedError):
                assert error.reason == "late"
            else:
                assert isinstance(error, ZeroDivisionError | RuntimeError)
            has_run = error is None or not isinstance(error, OverloadedError) or error.reason == "out_of_memory"
            assert begun is not None or not has_run
            assert begun is None or getattr(error, "reason", "") != "late", "started, and then called late"
            if begun is not None:
                assert ended <= begun + self.settings.watchdog_s + LATENCY_S
            else:
                assert ended <= deadline + LATENCY_S
        assert counts.of("answered") == {"in_time": in_time, "late": late}
        load = self.scheduler.load
        assert (load.waiting, load.running, load.busy_workers) == (0, 0, 0)
        self.counts.update(ends)


def run(seed: int, folder: Path) -> Counter[str]:
    """Run one schedule. Raises AssertionError where a promise is broken."""
    logger = logging.getLogger("leafbeam.engine")
    before = logger.disabled
    logger.disabled = True
    try:
        return Schedule(seed).run()
    finally:
        logger.disabled = before
