"""A server process: an engine, a language model or both behind HTTP, with rules reloaded by SIGHUP."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any

import uvicorn

from leafbeam.catalog import Catalog, LoadReport
from leafbeam.engine import CatalogFiles, Engine, Limits, Model, Settings
from leafbeam.errors import ArgumentError
from leafbeam.index import Trie
from leafbeam.ingest import CatalogWriter
from leafbeam.model import load_for_decoding
from leafbeam.serve.access import Access, is_loopback
from leafbeam.serve.app import NO_WRITER, create_app
from leafbeam.serve.changes import NOT_LOCAL, ChangeFiles
from leafbeam.serve.connection import BACKLOG, ConnectionLimits, server_config
from leafbeam.serve.exposure import Exposure
from leafbeam.serve.frames import Setup
from leafbeam.serve.gate import Gate
from leafbeam.serve.http_workers import HttpWorkers
from leafbeam.serve.items import max_values
from leafbeam.serve.keys import KeyFile
from leafbeam.serve.log_format import current_format
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.observation import Observation
from leafbeam.serve.own_thread import in_own_thread
from leafbeam.text import TextService

log = logging.getLogger("leafbeam.serve")

# Workers take the interpreter again after every kernel. At Python's default of 5 ms, the event loop would hold it long enough
# under a flood of requests to double the duration of a batch.
_SWITCH_INTERVAL_S = 5e-4


_print_line = partial(print, flush=True)


class SighupReloader:
    """Turns SIGHUP, which would end the process, into a call of `reload` in a thread.

    Signals that arrive before `set_reload`, or while `reload` runs, lead to one call afterwards. Only the main thread receives
    signals; in any other this does nothing.
    """

    def __init__(self) -> None:
        self._signals: SimpleQueue[bool] = SimpleQueue()  # unlike a lock, safe in a handler, which may interrupt any code
        self._is_running = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def installed(self) -> Generator["SighupReloader"]:
        """Handle SIGHUP while open."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGHUP, lambda number, frame: self._signals.put(True))
        try:
            yield self
        finally:
            signal.signal(signal.SIGHUP, before)
            self.set_reload(None)

    def set_reload(self, reload: Callable[[], object] | None) -> None:
        """Call `reload` from now on, at once if a signal is pending; None: no longer."""
        if self._is_running:
            self._is_running = False
            self._signals.put(False)
        if reload is not None:
            self._is_running = True
            # A daemon: a reload that hangs does not keep the process alive.
            self._thread = threading.Thread(target=self._work, args=(reload,), name="leafbeam-reload", daemon=True)
            self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the end of a reload that was interrupted."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _work(self, reload: Callable[[], object]) -> None:
        while self._signals.get():
            while not self._signals.empty():  # the signals since the last reload are one
                if not self._signals.get():
                    return
            try:
                reload()
            except Exception:
                log.exception("the reload failed")


