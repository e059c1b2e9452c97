"""Pieces of texts from the worker's thread to an event loop, and on to a client as server-sent events."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from leafbeam.errors import UnavailableError
from leafbeam.text.worker import TextJob, Texts

_Piece = tuple[int, tuple[str, ...]]


class TextEvents:
    """The pieces of a job, for the event loop. `put` is for the worker; all else for the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: asyncio.Queue[_Piece | None] = asyncio.Queue()
        self._head: list[_Piece | None] = []
        self._job: TextJob | None = None

    def put(self, prompt: int, pieces: tuple[str, ...]) -> None:
        self._send((prompt, pieces))

    def follow(self, job: TextJob) -> None:
        """Follow the job that `put` was given to; its end ends the pieces."""
        self._job = job
        job.texts.add_done_callback(lambda _: self._send(None))

    def _send(self, piece: _Piece | None) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._queue.put_nowait, piece)

    async def first(self, gone: "asyncio.Future[None]", answer_s: float) -> None:
        """Wait until there is a piece or the end. Raises the job's error, ClientDisconnect, UnavailableError."""
        head = asyncio.ensure_future(self._queue.get())
        try:
            done, _ = await asyncio.wait({head, gone}, timeout=answer_s, return_when=asyncio.FIRST_COMPLETED)
            if head not in done:
                raise (
                    ClientDisconnect if gone in done else UnavailableError(f"no text within {answer_s:g} s", reason="no_answer")
                )
            self._head = [head.result()]
            if self._head == [None]:
                assert self.texts is not None  # or the job's error
        except BaseException:
            head.cancel()
            self.cancel()
            raise

    async def pieces(self) -> AsyncGenerator[_Piece]:
        """Yield each prompt's number with new pieces of its texts, until the end."""
        while (piece := self._head.pop() if self._head else await self._queue.get()) is not None:
            yield piece

    @property
    def texts(self) -> Texts:
        """Return the whole texts, after the end. Raises the job's error."""
        assert self._job is not None
        return self._job.texts.result(timeout=0)

    def cancel(self) -> None:
        if self._job is not None:
            self._job.texts.cancel()


class EventStream(StreamingResponse):
    """Chunks as server-sent events, then `[DONE]`. A client that disconnects ends its job."""

    def __init__(self, chunks: AsyncGenerator[object], events: TextEvents) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy sends each event at once
        super().__init__(_lines(chunks), media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._events.cancel()


async def _lines(chunks: AsyncGenerator[object]) -> AsyncGenerator[bytes]:
    async for chunk in chunks:
        yield b"data: " + msgspec.json.encode(chunk) + b"\n\n"
    yield b"data: [DONE]\n\n"
