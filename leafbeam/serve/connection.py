"""uvicorn's HTTP connection with bounds on what a client may send and hold open before its request is complete."""

import asyncio
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Literal

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from leafbeam.errors import counted
from leafbeam.serve.access import cors_head
from leafbeam.serve.exposure import ConnectionLimits, descriptor_limit

BACKLOG = 256  # connections that wait to be accepted, all in one turn of the event loop: about 20 ms
_READ_BYTES = 8 << 10  # parsed at a time, so that no client holds the event loop: some 2 ms for chunks of one byte
_PIECE_BYTES = 256  # what a piece of a body, such as a chunk, counts as: parsing one takes some 1.5 us
_NOT_HTTP = "this is not an HTTP/1.1 request; if it is a body, send its Content-Length, or Transfer-Encoding: chunked"
_MAX_PIECES, _MIN_PIECE_BYTES = 4096, 8  # a body of more pieces has so many bytes a piece


@dataclass(kw_only=True, slots=True)
class _Shared:
    """The state that the connections of one server share.

    Args:
        max_connections: The number of open connections at which one is closed.
        waiting: The connections without a complete request, oldest first.
        buffer: Shared because what is read into it is parsed at once.
        bulk_at: When the next connection with more to read than the buffer holds may read on, in seconds of the event loop.
    """

    max_connections: int
    waiting: "dict[BoundedConnection, None]" = field(default_factory=dict)
    buffer: bytearray = field(default_factory=lambda: bytearray(_READ_BYTES))
    bulk_at: float = 0.0


