"""The process of one HTTP worker: it owns connections, reads requests and refuses what is not HTTP; the core answers.

    python -m leafbeam.serve.http_process LINK LISTENING

LINK and LISTENING are descriptors of sockets that the core has opened (`http_workers`). This process imports no engine.
"""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Receive, Scope, Send

from leafbeam.errors import DataError, OverloadedError
from leafbeam.serve.access import with_cors
from leafbeam.serve.connection import server_config
from leafbeam.serve.errors import OPENAI_PATHS, BodyError, error_response, openai_error_response
from leafbeam.serve.exchange import RECOMMEND_PATH, Bounds, decode_recommend, read_body
from leafbeam.serve.frames import ROOM_BYTES, Drain, FrameReader, FromCore, Head, Open, Ready, Refusal, Refused, Setup
from leafbeam.serve.keys import KeyFile
from leafbeam.serve.log_format import configure_log
from leafbeam.serve.observation import RequestIdMiddleware
from leafbeam.serve.schema import RecommendBody
from leafbeam.serve.worker_link import WorkerLink

log = logging.getLogger("leafbeam.serve")

_START_S = 60.0
_NICENESS = 5  # where processors are short, the core and its model go first: in a flood, refusals wait and not answers
_ORPHAN_GRACE_S = 2  # for answers 503 once the core is gone
_MAX_DEADLINE_S = 3600.0


class _WorkerApp:
    """The application that passes requests to the core. It reads and checks the bodies of requests for items itself."""

    def __init__(self, setup: Setup, link: WorkerLink) -> None:
        self._setup, self._link = setup, link
        self._bounds = Bounds(max_body_bytes=setup.max_body_bytes, max_body_s=setup.max_body_s)
        self._keys: KeyFile | None = None
        if setup.keys is not None:
            with suppress(DataError):  # the core, which has read the file before, refuses unknown clients alone
                self._keys = KeyFile(Path(setup.keys))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = HttpRequest(scope, receive)
        try:
            request, content = await self._read(http)
            deadline = None
            if content is not None:
                seconds = self._setup.deadline_s if content.deadline_ms is None else content.deadline_ms / 1e3
                deadline = asyncio.get_running_loop().time() + min(seconds, _MAX_DEADLINE_S)
            await self._link.forward(request, receive, send, deadline=deadline)
        except ClientDisconnect:
            pass
        except OverloadedError as error:
            shaped = openai_error_response if scope["path"] in OPENAI_PATHS else error_response
            await RequestIdMiddleware(with_cors(shaped(http, error), self._setup.origins))(scope, receive, send)

    async def _read(self, http: HttpRequest) -> tuple[Open, RecommendBody | None]:
        """Return the request for the core, and the content of one for items; the core refuses a client whose key is unknown."""
        head, setup = Head.of(http.scope), self._setup
        recommends = setup.recommends and http.method == "POST" and http.scope["path"] == RECOMMEND_PATH
        if not recommends or (self._keys is not None and self._keys.find(http.headers.get("authorization")) is None):
            more = "transfer-encoding" in http.headers or http.headers.get("content-length", "0") != "0"
            return Open(0, head, more=more), None
        try:
            body = await read_body(http, self._bounds)
            arrived = time.monotonic()
            content = decode_recommend(body, http.headers.get("content-type", ""), setup.max_values)
        except BodyError as error:  # the core refuses it, after it has looked at the client's key
            return Open(0, head, refusal=Refusal.of(error), arrived=time.monotonic()), None
        return Open(0, head, body, arrived=arrived), content


class _WorkerServer(uvicorn.Server):
    """uvicorn's server, which runs for as long as the core does. is_orphan: whether the core has ended."""

    def __init__(self, setup: Setup, reader: "FrameReader[FromCore]", link_socket: socket.socket) -> None:
        self._setup, self._link_socket, self.is_orphan = setup, link_socket, False
        self._link = link = WorkerLink(reader, self._end)
        config = server_config(
            _WorkerApp(setup, link),
            setup.connections,
            lambda reason: link.send(Refused(reason)),
            certificate=setup.certificate,
            private_key=setup.private_key,
            grace_s=setup.grace_s,
            origins=setup.origins,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._explain_sighup)
        await loop.create_unix_connection(lambda: self._link, sock=self._link_socket)
        await super().startup(sockets=sockets)
        self._link.send(Ready())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets=sockets)
        self._link.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM:  # Ctrl-C goes to the core too, which drains its workers
            self.should_exit = True

    def _end(self, reason: str | None) -> None:
        """Accept nothing more and answer what runs. reason: why, unless the core wants it."""
        if reason is not None and not self.should_exit:
            self.is_orphan = True
            self.config.timeout_graceful_shutdown = _ORPHAN_GRACE_S
            log.error(
                "HTTP worker %d ends: %s (process %d); its requests get 503", self._setup.number, reason, self._setup.core
            )
        self.should_exit = True

    def _explain_sighup(self) -> None:
        number, core = self._setup.number, self._setup.core
        log.warning("HTTP worker %d got SIGHUP and reloads nothing: send it to the server's process %d", number, core)


def _read_setup(link: socket.socket, reader: "FrameReader[FromCore]") -> Setup:
    link.settimeout(_START_S)
    frames: list[FromCore] = []
    while not frames:
        data = link.recv(1 << 16)
        if not data:
            sys.exit("the server's core ended before this HTTP worker began")
        frames = reader.feed(data)
    setup, *more = frames
    assert isinstance(setup, Setup)
    if any(isinstance(frame, Drain) for frame in more):
        sys.exit(0)
    link.setblocking(False)
    return setup


def main(link_descriptor: int, listening_descriptor: int) -> None:
    """Serve until the core says that the server stops, or until the core ends."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reader: FrameReader[FromCore] = FrameReader(FromCore, ROOM_BYTES)
    link, listening = (socket.socket(fileno=number) for number in (link_descriptor, listening_descriptor))
    setup = _read_setup(link, reader)
    configure_log(setup.log_format)
    server = _WorkerServer(setup, reader, link)
    os.nice(_NICENESS)
    gc.collect()
    gc.freeze()
    server.run(sockets=[listening])
    if server.is_orphan:
        sys.exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
