"""A running server: an engine behind HTTP, rules reloaded by signal."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from pleach.catalog import LoadReport
from pleach.engine import Engine, Limits, name_of
from pleach.errors import ArgumentError
from pleach.serve.app import create_app
from pleach.serve.metrics import Metrics

log = logging.getLogger("pleach.serve")


def _say(line: str) -> None:
    # Whoever started this process may be waiting for the line at the other end of a pipe.
    print(line, flush=True)


class Server:
    """An engine on a port.

    Think of it as three verbs: `run` serves in this thread until `stop` or SIGTERM (new requests are refused, running ones
    finish within `grace_s`), `reload` reads the rules again without stopping anything (SIGHUP does the same).

    port: 0 takes a free one; `url` says which, from construction on, and connections wait in the socket until `run`.
    announce: gets one line with the address as soon as requests are answered.

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
    ) -> None:
        self.engine = engine
        self.metrics = Metrics(engine)
        self._announce = announce
        self._socket = _listen(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        app = create_app(engine, self.metrics, max_body_bytes=max_body_bytes, grace_s=grace_s)
        config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=max(1, round(grace_s)))
        self._uvicorn = _Announcing(config, self._started)

    def run(self) -> None:
        """Serve until stopped. In the main thread SIGTERM and SIGINT stop it cleanly and SIGHUP reloads the rules.

        Raises LogitsError for a model that cannot answer, before anything is answered.
        """
        with self._socket, self._signals():
            self.engine.warm_up()
            self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let `run` return once running requests are answered. Callable from any thread."""
        self._uvicorn.should_exit = True

    def reload(self) -> LoadReport | None:
        """Evaluate the rules again and log what came of it; None without a catalogue."""
        if self.engine.catalogue is None:
            log.warning("there are no rules to reload: the server was started without a catalogue")
            return None
        report = self.engine.catalogue.reload()
        self.metrics.observe_reload(report)
        log.log(logging.INFO if report.ok else logging.ERROR, "rules reloaded\n%s", report)
        return report

    def _started(self) -> None:
        version = self.engine.version
        self._announce(f"pleach serves {len(version):,} items (index {name_of(version)}) at {self.url} - try {self.url}/docs")

    @contextmanager
    def _signals(self) -> Generator[None]:
        """SIGHUP reloads; SIGTERM, which uvicorn raises again once it has stopped, then ends nothing more."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def hang_up(number: int, frame: FrameType | None) -> None:
            # Not here: the signal may have interrupted anything, a lock held by this very thread included.
            threading.Thread(target=self.reload, name="pleach-reload").start()

        handlers: dict[int, Any] = {signal.SIGTERM: lambda number, frame: None, signal.SIGINT: lambda number, frame: None}  # pyright: ignore[reportUnknownLambdaType]
        if hasattr(signal, "SIGHUP"):
            handlers[signal.SIGHUP] = hang_up
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Announcing(uvicorn.Server):
    """uvicorn's server, which says when it has started."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            self._on_start()


def serve(
    model_dir: str | os.PathLike[str],
    index_path: str | os.PathLike[str],
    catalogue_path: str | os.PathLike[str] | None = None,
    rules: str | os.PathLike[str] | Mapping[str, object] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    device: str = "cpu",
    limits: Limits | None = None,
    num_beams: int = 20,
    max_batch: int = 16,
    max_queue: int = 256,
    timeout_s: float = 10.0,
    grace_s: float = 30.0,
    announce: Callable[[str], None] = _say,
) -> None:
    """Load an engine from files and serve it until SIGTERM or Ctrl-C. See Engine for the dials, Server for the signals.

    Raises what Engine.load and Server raise, before anything is served.
    """
    engine = Engine.load(
        model_dir,
        index_path,
        catalogue_path,
        rules,
        device=device,
        limits=limits,
        num_beams=num_beams,
        max_batch=max_batch,
        max_queue=max_queue,
        timeout_s=timeout_s,
    )
    if engine.catalogue is not None:
        report = engine.catalogue.rules.report
        log.log(logging.INFO if report.agrees else logging.WARNING, "%s", report)
    Server(engine, host=host, port=port, grace_s=grace_s, announce=announce).run()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ArgumentError(f"port has to be from 0 (any free one) to 65535, not {port}")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048)
    except OSError as error:
        raise ArgumentError(f"cannot listen on {host} port {port}: {error.strerror}; port 0 takes a free one") from error