class Server:
    """An engine, a language model or both on a port.

    `run` serves in this thread until `stop` or SIGTERM: new requests are then rejected, accepted ones answered within
    `grace_s`. `reload` evaluates the rules again while serving; SIGHUP does the same.

    port: 0 takes a free one. The port is bound at construction; connections wait until `run`. on_ready: called with a line
    that holds the address once requests are answered. connections: what one client may send and hold open. http_workers:
    processes that own the connections, each with these limits (see `HttpWorkers`); 0: this process does. exposure: TLS, and who
    may reach it. observation: which requests are logged and traced. reloader: one that is installed already; None: `run`
    installs one.

    Raises ArgumentError if the port cannot be bound, or other machines could reach a server without keys.
    """

    def __init__(
        self,
        engine: Engine | None,
        *,
        text: TextService | None = None,
        writer: CatalogWriter | str = NO_WRITER,
        access: Access | None = None,
        exposure: Exposure | None = None,
        observation: Observation | None = None,
        host: str = "127.0.0.1",
        port: int = 8000,
        max_body_bytes: int = 1 << 20,
        max_batch_bytes: int = 8 << 20,
        grace_s: float = 30.0,
        connections: ConnectionLimits | None = None,
        http_workers: int = 0,
        on_ready: Callable[[str], None] = _print_line,
        reloader: SighupReloader | None = None,
    ) -> None:
        self.engine, self.text = engine, text
        self.metrics = Metrics(engine, text)
        self._on_ready, self._reloader = on_ready, reloader or SighupReloader()
        HttpWorkers.check(http_workers)
        access = access or Access(changes="local" if is_loopback(host) else "off", reason=NOT_LOCAL)
        exposure = exposure or Exposure()
        exposure.check(host, has_keys=access.keys is not None)
        self._host, self._socket = host, _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{exposure.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        connections = connections or ConnectionLimits()
        bodies = {"max_body_bytes": max_body_bytes, "max_batch_bytes": max_batch_bytes}
        app = create_app(
            engine,
            self.metrics,
            text=text,
            writer=writer,
            access=access,
            origins=exposure.origins,
            observation=observation,
            grace_s=grace_s,
            num_http_workers=lambda: 0 if self.http_workers is None else self.http_workers.num_alive,
            **bodies,
        )
        files = {"certificate": exposure.certificate, "private_key": exposure.private_key}
        refused = self.metrics.observe_refused_connection
        origins = exposure.origins
        config = server_config(app, connections, refused, **files, grace_s=grace_s, origins=origins, lifespan="on")
        self.http_workers: HttpWorkers | None = None
        if http_workers:
            setup = Setup(
                number=0,
                core=os.getpid(),
                recommends=engine is not None,
                deadline_s=60.0 if engine is None else engine.settings.deadline_s,
                max_values=max_values(Limits() if engine is None else engine.limits),
                max_body_bytes=max_body_bytes,
                max_body_s=10.0,
                connections=connections,
                **{name: None if path is None else str(path) for name, path in files.items()},
                grace_s=grace_s,
                log_format=current_format(),
                keys=None if access.keys is None else str(access.keys.path),
                origins=origins,
            )
            is_observed = observation is not None and observation.is_on  # then each request has its line or span
            gate = None if engine is None or is_observed else Gate(engine, access, self.metrics)
            self.http_workers = HttpWorkers(app, http_workers, self._socket, setup, self.metrics, gate)
            self.metrics.follow_http_workers(lambda: 0 if self.http_workers is None else self.http_workers.num_alive)
        self._uvicorn = _DrainingServer(config, self._started, self._drain, grace_s, self.http_workers)
        self._grace_s, self._has_keys = grace_s, access.keys is not None
        self._takes_changes = access.changes != "off" and not isinstance(writer, str)

    def __repr__(self) -> str:
        return f"Server({self.url}, {self.engine!r}, {self.text!r})"

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it, and SIGHUP reloads the rules.

        Raises LogitsError for a model without finite logits, before anything is served.
        """
        interval = sys.getswitchinterval()
        with self._socket, self._signals():
            try:
                sys.setswitchinterval(_SWITCH_INTERVAL_S)
                if self.engine is not None:
                    self.engine.warm_up(changes=self._takes_changes)
                gc.collect()
                gc.freeze()  # or the cycle collector would look at all objects, and stop every thread for a quarter of a second
                self._uvicorn.run(sockets=[self._socket])
            finally:
                gc.unfreeze()
                sys.setswitchinterval(interval)

    def stop(self) -> None:
        """Let `run` return once accepted requests are answered, without waiting for that. Callable from any thread."""
        self._uvicorn.should_exit = True

    def reload(self) -> LoadReport | None:
        """Evaluate the rules again and log the report; None without a catalog."""
        if self.engine is None or self.engine.catalog is None:
            log.warning("there are no rules to reload: the server was started without a catalog")
            return None
        report = self.engine.catalog.reload()
        self.metrics.observe_reload(report)
        if report.ok:
            log.info("rules reloaded\n%s", report)
        else:
            log.error("not every rule could be reloaded\n%s", report)
        return report

    def _drain(self) -> None:
        """Reject new requests and answer accepted ones."""
        threads = [
            threading.Thread(target=part.stop, args=(self._grace_s,)) for part in (self.engine, self.text) if part is not None
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _started(self) -> None:
        if not is_loopback(self._host) and not self._has_keys:
            log.warning(
                "anyone who can reach %s can ask for recommendations, read /metrics and, with --learn, send interactions: "
                "there are no keys (docs/how-to/deploy.md)",
                self.url,
            )
        served: list[str] = []
        if self.engine is not None:
            version = self.engine.version
            served.append(f"{len(version):,} items (index {version.name})")
        if self.text is not None:
            served.append(f"texts of {self.text.name}")
        self._on_ready(f"leafbeam serves {' and '.join(served)} at {self.url} - try {self.url}/docs")

    @contextmanager
    def _signals(self) -> Generator[None]:
        """Install the reloader, and let SIGTERM, which uvicorn raises again after it has stopped, end nothing more."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, lambda number, frame: None) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            with self._reloader.installed():
                self._reloader.set_reload(self.reload)
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _DrainingServer(uvicorn.Server):
    """uvicorn's server with a callback after startup and one before shutdown, and HTTP workers in place of its own connections.

    Without the second, uvicorn would close connections while the engine still accepted requests, and cut off queued ones.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        started: Callable[[], None],
        drain: Callable[[], None],
        grace_s: float,
        workers: HttpWorkers | None,
    ) -> None:
        super().__init__(config)
        self._on_start, self._drain, self._grace_s, self._workers = started, drain, grace_s, workers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets if self._workers is None else [])
        if self.started:
            if self._workers is not None:
                await self._workers.start()
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drained = asyncio.ensure_future(in_own_thread(self._drain))
        if self._workers is not None:
            for listening in sockets or ():
                listening.close()  # the workers close theirs: who connects now is refused
            await self._workers.drain(self._grace_s + 2, lambda: self.force_exit)
        await super().shutdown(sockets=sockets)
        await drained


def serve(
    model: Model | str | os.PathLike[str] | None,
    catalog: Catalog | Trie | CatalogFiles | str | os.PathLike[str] | None,
    *,
    text: TextService | None = None,
    changes: ChangeFiles | None = None,
    keys: KeyFile | None = None,
    exposure: Exposure | None = None,
    observation: Observation | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "cpu",
    limits: Limits | None = None,
    settings: Settings | None = None,
    max_body_bytes: int = 1 << 20,
    max_batch_bytes: int = 8 << 20,
    connections: ConnectionLimits | None = None,
    http_workers: int = 0,
    grace_s: float = 30.0,
    on_ready: Callable[[str], None] = _print_line,
) -> None:
    """Load an engine (see `Engine.load`) and serve it until SIGTERM or Ctrl-C (see `Server`).

    text: a language model to serve too; alone, where model and catalog are None. changes: where clients' changes of the catalog
    are kept; it goes with CatalogFiles. keys: of clients, without which a server is bound to this machine alone.
    observation: which requests are logged and traced. http_workers: see `Server`. A SIGHUP during loading takes effect once
    requests are answered.
    Raises what Engine.load, LiveDirectory.open and Server raise.
    """
    if (model is None) != (catalog is None):
        raise ArgumentError("model and catalog go together: pass both, or None for both to serve texts alone")
    if changes is not None and not isinstance(catalog, CatalogFiles):
        raise ArgumentError("changes are those of files: pass the catalog as CatalogFiles")
    _listen(host, port).close()  # a mistake is said before anything is loaded
    with SighupReloader().installed() as reloader, ExitStack() as opened:
        opened.callback(reloader.join, 5.0)
        engine, writer, access = None, NO_WRITER, Access(keys=keys) if keys is not None else None
        if model is not None and changes is not None and isinstance(catalog, CatalogFiles):
            access = changes.access(host, keys)
            changed = changes.open(catalog, opened)
            writer = changed.writer
            model = load_for_decoding(model, device=device) if isinstance(model, str | os.PathLike) else model
            engine = Engine(model, changed.source, memory=changed.memory, limits=limits, settings=settings)
        elif model is not None and catalog is not None:
            engine = Engine.load(model, catalog, device=device, limits=limits, settings=settings)
        if engine is not None:
            opened.callback(engine.close)
            if engine.catalog is not None:
                report = engine.catalog.rules.report
                log.log(logging.INFO if report.ok and report.agrees else logging.WARNING, "%s", report)
        opened.callback(reloader.set_reload, None)
        bounds: dict[str, Any] = {"max_body_bytes": max_body_bytes, "max_batch_bytes": max_batch_bytes, "grace_s": grace_s}
        bounds |= {"connections": connections, "http_workers": http_workers, "writer": writer, "access": access}
        bounds |= {"exposure": exposure, "observation": observation}
        Server(engine, text=text, host=host, port=port, on_ready=on_ready, reloader=reloader, **bounds).run()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ArgumentError(f"port must be from 0 (any free port) to 65535, not {port}")
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        raise ArgumentError(f"cannot listen on {host} port {port}: {error.strerror}; port 0 takes a free one") from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # of its connections too; uvloop does it, asyncio does not
    return listening
