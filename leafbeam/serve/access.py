"""Access: which requests a server answers to whom."""

import ipaddress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from leafbeam.serve.errors import BodyError, error_response

Scope = Literal["read", "learn", "write", "admin"]
_OPEN = ("/healthz", "/readyz")


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Who may change what a server serves.

    changes: "local": requests of programs on this machine, and no page of another site that a browser shows here; "open": every
    request; "off": none. reason: why they are off.
    """

    changes: Literal["local", "open", "off"] = "local"
    reason: str = ""

    def check(self, http: HttpRequest, scope: Scope) -> None:
        """Raise BodyError, 403, unless the request may do what needs this scope."""
        if scope == "read" or self.changes == "open" or (scope == "learn" and self.changes == "off"):
            return
        if self.changes == "off":
            raise _forbidden(self.reason or "this server takes no changes")
        # A page of another site could have its name lead to this machine, and ask here as if it were one of this server's own.
        host, origin = http.headers.get("host", ""), http.headers.get("origin")
        if not is_loopback(urlsplit(f"//{host}").hostname or "") or origin not in (None, f"{http.url.scheme}://{host}"):
            raise _forbidden(
                "changes are taken from this machine alone: address the server as localhost or 127.0.0.1, and not from a page "
                "of another site"
            )


def scope_of(method: str, path: str) -> Scope | None:
    """What a request needs; None for health checks, which need nothing.

    "learn": interactions, which a server counts only if it was told to (--learn).
    """
    if path in _OPEN:
        return None
    if path.startswith(("/v1/catalog", "/v1/rules")) and (method not in ("GET", "HEAD") or path.startswith("/v1/rules")):
        return "admin"
    if path.startswith("/v1/items") and method not in ("GET", "HEAD"):
        return "write"
    return "learn" if path.startswith("/v1/interactions") else "read"


class AccessMiddleware:
    """Refuses requests before anything of them is read."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (needed := scope_of(scope["method"], scope["path"])) is not None:
            http = HttpRequest(scope)
            try:
                self._access.check(http, needed)
            except BodyError as error:
                await error_response(http, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _forbidden(message: str) -> BodyError:
    return BodyError(message, status=HTTPStatus.FORBIDDEN, reason="forbidden")
