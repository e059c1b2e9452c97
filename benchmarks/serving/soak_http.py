"""A server under requests, changes, hang-ups and killed HTTP processes; counts lost and wrong answers, and memory growth.

`leafbeam serve --http-workers 2` runs as users run it. Clients ask for items and judge every answer by what the changing
client has had acknowledged; the HTTP processes are killed with -9, one or both, as soon as both run again, except in the last
fifth, which shows their own memory. In the end every item is read back; the server is killed with -9 in the midst of changes
and started again on the same run, and every item is read back once more.

The model of a real server cannot be made to fail: `soak` does that to an engine. The load is light, about one core in all.
"""

from __future__ import annotations

import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving.load_server import Served, serving
from benchmarks.serving.soak_clients import AskingClient, ChangingClient, KnownShop
from benchmarks.serving.soak_outcome import HttpOutcome
from benchmarks.serving.soak_read_back import missing_changes, read_back
from benchmarks.serving.soak_shop import draw_codes, write_run
from leafbeam.client import Client
from leafbeam.errors import ServerError

__all__ = ["TIMED", "runs", "soak_http"]

TIMED = False  # it counts

CLIENTS, HTTP_WORKERS = 6, 2
ITEMS = 500  # each is read back twice; a look-up opens the file of the catalog
KILL_EVERY_S, BOTH = 5.0, 0.15  # the share of kills that leave no HTTP process
CALM = 0.2  # the share of the time, at its end, without kills
RESTART_S, CHANGES_BEFORE_END = 120.0, 5
OPTIONS = ("--http-workers", str(HTTP_WORKERS), "--threads", "1", "--set", "engine.timeout_s=30")


def runs(quick: bool, seconds: float = 60.0) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(parameters, measured) of one row."""
    seconds = min(seconds, 10.0) if quick else seconds
    found = soak_http(seconds)
    parameters = {"seconds": seconds, "clients": CLIENTS, "http_workers": HTTP_WORKERS, "items": ITEMS}
    yield parameters, found.row()


def soak_http(
    seconds: float, *, items: int = ITEMS, kill_every_s: float = KILL_EVERY_S, min_kills: int = 0, seed: int = 0
) -> HttpOutcome:
    """Run it all for so many seconds, and until so many HTTP processes were killed. items: in the catalog at any time."""
    with tempfile.TemporaryDirectory() as folder:
        codes_NL = draw_codes(np.random.default_rng(seed), items)
        run = Path(folder) / "run"
        write_run(run, codes_NL, seed)
        soak = _HttpSoak(KnownShop(codes_NL), seed)
        with serving(run, *OPTIONS) as server:
            soak.load(server, seconds, kill_every_s, min_kills)
            soak.read_back(server)
            soak.kill_server(server)
        with serving(run, *OPTIONS) as server:
            soak.read_back(server)
        return soak.outcome


class _HttpSoak:
    """The clients of a server, what they know of its shop, and what they found."""

    def __init__(self, shop: KnownShop, seed: int) -> None:
        self._shop = shop
        self._dice = random.Random(f"{seed} kills")
        self.outcome = HttpOutcome()
        rng = np.random.default_rng(seed + 1)
        self._changing = ChangingClient(shop=shop, outcome=self.outcome, dice=random.Random(f"{seed} changes"), rng=rng)
        self._asking = [
            AskingClient(shop=shop, outcome=self.outcome, dice=random.Random(f"{seed} {number}")) for number in range(CLIENTS)
        ]

    def load(self, server: Served, seconds: float, kill_every_s: float, min_kills: int) -> None:
        """Ask and change; meanwhile weigh the processes, and kill those of HTTP. It ends when all of them run."""
        outcome, over, killed = self.outcome, threading.Event(), set[int]()
        began = time.monotonic()
        next_kill, calm_from = began + kill_every_s, began + (1 - CALM) * seconds
        work = [lambda client=client: client.run(server.url, over) for client in (*self._asking, self._changing)]
        with Client(server.url) as client, self._threads(work, over):
            while not over.wait(min(1.0, seconds / 20)):
                now, processes = time.monotonic(), set(server.http_workers.values())
                if killed.isdisjoint(processes) and client.get_readiness().http_workers == HTTP_WORKERS:
                    outcome.weigh(server.pid, processes)
                    if now - began >= seconds and outcome.kills >= min_kills:
                        break
                    if now >= next_kill and (now < calm_from or outcome.kills < min_kills):
                        killed, next_kill = self._kill(processes), now + kill_every_s
                elif now > outcome.last_kill + RESTART_S:
                    outcome.add_wrong(f"HTTP processes are not back {RESTART_S:g} s after {killed} were killed")
                    break
        outcome.seconds = time.monotonic() - began
        with Client(server.url) as client:
            restarts = re.search(r"^leafbeam_http_worker_restarts_total (\S+)", client.get_metrics(), re.MULTILINE)
        assert restarts is not None
        outcome.restarts = int(float(restarts[1]))
        if outcome.restarts != outcome.kills:
            outcome.add_wrong(f"{outcome.kills} HTTP processes were killed, but {outcome.restarts} ended")

    def read_back(self, server: Served) -> None:
        """Compare every item, and the rule, with what the changing client has had acknowledged."""
        with Client(server.url) as client:
            found = read_back(client, self._shop, self._dice)
        self.outcome.read_back += len(found.items)
        self.outcome.add_missing(missing_changes(found, self._shop, time.monotonic()))

    def kill_server(self, server: Served) -> None:
        """kill -9 of the server itself, in the midst of changes: the last one may have been made or not."""
        over, is_killed = threading.Event(), threading.Event()
        changing, before = replace(self._changing, pause_s=0.0), self.outcome.changes

        def change() -> None:
            try:
                changing.run(server.url, over)
            except ServerError:
                if not is_killed.is_set():
                    raise

        with self._threads([change], over):
            while self.outcome.changes < before + CHANGES_BEFORE_END and not over.wait(0.01):
                pass
            is_killed.set()
            os.kill(server.pid, signal.SIGKILL)

    def _kill(self, processes: set[int]) -> set[int]:
        """Kill one HTTP process, or all; those that were."""
        chosen = processes if self._dice.random() < BOTH else {self._dice.choice(sorted(processes))}
        with self.outcome.lock:  # so that no client sees its connection end before `last_kill` says why
            for process in chosen:
                os.kill(process, signal.SIGKILL)
            self.outcome.last_kill = time.monotonic()
            self.outcome.kills += len(chosen)
        return chosen

    @contextmanager
    def _threads(self, work: Sequence[Callable[[], None]], over: threading.Event) -> Generator[None]:
        """While open, threads work; one that fails ends all. `over` is set after."""

        def guarded(one: Callable[[], None]) -> None:
            try:
                one()
            except BaseException as error:
                self.outcome.add_wrong(f"a thread of the soak ended: {error!r}")
                over.set()
                raise

        threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()
