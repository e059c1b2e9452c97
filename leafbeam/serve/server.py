"""A running server: an engine behind HTTP, rules reloaded by signal."""

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from leafbeam.catalog import LoadReport, RuleSource
from leafbeam.engine import Engine, Limits, Settings, name_of
from leafbeam.errors import ArgumentError
from leafbeam.serve.app import create_app
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.signals import SighupReloader

log = logging.getLogger("leafbeam.serve")

# A worker asks for the interpreter again after every kernel. While requests pour in, the loop that reads them keeps it for as
# long as this each time; at Python's 5 ms a flood of refusals would double the time of a batch.
_SWITCH_S = 5e-4
_KEEP_ALIVE_S = 75  # longer than balancers keep theirs, so that it is never us who close a connection that is about to be used


def _say(line: str) -> None:
    # Whoever started this process may be waiting for the line at the other end of a pipe.
    print(line, flush=True)


class Server:
    """An engine on a port.

    Think of it as three verbs: `run` serves in this thread until `stop` or SIGTERM (new requests are refused, those that are in
    are answered within `grace_s` or refused then), `reload` reads the rules again without stopping anything (SIGHUP does the
    same).

    port: 0 takes a free one; `url` says which, from construction on, and connections wait in the socket until `run`.
    announce: gets one line with the address as soon as requests are answered. hang_up: hears SIGHUP already, if given.

    Raises ArgumentError if the port cannot be had.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = 8080,
        max_body_bytes: int = 1 << 20,
        grace_s: float = 30.0,
        announce: Callable[[str], None] = _say,
        hang_up: SighupReloader | None = None,
    ) -> None:
        self.engine = engine
        self.metrics = Metrics(engine)
        self._announce = announce
        self._hang_up = hang_up
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        app = create_app(engine, self.metrics, max_body_bytes=max_body_bytes, grace_s=grace_s)
        # By then the engine has answered or refused everybody; what is cut off later is only slow to read.
        patience_s = math.ceil(grace_s) + 2
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=patience_s,
        )
        self._uvicorn = _Draining(config, self._started, lambda: engine.stop(grace_s))

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it cleanly and SIGHUP reloads the rules.

        Raises LogitsError for a model that cannot answer, before anything is answered.
        """
        with self._socket, self._signals(), _switching(_SWITCH_S):
            self.engine.warm_up()
            with _settled():
                self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` return once running requests are answered. Callable from any thread."""
        self._uvicorn.should_exit = True

    def reload(self) -> LoadReport | None:
        """Evaluate the rules again and log what came of it; None without a catalog."""
        if self.engine.catalog is None:
            log.warning("there are no rules to reload: the server was started without a catalog")
            return None
        report = self.engine.catalog.reload()
        self.metrics.observe_reload(report)
        log.log(logging.INFO if report.ok else logging.ERROR, "rules reloaded\n%s", report)
        return report

    def _started(self) -> None:
        version = self.engine.version
        self._announce(f"leafbeam serves {len(version):,} items (index {name_of(version)}) at {self.url} - try {self.url}/docs")

    @contextmanager
    def _signals(self) -> Generator[None]:
        """SIGHUP reloads; SIGTERM, which uvicorn raises again once it has stopped, then ends nothing more."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, _nothing) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            if self._hang_up is not None:
                self._hang_up.answer(self.reload)
                yield
                return
            with SighupReloader().listening() as hang_up:
                hang_up.answer(self.reload)
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _switching(seconds: float) -> Generator[None]:
    """Let threads of this process take turns at the interpreter more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _settled() -> Generator[None]:
    """Let the cycle collector pass over what is there by now.

    Half a million objects of libraries never go away, and looking at them all stops every thread for a quarter of a second.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


class _Draining(uvicorn.Server):
    """uvicorn's server, which says when it has started, and tells the engine first when it is to end.

    Left to itself, uvicorn would take its time to close connections while the engine went on letting requests in, and would cut
    off those that still waited at the end.
    """

    def __init__(self, config: uvicorn.Config, started: Callable[[], None], drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start, self._drain = started, drain

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        drained = asyncio.ensure_future(asyncio.to_thread(self._drain))
        await super().shutdown(sockets=sockets)
        await drained


def serve(
    model_dir: str | os.PathLike[str],
    index_path: str | os.PathLike[str],
    catalog_path: str | os.PathLike[str] | None = None,
    rules: RuleSource = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    device: str = "cpu",
    refresh: str | None = None,
    limits: Limits | None = None,
    settings: Settings | None = None,
    max_body_bytes: int = 1 << 20,
    grace_s: float = 30.0,
    announce: Callable[[str], None] = _say,
) -> None:
    """Load an engine from files and serve it until SIGTERM or Ctrl-C. See Settings for the dials, Server for the signals.

    rules: a TOML file, a mapping, or several of these (see Catalog.open). refresh: how often rules are evaluated that do not
    say so ("60s"). SIGHUP while the engine is loading is answered once it serves.

    Raises what Engine.load and Server raise, before anything is served.
    """
    with SighupReloader().listening() as hang_up:
        engine = Engine.load(
            model_dir, index_path, catalog_path, rules, refresh=refresh, device=device, limits=limits, settings=settings
        )
        try:
            if engine.catalog is not None:
                report = engine.catalog.rules.report
                log.log(logging.INFO if report.agrees else logging.WARNING, "%s", report)
            server = Server(
                engine,
                host=host,
                port=port,
                max_body_bytes=max_body_bytes,
                grace_s=grace_s,
                announce=announce,
                hang_up=hang_up,
            )
            server.run()
        finally:
            hang_up.answer(None)
            engine.close()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ArgumentError(f"port has to be from 0 (any free one) to 65535, not {port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        raise ArgumentError(f"cannot listen on {host} port {port}: {error.strerror}; port 0 takes a free one") from error
