"""The HTTP workers of a server: started, watched, restarted, and ended with it."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec
from starlette.types import ASGIApp

from leafbeam.errors import UnavailableError
from leafbeam.serve.core_link import CoreLink, Gate
from leafbeam.serve.exchange import in_own_thread
from leafbeam.serve.frames import Drain, Setup
from leafbeam.serve.metrics import Metrics

log = logging.getLogger("leafbeam.serve")

_START_S = 60.0
_END_S = 5.0  # from the end of a worker's link to that of its process
_HUNG_S = 30.0  # without a beat: the worker is killed
_PAUSES_S = 0.1, 10.0  # before a worker is started again: at first, and after many short lives
_STABLE_S = 30.0


@dataclass(kw_only=True, slots=True)
class _Worker:
    """A process, and the link to it."""

    number: int
    process: "subprocess.Popen[bytes]"
    link: CoreLink

    @property
    def is_alive(self) -> bool:
        return self.link.ready.done() and not self.link.lost.done()


class HttpWorkers:
    """Processes that own the connections of a server and have `app`, in this process, answer (see `frames`).

    They accept from one listening socket. Each has a socket pair to this process, which no other process can open, and ends
    when this one does. If one ends before that, it loses its own connections, and is started again.
    setup: that of the first worker; the others differ only in their number. gate: see `CoreLink`.
    """

    def __init__(
        self,
        app: ASGIApp,
        count: int,
        listening: socket.socket,
        setup: Setup,
        metrics: Metrics,
        gate: Gate | None,
    ) -> None:
        self._app, self._count, self._listening, self._setup, self._metrics = app, count, listening, setup, metrics
        self._gate = gate
        self._workers: dict[int, _Worker] = {}
        self._draining = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def num_alive(self) -> int:
        """Return the number of workers that accept connections."""
        return sum(worker.is_alive for worker in self._workers.values())

    @property
    def num_running(self) -> int:
        """Return the number of requests, of all workers, that have no answer yet."""
        return sum(worker.link.num_running for worker in self._workers.values())

    async def start(self) -> None:
        """Start all, and return when they accept connections. Raises UnavailableError if one does not come up."""
        workers = await asyncio.gather(*map(self._start, range(self._count)))
        self._tasks = [asyncio.create_task(self._keep(worker)) for worker in workers]
        for worker in workers:
            link = worker.link
            await asyncio.wait({link.ready, link.lost}, timeout=_START_S, return_when=asyncio.FIRST_COMPLETED)
            if not worker.is_alive:
                await self.drain(0.0)
                raise UnavailableError(f"HTTP worker {worker.number} did not start: its log says why", reason="http_workers")

    async def drain(self, grace_s: float, is_forced: Callable[[], bool] = lambda: False) -> None:
        """Have the workers accept nothing more and answer what runs; end them after `grace_s` seconds, or when forced."""
        self._draining.set()
        for worker in self._workers.values():
            worker.link.send(Drain())
        over = asyncio.get_running_loop().time() + grace_s
        while not all(worker.link.lost.done() for worker in self._workers.values()):
            if asyncio.get_running_loop().time() >= over or is_forced():
                for worker in self._workers.values():
                    worker.process.kill()
            await asyncio.sleep(0.02)
        await asyncio.gather(*self._tasks)

    async def _start(self, number: int) -> _Worker:
        core_end, worker_end = socket.socketpair()
        core_end.setblocking(False)
        with worker_end:
            try:
                process = await asyncio.to_thread(_start_process, worker_end, self._listening)
            except OSError:
                core_end.close()
                raise
        setup = msgspec.structs.replace(self._setup, number=number)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(
            lambda: CoreLink(self._app, setup, self._metrics.observe_refused_connection, self._gate), sock=core_end
        )
        worker = self._workers[number] = _Worker(number=number, process=process, link=link)
        log.info("HTTP worker %d is process %d", number, process.pid)
        return worker

    async def _keep(self, worker: _Worker) -> None:
        """Start a worker again whenever it has ended, until the end."""
        loop, pause_s = asyncio.get_running_loop(), _PAUSES_S[0]
        while True:
            began = loop.time()
            await self._until_lost(worker)
            status = await in_own_thread(partial(_end_process, worker.process))
            if self._draining.is_set():
                return
            self._metrics.http_worker_restarts.inc()
            pause_s = _PAUSES_S[0] if loop.time() - began > _STABLE_S else min(2 * pause_s, _PAUSES_S[1])
            log.log(
                logging.ERROR if status else logging.WARNING,
                "HTTP worker %d (process %d) ended with status %d and its connections are lost: another starts in %g s",
                worker.number,
                worker.process.pid,
                status,
                pause_s,
            )
            restarted = await self._start_again(worker.number, pause_s)
            if restarted is None:
                return
            worker = restarted

    async def _start_again(self, number: int, pause_s: float) -> _Worker | None:
        """Start a worker after a pause, as often as it takes; None at the end."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), pause_s)
                return None
            try:
                worker = await self._start(number)
            except OSError as error:
                pause_s = _PAUSES_S[1]
                log.error("HTTP worker %d cannot be started, and is tried again in %g s: %s", number, pause_s, error)
                continue
            if self._draining.is_set():
                worker.link.send(Drain())
            return worker

    async def _until_lost(self, worker: _Worker) -> None:
        """Return once a worker has ended; one that hangs is killed."""
        link, silent = worker.link, 0  # times in a row: after a pause of this process, what the worker sent is read first
        while not link.lost.done():
            await asyncio.wait({link.lost}, timeout=1.0)
            silent = silent + 1 if asyncio.get_running_loop().time() - link.heard_at > _HUNG_S else 0
            if silent > 1:
                log.error("HTTP worker %d has not run for %g s and is killed", worker.number, _HUNG_S)
                worker.process.kill()


def _start_process(link: socket.socket, listening: socket.socket) -> "subprocess.Popen[bytes]":
    descriptors = link.fileno(), listening.fileno()
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "leafbeam.serve.http_process", *map(str, descriptors)],
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )


def _end_process(process: "subprocess.Popen[bytes]") -> int:
    """Return its exit status, or minus the signal that ended it."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
