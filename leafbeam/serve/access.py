"""Access: which requests a server answers to whom, and which sites' pages may read the answers (CORS)."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

from starlette._utils import get_route_path  # as routes are matched; another way to cut the path could miss a scope
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request as HttpRequest
from starlette.routing import compile_path
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from leafbeam.errors import OverloadedError, RequestError
from leafbeam.serve.errors import BodyError, error_response
from leafbeam.serve.exposure import is_loopback
from leafbeam.serve.keys import KeyFile, Scope
from leafbeam.serve.observation import HEADER, note_route
from leafbeam.serve.operations import OPERATIONS, Need, Operation

_PAGE = "/playground/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The rules of who may do what with a server.

    Args:
        changes: The clients that may change what is served, if there are no keys: "local" for programs on this machine, and no
            page of another site that a browser shows here; "open" for everyone; "off" for no client. Everyone may read.
        reason: Why changes are off.
        keys: The keys of clients, each with a scope; None without keys.
    """

    changes: Literal["local", "open", "off"] = "local"
    reason: str = ""
    keys: KeyFile | None = None

    def check(self, http: HttpRequest, need: Need) -> None:
        """Raise BodyError, 401 or 403, unless the request may do what needs this; OverloadedError beyond a key's rate."""
        if self.keys is not None:
            _check_key(self.keys, http, "write" if need == "learn" else need)
        elif need not in ("read", "learn") and self.changes == "off":
            raise _forbidden(self.reason or "this server accepts no changes")
        elif need != "read" and self.changes == "local" and not _is_local(http):
            raise _forbidden(
                "only programs on this machine may change the catalog: address the server as localhost or 127.0.0.1, and not "
                "from a page "
                "of another site"
            )

    def is_known(self, http: HttpRequest) -> bool:
        """Return whether the request may read."""
        return self.keys is None or self.keys.find(http.headers.get("authorization")) is not None


def _check_key(keys: KeyFile, http: HttpRequest, scope: Scope) -> None:
    key = keys.find(http.headers.get("authorization"))
    if key is None:
        message = "this server needs a key that it knows, in the header Authorization: Bearer KEY"
        raise BodyError(message, status=HTTPStatus.UNAUTHORIZED, reason="unauthorized")
    if not key.may(scope):
        raise _forbidden(
            "the scope of this key does not cover this request: use a key of a wider scope (`leafbeam keys list` shows the "
            "scopes)"
        )
    if wait_s := keys.wait_s(key):
        raise OverloadedError(
            "this key has used up its rate of requests: wait before the next one", reason="key_rate", retry_after_s=wait_s
        )


def _is_local(http: HttpRequest) -> bool:
    """Return whether a program on this machine asks; a page of another site could have its name lead to this machine."""
    host, origin = http.headers.get("host", ""), http.headers.get("origin")
    return is_loopback(_hostname(host)) and origin in (None, f"{http.url.scheme}://{host}")


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # such as half an IPv6 address
        return ""


class AccessMiddleware:
    """Refuses requests before anything of them is read. refused: called with the reason."""

    def __init__(self, app: ASGIApp, access: Access, refused: Callable[[str], None]) -> None:
        self._app, self._access, self._refused = app, access, refused

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        # An application that is mounted in another has the path of the mount before its own.
        if scope["type"] == "http" and (need := need_of(scope["method"], get_route_path(scope))) is not None:
            http = HttpRequest(scope)
            try:
                self._access.check(http, need)
            except RequestError as error:
                self._refused(error.reason)
                if operations := _operations_at(get_route_path(scope)):
                    note_route(scope, operations[0].path)
                await error_response(http, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _forbidden(message: str) -> BodyError:
    return BodyError(message, status=HTTPStatus.FORBIDDEN, reason="forbidden")


def need_of(method: str, path: str) -> Need | None:
    """Return the scope that a request needs, or None for health checks and the files of the page.

    "learn" is for counting interactions, which a server does only with --learn. A method that a path lacks needs the scope of
    the last operation of that path; an unknown path needs "read".
    """
    if path == "/" or path.startswith(_PAGE):
        return None
    method = "GET" if method == "HEAD" else method
    if (method, path) in (known := _needs_of_fixed_paths()):  # nearly every request, and faster than the patterns
        return known[method, path]
    at_path = _operations_at(path)
    of_method = [operation for operation in at_path if operation.method == method]
    return (of_method or at_path[-1:])[0].need if at_path else "read"


def _operations_at(path: str) -> list[Operation]:
    return [operation for pattern, operation in _patterns() if pattern.match(path)]


@cache
def _needs_of_fixed_paths() -> dict[tuple[str, str], Need | None]:
    return {(operation.method, operation.path): operation.need for operation in OPERATIONS if "{" not in operation.path}


@cache
def _patterns() -> list[tuple[re.Pattern[str], Operation]]:
    return [(compile_path(operation.route_path)[0], operation) for operation in OPERATIONS]


_EXPOSED = ("retry-after", HEADER)


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an application whose answers pages of these sites may read; the application itself without sites."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["authorization", "content-type", "idempotency-key", HEADER],
        expose_headers=_EXPOSED,
    )


def cors_head(origin: str | None, origins: Sequence[str]) -> bytes:
    """Return the lines of an answer's head by which a page of `origin` may read it; nothing for another site.

    Args:
        origin: The header `Origin` of the request, or None if it has not been read: a server for a single site then
            names that site.
        origins: The sites whose pages may read answers.
    """
    site = origins[0] if origin is None and len(origins) == 1 else origin
    if site is None or site not in origins:
        return b""
    lines = (f"access-control-allow-origin: {site}", f"access-control-expose-headers: {', '.join(_EXPOSED)}", "vary: Origin")
    return "".join(f"{line}\r\n" for line in lines).encode()
