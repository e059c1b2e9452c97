"""A server process: an engine, a language model or both behind HTTP, with rules and model reloaded by SIGHUP."""

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
from pathlib import Path
from queue import SimpleQueue

import uvicorn

from leafbeam import semid
from leafbeam.catalog import Catalog, LoadReport
from leafbeam.engine import CatalogFiles, Engine, Limits, Model
from leafbeam.errors import ArgumentError, counted
from leafbeam.index import Trie
from leafbeam.ingest import CatalogWriter, Source
from leafbeam.model import load_for_decoding
from leafbeam.serve.access import Access
from leafbeam.serve.app import NO_WRITER, create_app
from leafbeam.serve.changes import access_of, open_changed
from leafbeam.serve.config import ServerConfig
from leafbeam.serve.connection import BACKLOG, server_config
from leafbeam.serve.core_link import Gate
from leafbeam.serve.engine_routes import max_values, reload_changed_model
from leafbeam.serve.exchange import in_own_thread
from leafbeam.serve.exposure import is_loopback
from leafbeam.serve.frames import Setup
from leafbeam.serve.http_workers import HttpWorkers
from leafbeam.serve.log_format import current_format
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.observation import Observation
from leafbeam.text import TextService

log = logging.getLogger("leafbeam.serve")
NO_ENCODER = "this server has no encoder for new items"

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
        """Call `reload` from now on, at once if a signal is pending; with None, call nothing."""
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
    """A server of an engine, a language model or both on one port.

    `run` serves in this thread until `stop` or SIGTERM: new requests are then rejected, and accepted ones answered within
    `grace_s`. While serving, `reload` evaluates the rules again, and loads a model again whose files have changed. SIGHUP does
    the same.

    Args:
        engine: The engine, or None to serve texts alone.
        config: The address, which is bound at construction (connections wait until `run`), and all that `create_app` reads; the
            files and the settings of the engine are not read, because the engine exists already.
        text: The language model.
        writer: Changes the engine's catalog for clients, or says why it cannot be changed.
        access: The rights of clients.
        observation: Logs and traces requests; by default it logs them as `config` says.
        on_ready: Called with a line that holds the address once requests are answered.
        reloader: A reloader that is installed already; by default `run` installs one.

    Raises:
        ArgumentError: If the port cannot be bound, or other machines could reach a server without keys.
    """

    def __init__(
        self,
        engine: Engine | None,
        *,
        config: ServerConfig | None = None,
        text: TextService | None = None,
        writer: CatalogWriter | str = NO_WRITER,
        access: Access | None = None,
        observation: Observation | None = None,
        on_ready: Callable[[str], None] = _print_line,
        reloader: SighupReloader | None = None,
    ) -> None:
        config = config or ServerConfig()
        host, exposure, grace_s = config.host, config.exposure, config.grace_s
        self.engine, self.text = engine, text
        self.metrics = Metrics(engine, text)
        self._source = None if isinstance(writer, str) else writer.source
        if self._source is not None:
            self.metrics.show_source(self._source)
        self._on_ready, self._reloader = on_ready, reloader or SighupReloader()
        access = access or access_of("auto", host, config.key_file())
        observation = observation or Observation(log=config.log_requests)
        exposure.check(host, has_keys=access.keys is not None)
        app = create_app(
            engine,
            self.metrics,
            config=config,
            text=text,
            writer=writer,
            access=access,
            observation=observation,
        )
        self._host, self._socket = host, _listen(host, config.port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"{exposure.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        uvicorn_config = server_config(
            app,
            config.connections,
            self.metrics.observe_refused_connection,
            certificate=exposure.certificate,
            private_key=exposure.private_key,
            grace_s=grace_s,
            origins=exposure.origins,
            lifespan="on",
        )
        self.http_workers: HttpWorkers | None = None
        if config.http_workers:
            setup = _worker_setup(config, engine, access)
            gate = None
            if engine is not None and not observation.is_on:  # else each request has its line or span
                gate = Gate(engine, access, self.metrics)
            workers = self.http_workers = HttpWorkers(app, config.http_workers, self._socket, setup, self.metrics, gate)
            self.metrics.num_http_workers = lambda: workers.num_alive
        self._uvicorn = _DrainingServer(uvicorn_config, self._started, self._drain, grace_s, self.http_workers)
        self._grace_s, self._has_keys = grace_s, access.keys is not None
        self._takes_changes = access.changes != "off" and not isinstance(writer, str)

    def __repr__(self) -> str:
        return f"Server({self.url}, {self.engine!r}, {self.text!r})"

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it, and SIGHUP reloads rules and model.

        Raises:
            LogitsError: If the model's logits are not finite; nothing has been served then.
        """
        interval = sys.getswitchinterval()
        with self._socket, self._signals():
            try:
                sys.setswitchinterval(_SWITCH_INTERVAL_S)
                if self.engine is not None:
                    self.engine.warm_up(changes=self._takes_changes or self._source is not None)
                if self._source is not None:
                    self._source.start()
                gc.collect()
                gc.freeze()  # or the cycle collector would look at all objects, and stop every thread for a quarter of a second
                self._uvicorn.run(sockets=[self._socket])
            finally:
                if self._source is not None:
                    self._source.stop()
                gc.unfreeze()
                sys.setswitchinterval(interval)

    def stop(self) -> None:
        """Let `run` return once accepted requests are answered, without waiting for that. It may be called from any thread."""
        self._uvicorn.should_exit = True

    def reload(self) -> LoadReport | None:
        """Evaluate the rules again, log the report and return it; return None without a catalog.

        A model whose files have changed is loaded again, and served in place of the one before.
        """
        if self.engine is not None:
            reload_changed_model(self.engine, self.metrics)
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
            served.append(f"{counted(len(version), 'item')} (index {version.name})")
        if self.text is not None:
            served.append(f"texts of {self.text.name}")
        look = "open it in a browser" if self.engine is not None else f"{self.url}/docs lists its routes"
        self._on_ready(f"leafbeam serves {' and '.join(served)} at {self.url} - {look}")

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
    config: ServerConfig | None = None,
    text: TextService | None = None,
    changes: Path | None = None,
    encoder: "semid.ItemEncoder | str" = NO_ENCODER,
    source: Callable[[CatalogWriter], Source] | None = None,
    on_ready: Callable[[str], None] = _print_line,
) -> None:
    """Load an engine (see `Engine.load`) and serve it until SIGTERM or Ctrl-C (see `Server`).

    A SIGHUP during loading takes effect once requests are answered.

    Args:
        model: The model or its directory; None, with catalog, to serve texts alone.
        catalog: The catalog or its files.
        config: All settings but the files (run, text_model), which the arguments replace, and those of CatalogFiles.
        text: A language model to serve too.
        changes: The directory of clients' changes of the catalog; it goes with CatalogFiles. `config.changes` says who makes
            them.
        encoder: Gives new items codes; or says why there is none.
        source: Makes the source that the items follow, such as `partial(CatalogSource, config.feed)` (leafbeam.feeds); it goes
            with changes.
        on_ready: As for `Server`.

    Raises:
        LeafbeamError: As for Engine.load, LiveDirectory.open and Server.
    """
    if (model is None) != (catalog is None):
        raise ArgumentError("pass both a model and a catalog, or None for both to serve only texts")
    if changes is not None and not isinstance(catalog, CatalogFiles):
        raise ArgumentError("changes need the catalog's files: pass the catalog as CatalogFiles")
    config = config or ServerConfig()
    if (source is not None or config.snapshot is not None) and changes is None:
        raise ArgumentError("a source and a snapshot change the catalog: pass the directory of its changes too")
    _listen(config.host, config.port).close()  # a mistake is said before anything is loaded
    keys = config.key_file()
    with SighupReloader().installed() as reloader, ExitStack() as opened:
        opened.callback(reloader.join, 5.0)
        engine, writer, access = None, NO_WRITER, Access(keys=keys) if keys is not None else None
        if model is not None and catalog is not None:
            if changes is not None and isinstance(catalog, CatalogFiles):
                access = access_of(config.changes, config.host, keys)
                takes = config.changes if source is None and config.snapshot is None else "on"
                changed = open_changed(catalog, changes, opened, encoder=encoder, changes=takes)
                writer = changed.writer
                _begin(writer, config, source)
                engine = Engine(
                    load_for_decoding(model, device=config.device) if isinstance(model, str | os.PathLike) else model,
                    changed.source,
                    memory=changed.memory,
                    limits=config.limits,
                    settings=config.engine,
                )
            else:
                engine = Engine.load(model, catalog, device=config.device, limits=config.limits, settings=config.engine)
            opened.callback(engine.close)
            if engine.catalog is not None:
                report = engine.catalog.rules.report
                log.log(logging.INFO if report.ok and report.agrees else logging.WARNING, "%s", report)
        opened.callback(reloader.set_reload, None)
        Server(
            engine,
            config=config,
            text=text,
            writer=writer,
            access=access,
            observation=config.observation(),
            on_ready=on_ready,
            reloader=reloader,
        ).run()


def _begin(writer: CatalogWriter | str, config: ServerConfig, source: Callable[[CatalogWriter], Source] | None) -> None:
    """Take over a snapshot, and let the items follow their source."""
    if isinstance(writer, str):
        return
    if config.snapshot is not None and writer.begin_with(config.snapshot):
        log.info("the items are those of the snapshot %s", config.snapshot)
    if source is not None:
        writer.source = source(writer)


def _worker_setup(config: ServerConfig, engine: Engine | None, access: Access) -> Setup:
    """Return the settings of an HTTP worker, but for its number."""
    certificate, private_key = config.exposure.certificate, config.exposure.private_key
    return Setup(
        number=0,
        core=os.getpid(),
        recommends=engine is not None,
        deadline_s=60.0 if engine is None else engine.settings.deadline_s,
        max_values=max_values(Limits() if engine is None else engine.limits),
        max_body_bytes=config.max_body_bytes,
        max_body_s=config.max_body_s,
        connections=config.connections,
        certificate=None if certificate is None else str(certificate),
        private_key=None if private_key is None else str(private_key),
        grace_s=config.grace_s,
        log_format=current_format(),
        keys=None if access.keys is None else str(access.keys.path),
        origins=config.exposure.origins,
    )


def _listen(host: str, port: int) -> socket.socket:
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
        )
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # asyncio's words repeat the address there
        raise ArgumentError(f"cannot listen on {host} port {port}: {reason}; port 0 takes a free one") from error
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # of its connections too; uvloop does it, asyncio does not
    return listening
