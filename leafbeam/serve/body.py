"""A bound on what a client can make the server hold: bytes of a body, and seconds until it is there."""

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from leafbeam.engine import Counts
from leafbeam.serve.errors import answer

ARRIVED = "leafbeam.arrived"  # of an ASGI scope: when the whole request was here, by the engine's clock


def replaying(message: Message, receive: Receive) -> Receive:
    """A `receive` that gives a message that was read already, and then what comes."""
    messages = [message]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


class BoundedBody:
    """ASGI middleware: reads the body first, at most `max_bytes` of it within `max_s` seconds, then passes it on whole.

    It notes when that was (`ARRIVED`). What is longer is refused as soon as that is known, from its header or on the way, and
    never held.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, max_s: float, counts: Counts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app, self._max_bytes, self._max_s, self._counts, self._clock = app, max_bytes, max_s, counts, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._max_s):
                body = await self._read(scope, receive)
        except TimeoutError:
            self._counts.add("refused", "body_too_slow")
            message = f"the body did not arrive within {self._max_s:g} s"
            await answer(HTTPStatus.REQUEST_TIMEOUT, "RequestError", message, {"Connection": "close"})(scope, receive, send)
            return
        if body is None:
            self._counts.add("refused", "body_too_long")
            message = f"the body may have up to {self._max_bytes:,} bytes: send fewer ids"
            refusal = answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestError", message, {"Connection": "close"})
            await refusal(scope, receive, send)
            return

        scope[ARRIVED] = self._clock()
        await self._app(scope, replaying({"type": "http.request", "body": body, "more_body": False}, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """The body; None as soon as it is known to be too long."""
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value[:20]) > self._max_bytes:
                return None
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b"".join(parts)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)
