"""An id for each request, in its answer and in the log of its failure."""

import re
from secrets import token_hex

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "x-request-id"
_KEY = "leafbeam.request_id"
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestIdMiddleware:
    """Answers with the header X-Request-Id: that of the request if it is letters, digits, `.`, `_` and `-`, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get(HEADER, "")
        request_id = scope[_KEY] = sent if _ID.fullmatch(sent) else token_hex(8)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, answer)


def request_id_of(scope: Scope) -> str:
    """The id of a request; "-" outside the middleware."""
    return scope.get(_KEY, "-")
