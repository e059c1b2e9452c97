"""CORS: the headers by which a browser lets pages of other sites read answers."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from leafbeam.serve.request_id import HEADER


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an application whose answers pages of these sites may read; the application itself without sites."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["authorization", "content-type", "idempotency-key", HEADER],
        expose_headers=["retry-after", HEADER],
    )