class BoundedConnection(asyncio.BufferedProtocol, HttpToolsProtocol):  # pyright: ignore[reportIncompatibleMethodOverride]
    """One connection. It reads a bounded number of bytes in each turn of the event loop.

    refused: called with a reason for the metrics whenever a connection or request is refused here. origins: sites whose pages
    may read these refusals.
    """

    def __init__(
        self,
        *,
        limits: ConnectionLimits,
        shared: _Shared,
        refused: Callable[[str], None],
        origins: Sequence[str] = (),
        **uvicorn: Any,
    ) -> None:
        super().__init__(**uvicorn)
        self._origins = origins
        self._limits, self._shared, self._waiting, self._refused = limits, shared, shared.waiting, refused
        self.ws_protocol_class = None  # an upgraded connection would have no bounds
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refusal: tuple[HTTPStatus, str, str] | None = None  # why a callback of the parser stopped it
        self._in_head = True  # between the start of a request, or of the connection, and the end of the headers
        self._in_body = False  # between the end of the headers and that of the body
        self._unparsed_bytes = 0  # received of an incomplete head
        self._header_bytes = self._num_headers = 0  # of the headers and trailers of this request
        self._origin: str | None = None  # the header of this request, once it has been read
        self._num_pieces = 0  # of bodies, of all requests of the connection
        self._body_bytes = self._body_pieces = 0  # of the body of this request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Of a TLS transport of asyncio, 0 would mean that writing never goes on.
        high = 0 if transport.get_extra_info("sslcontext") is None else 1
        transport.set_write_buffer_limits(high=high)  # so that `pause_writing` is called as soon as a client does not read
        self._await_head()
        if len(self.connections) <= self._shared.max_connections:
            return
        oldest = next(iter(self._waiting))
        if oldest is self:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "every connection has a request running", "connections")
        else:
            oldest._close("connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        self.resume_writing()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """End the request of a client that sends nothing more, at once and not only in the next turn of the loop."""
        if (cycle := self._cycle) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    @classmethod
    def factory(
        cls, limits: ConnectionLimits, refused: Callable[[str], None], origins: Sequence[str] = ()
    ) -> "partial[BoundedConnection]":
        """Return what uvicorn calls for each connection of one server."""
        shared = _Shared(max_connections=limits.max_connections or descriptor_limit())
        return partial(cls, limits=limits, shared=shared, refused=refused, origins=origins)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        shared, before = self._shared, self._num_pieces
        self.data_received(bytes(memoryview(shared.buffer)[:nbytes]))
        cost = nbytes + _PIECE_BYTES * (self._num_pieces - before)
        if cost >= len(shared.buffer) and not self.transport.is_closing():  # more may be there: other connections go first
            self.transport.pause_reading()
            shared.bulk_at = max(shared.bulk_at, self.loop.time()) + cost / self._limits.bulk_bytes_per_s
            self.loop.call_at(shared.bulk_at, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _abort(self) -> None:
        """Close without waiting for the client to read what is buffered."""
        self._refused("not_reading")
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_head and self._timer is None:
            self._await_head()
        self._parse(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._unparsed_bytes += len(data)
            if self._unparsed_bytes > self._limits.max_header_bytes:
                self._refuse(*self._headers_too_long)

    def _parse(self, data: bytes) -> None:
        """Parse what was received. A head that asks for another protocol is parsed again without its header `Upgrade`, which
        the server does not follow: the parser would take the body behind it for the next request.
        """
        self._unset_keepalive_if_required()
        try:
            while data:
                try:
                    self._parser.feed_data(data)
                    return
                except httptools.HttpParserUpgrade as upgrade:
                    data, head = data[upgrade.args[0] :], self._head_without_upgrade()
                    self.parser = httptools.HttpRequestParser(self)
                    self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                    self.parser.feed_data(head)
        except httptools.HttpParserError:
            self.send_400_response("")

    @property
    def _parser(self) -> httptools.HttpRequestParser:
        assert self.parser is not None  # until the connection is lost
        return self.parser

    def _head_without_upgrade(self) -> bytes:
        first = b"%s %s HTTP/%s" % (self._parser.get_method(), self.url, self._parser.get_http_version().encode())
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([first, *lines, b"", b""])

    @property
    def _headers_too_long(self) -> tuple[HTTPStatus, str, str]:
        limits = self._limits
        headers = f"{counted(limits.max_headers, 'header')} of {counted(limits.max_header_bytes, 'byte')}"
        message = f"a request may have up to {headers} in all"
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message, "headers_too_long"

    def _stop_parsing(self, refusal: tuple[HTTPStatus, str, str]) -> None:
        """In a callback of the parser, which calls `send_400_response` then."""
        self._refusal = refusal
        raise ValueError(refusal[-1])

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.max_pipelined:
            message = f"up to {counted(self._limits.max_pipelined, 'request')} may follow before the first is answered"
            self._stop_parsing((HTTPStatus.BAD_REQUEST, message, "pipelined"))
        self._in_head, self._unparsed_bytes, self._header_bytes, self._num_headers = True, 0, 0, 0
        self._origin = None
        self._body_bytes = self._body_pieces = 0
        self._unset_keepalive_if_required()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        self._num_headers += 1
        if self._header_bytes > self._limits.max_header_bytes or self._num_headers > self._limits.max_headers:
            self._stop_parsing(self._headers_too_long)
        if self._in_head:  # trailers are counted and dropped
            if name.lower() == b"origin":
                self._origin = value.decode("latin-1")
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            if self._parser.get_method() == b"CONNECT":
                self._stop_parsing(
                    (HTTPStatus.BAD_REQUEST, "CONNECT is not supported, because this server is not a proxy", "not_http")
                )
            return  # the head comes again
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()  # raises an error for an invalid URL
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._num_pieces += 1
        self._body_pieces += 1
        self._body_bytes += len(body)
        if self._body_pieces > _MAX_PIECES and self._body_bytes < _MIN_PIECE_BYTES * self._body_pieces:
            message = f"a body of more than {_MAX_PIECES:,} chunks must have {_MIN_PIECE_BYTES} bytes a chunk: send larger ones"
            self._stop_parsing((HTTPStatus.BAD_REQUEST, message, "small_chunks"))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        self._in_body = False
        if self._is_idle:  # answered before its body was there: idle from now on
            self._stop_timer()
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        else:
            self._waiting.pop(self, None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_idle and not self.transport.is_closing():
            self._in_head, self._unparsed_bytes, self._origin = True, 0, None
            self._waiting[self] = None

    def send_400_response(self, msg: str) -> None:
        self._refuse(*(self._refusal or (HTTPStatus.BAD_REQUEST, _NOT_HTTP, "not_http")))

    @property
    def _cycle(self) -> RequestResponseCycle | None:
        """Return the last request of the connection and its answer; None before the first one."""
        return self.cycle

    @property
    def _is_idle(self) -> bool:
        """Return whether no request runs on the connection."""
        return (cycle := self._cycle) is None or cycle.response_complete

    def _await_head(self) -> None:
        if self._is_idle:
            self._waiting[self] = None
        self._timer = self.loop.call_later(self._limits.header_s, self._head_too_slow)

    def _end_wait(self) -> None:
        self._waiting.pop(self, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_too_slow(self) -> None:
        self._timer = None
        if self._unparsed_bytes == 0:
            self._close("silent")
        else:
            message = f"the headers did not arrive within {self._limits.header_s:g} s"
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message, "headers_too_slow")

    def _close(self, reason: str) -> None:
        """Close without an answer."""
        self._end_wait()
        self._refused(reason)
        self.transport.close()

    def _refuse(self, status: HTTPStatus, message: str, reason: str) -> None:
        """Answer in the JSON of every failure, and close. A request that still runs on the connection is withdrawn: this is its
        answer too, unless another has begun.
        """
        body = json.dumps({"error": {"type": "RequestError", "message": message, "reason": reason}}).encode()
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n" % len(body)
        head += cors_head(self._origin, self._origins) + b"\r\n"
        between = self._is_idle and not self._in_body  # an answered request may still send its body
        if between or not (self.cycle.response_started or self.pipeline):
            self.transport.write(STATUS_LINE[status] + head + body)
        self._close(reason)


def server_config(
    app: ASGIApp,
    limits: ConnectionLimits,
    refused: Callable[[str], None],
    *,
    certificate: str | os.PathLike[str] | None,
    private_key: str | os.PathLike[str] | None,
    grace_s: float,
    origins: Sequence[str],
    lifespan: Literal["on", "off"] = "off",
) -> uvicorn.Config:
    """Return uvicorn's configuration of a server with such connections. refused, origins: as of `BoundedConnection`."""
    return uvicorn.Config(
        app,
        ssl_certfile=certificate,
        ssl_keyfile=private_key,  # pyright: ignore[reportArgumentType]
        log_config=None,  # the log is that of the process
        log_level="error",  # a client could fill the log with warnings; the metrics count what is refused
        access_log=False,
        lifespan=lifespan,
        backlog=BACKLOG,
        # uvicorn only calls it
        http=BoundedConnection.factory(limits, refused, origins),  # pyright: ignore[reportArgumentType]
        timeout_keep_alive=limits.idle_s,  # pyright: ignore[reportArgumentType]: any number of seconds
        timeout_graceful_shutdown=math.ceil(grace_s) + 2,  # every request has its answer by then
    )
