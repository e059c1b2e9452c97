"""The core's end of the link to an HTTP worker: it runs the application for each request of the worker, or declines it."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import cast

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Scope

from leafbeam.engine import Engine, Request
from leafbeam.errors import OverloadedError, RequestError, UnavailableError
from leafbeam.serve.access import Access
from leafbeam.serve.engine_routes import PARSED, parse_body
from leafbeam.serve.exchange import EARLY, EarlyBody
from leafbeam.serve.frames import (
    PART_BYTES,
    ROOM_BYTES,
    Abort,
    Answer,
    Beat,
    Declined,
    FrameError,
    FrameReader,
    FromCore,
    FromWorker,
    Gone,
    More,
    Open,
    Part,
    Pull,
    Ready,
    Refused,
    Sent,
    Setup,
    encode,
)
from leafbeam.serve.metrics import Metrics

log = logging.getLogger("leafbeam.serve")
_MAX_UNREAD_BYTES = 64 << 20  # of answers that a worker does not take: it hangs


class Gate:
    """Checks from their sizes whether requests for items can be admitted; refusals are counted as in the application.

    A client without a key that may read gets its answer from the application.
    """

    def __init__(self, engine: Engine, access: Access, metrics: Metrics) -> None:
        self._engine, self._access, self._metrics = engine, access, metrics

    def check(self, opened: Open) -> Request | None:
        """Return the parsed request, for the application; None if it is invalid or is not checked here.

        Raises OverloadedError.
        """
        if opened.arrived is None or opened.refusal is not None or not self._engine.scheduler.is_saturated:
            return None
        http = HttpRequest(opened.head.scope())
        if not self._access.is_known(http):
            return None
        seconds = max(0.0, time.monotonic() - opened.arrived)
        try:
            request = parse_body(opened.body, http.headers.get("content-type", ""), self._engine.limits)
            self._engine.limits.check(request)
            self._engine.check_admission(request, arrived=self._engine.clock() - seconds)
        except UnavailableError:
            return None
        except OverloadedError as error:
            self._engine.counts.add("refused", error.reason)
            self._metrics.observe(HTTPStatus.TOO_MANY_REQUESTS, seconds)
            raise
        except RequestError:
            return None
        return request


class CoreLink(asyncio.Protocol):
    """Requests of one worker, each a task that runs `app` as a server of ASGI does.

    refused: called for a refused connection. gate: sees every request first; None: each goes to `app`.
    ready: done once the worker accepts connections. lost: done once the worker has ended, or the link with it.
    """

    def __init__(self, app: ASGIApp, setup: Setup, refused: Callable[[str], None], gate: Gate | None) -> None:
        loop = asyncio.get_running_loop()
        self._app, self._setup, self._refused, self._gate = app, setup, refused, gate
        self._reader: FrameReader[FromWorker] = FrameReader(FromWorker, setup.max_body_bytes + ROOM_BYTES)
        self._exchanges: dict[int, _Exchange] = {}
        self._transport: asyncio.Transport
        self.ready: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.heard_at = loop.time()

    @property
    def number(self) -> int:
        return self._setup.number

    @property
    def num_running(self) -> int:
        """Return the number of requests without an answer yet."""
        return len(self._exchanges)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.send(self._setup)

    def connection_lost(self, exc: Exception | None) -> None:
        for exchange in self._exchanges.values():
            exchange.leave()
        self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        try:
            frames = self._reader.feed(data)
        except FrameError:
            log.exception("HTTP worker %d is ended", self.number)
            self._transport.abort()
            return
        for frame in frames:
            self._take(frame)

    def send(self, frame: FromCore) -> None:
        """Send a frame, unless the worker has ended; a worker that accepts no frames is ended."""
        if self._transport.is_closing():
            return
        self._transport.write(encode(frame))
        if self._transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            log.error("HTTP worker %d is ended: it does not take its answers", self.number)
            self._transport.abort()

    def _take(self, frame: FromWorker) -> None:
        match frame:
            case Open():
                self._open(frame)
            case Refused():
                self._refused(frame.reason)
            case Beat():
                self.send(frame)
            case Ready():
                if not self.ready.done():
                    self.ready.set_result(None)
            case Part() | Gone() | Sent():
                if (exchange := self._exchanges.get(frame.id)) is not None:  # an answered one may have been left
                    exchange.take(frame)

    def _open(self, opened: Open) -> None:
        """Decline a request, or run the application for it."""
        try:
            request = None if self._gate is None else self._gate.check(opened)
        except OverloadedError as error:
            self.send(Declined.of(opened.id, error))
            return
        exchange = self._exchanges[opened.id] = _Exchange(opened, self.send)
        exchange.scope[PARSED] = request
        exchange.task = asyncio.get_running_loop().create_task(self._run(exchange))

    async def _run(self, exchange: "_Exchange") -> None:
        try:
            await self._app(exchange.scope, exchange.receive, exchange.send)
        except Exception:  # an error before the answer began has been answered
            log.exception("an answer broke off")
        finally:
            del self._exchanges[exchange.id]
            if not exchange.is_complete:
                self.send(Abort(exchange.id))


class _Exchange:
    """One request, as the application sees it. task: runs it."""

    task: "asyncio.Task[None]"

    def __init__(self, opened: Open, send: Callable[[FromCore], None]) -> None:
        loop = asyncio.get_running_loop()
        self.id, self._send_frame = opened.id, send
        self.scope: Scope = opened.head.scope()
        self.is_complete = False
        self._gone: asyncio.Future[None] = loop.create_future()
        self._parts: deque[Part] = deque()  # one, but for a worker that does not wait for `Pull`
        self._wake = asyncio.Event()  # a part came, the client took a part, or left
        self._has_left = False
        self._sent = True
        self._start: Message | None = None
        if opened.arrived is not None:
            refusal = None if opened.refusal is None else opened.refusal.error()
            self.scope[EARLY] = EarlyBody(body=opened.body, refusal=refusal, arrived=opened.arrived, gone=self._gone)
        if not opened.more:
            self._parts.append(Part(self.id, opened.body, False))

    def take(self, frame: Part | Gone | Sent) -> None:
        match frame:
            case Part():
                self._parts.append(frame)
            case Sent():
                self._sent = True
            case Gone():
                self.leave()
        self._wake.set()

    def leave(self) -> None:
        """Note that the client has disconnected."""
        self._has_left = True
        if not self._gone.done():
            self._gone.set_result(None)
        self._wake.set()

    async def receive(self) -> Message:
        while not (self._parts or self._is_over):
            await self._awake()
        if self._is_over:
            return {"type": "http.disconnect"}
        part = self._parts.popleft()
        if part.more:
            self._send_frame(Pull(self.id))
        return {"type": "http.request", "body": part.body, "more_body": part.more}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        body, more = bytes(message.get("body", b"")), bool(message.get("more_body", False))
        for at in range(0, max(1, len(body)), PART_BYTES):
            while not (self._sent or self._has_left):
                await self._awake()
            if self._has_left:
                break
            rest = more or at + PART_BYTES < len(body)
            self._send_part(body[at : at + PART_BYTES], rest)
        if self._has_left or not more:
            self.is_complete = True
            self._wake.set()

    @property
    def _is_over(self) -> bool:
        return self._has_left or self.is_complete

    def _send_part(self, body: bytes, more: bool) -> None:
        start, self._start, self._sent = self._start, None, not more
        if start is None:
            self._send_frame(More(self.id, body, more))
        else:
            self._send_frame(Answer(self.id, int(start["status"]), list(start.get("headers", ())), body, more))

    async def _awake(self) -> None:
        self._wake.clear()
        await self._wake.wait()
