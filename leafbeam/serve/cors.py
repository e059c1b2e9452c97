"""CORS: the headers by which a browser lets pages of other sites read answers."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from leafbeam.serve.request_id import HEADER

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
            means that one.
        origins: The sites whose pages may read answers.
    """
    site = origins[0] if origin is None and len(origins) == 1 else origin
    if site is None or site not in origins:
        return b""
    lines = (f"access-control-allow-origin: {site}", f"access-control-expose-headers: {', '.join(_EXPOSED)}", "vary: Origin")
    return "".join(f"{line}\r\n" for line in lines).encode()
