"""An HTTP worker's end of the link to the core: it forwards each request, and the answer back to the client."""

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import cast

from starlette.types import Receive, Send

from leafbeam.errors import UnavailableError
from leafbeam.serve.frames import (
    BEAT_S,
    Abort,
    Answer,
    Beat,
    Declined,
    Drain,
    FrameError,
    FrameReader,
    FromCore,
    FromWorker,
    Gone,
    More,
    Open,
    Part,
    Pull,
    Sent,
    encode,
)

log = logging.getLogger("leafbeam.serve")

_MAX_UNSENT_BYTES = 8 << 20  # that wait for the core: more requests get 503
_SILENT_S = 1.0  # without a beat: the core hangs, or does not run
_PATIENCE_S = 10.0  # for an answer of a core that is silent, where a request has no deadline


_Event = Pull | Answer | More | Abort | Declined | Gone | None  # None: the core has ended


class WorkerLink(asyncio.Protocol):
    """Requests of this worker that the core answers. ended: called with the reason when the core ends or is full."""

    def __init__(self, reader: "FrameReader[FromCore]", ended: Callable[[str | None], None]) -> None:
        self._reader, self._ended = reader, ended
        self._numbers = count()
        self._open: dict[int, asyncio.Queue[_Event]] = {}
        self._transport: asyncio.Transport
        self._is_lost = False
        self._heard_at = 0.0
        self._beats: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._heard_at = asyncio.get_running_loop().time()
        self._beat()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._beats is not None:
            self._beats.cancel()
        for frames in self._open.values():
            frames.put_nowait(None)
        self._ended("the core is gone")

    def data_received(self, data: bytes) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        try:
            received = self._reader.feed(data)
        except FrameError:
            log.exception("what the core sent cannot be read")
            self._transport.abort()
            return
        for frame in received:
            match frame:
                case Drain():
                    self._ended(None)
                case Pull() | Answer() | More() | Abort() | Declined():
                    if (frames := self._open.get(frame.id)) is not None:
                        frames.put_nowait(frame)
                case _:  # a beat: it was heard
                    pass

    def send(self, frame: FromWorker) -> None:
        """Send a frame, unless the core has ended."""
        if not self._is_lost:
            self._transport.write(encode(frame))

    def close(self) -> None:
        """Send what waits, and end the link."""
        self._transport.close()

    async def forward(self, request: Open, receive: Receive, send: Send, *, deadline: float | None) -> None:
        """Send a request to the core, and its answer to the client, part by part.

        request: with any id. deadline: by the clock of the event loop: an answer that is not there by then is waited for only
        while the core lives. Raises OverloadedError if the core declines it, UnavailableError if the answer has not begun and
        the core is gone, hangs or is full.
        """
        self._check()
        number, frames = next(self._numbers), asyncio.Queue[_Event]()
        self._open[number] = frames
        is_wanted, began, over = asyncio.Event(), False, False
        reading = asyncio.ensure_future(self._read(number, request.more, is_wanted, receive))
        try:
            self.send(Open(number, request.head, request.body, request.more, request.refusal, request.arrived))
            while not over:
                match await self._next(frames, deadline):
                    case Pull():
                        is_wanted.set()
                    case Answer() as answer:
                        began = True
                        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
                        over = await self._pass_on(answer, send)
                    case More() as more:
                        over = await self._pass_on(more, send)
                    case Gone():
                        return
                    case Declined() as declined:
                        over = True
                        raise declined.error()
                    case Abort():
                        over = True
                        raise UnavailableError("the server failed; its log says why", reason="failed")
                    case None:
                        over = True
                        raise _core_gone()
        except UnavailableError as error:
            if not began:
                raise
            log.error("an answer broke off: %s", error)  # what is missing cannot come: the connection is closed
        finally:
            reading.cancel()
            del self._open[number]
            if not over:
                self.send(Gone(number))

    def _check(self) -> None:
        if self._is_lost:
            raise _core_gone()
        if self._transport.get_write_buffer_size() > _MAX_UNSENT_BYTES:
            raise UnavailableError("too many requests wait for the server's core: try again later", reason="core_busy")

    async def _next(self, frames: "asyncio.Queue[_Event]", deadline: float | None) -> "_Event":
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE_S if deadline is None else deadline
        while True:
            try:
                async with asyncio.timeout_at(until):
                    return await frames.get()
            except TimeoutError:
                silent_s = loop.time() - self._heard_at
                if silent_s > _SILENT_S:
                    message = f"the server's core has not run for {silent_s:.1f} s: try another server"
                    raise UnavailableError(message, reason="core_silent", retry_after_s=_PATIENCE_S) from None
                until = loop.time() + BEAT_S

    async def _read(self, number: int, more: bool, is_wanted: asyncio.Event, receive: Receive) -> None:
        """Send the parts of a body, each when the core wants it, and note when the client leaves."""
        while (message := await receive())["type"] != "http.disconnect":
            if more:
                more = bool(message["more_body"])
                self.send(Part(number, message["body"], more))
                if more:
                    await is_wanted.wait()
                    is_wanted.clear()
        if (frames := self._open.get(number)) is not None:
            frames.put_nowait(Gone(number))

    async def _pass_on(self, part: Answer | More, send: Send) -> bool:
        """Send a part to the client; whether it was the last."""
        await send({"type": "http.response.body", "body": part.body, "more_body": part.more})
        if part.more:
            self.send(Sent(part.id))
        return not part.more

    def _beat(self) -> None:
        self.send(Beat())
        self._beats = asyncio.get_running_loop().call_later(BEAT_S, self._beat)


def _core_gone() -> UnavailableError:
    return UnavailableError("the server's core has ended: try again later", reason="core_gone")
