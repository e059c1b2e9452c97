"""The playground at `/`: a page of static files that asks this server."""

from pathlib import Path

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FILES = Path(__file__).parent / "playground"
# No inline script or style, nothing from elsewhere; no frame of another site.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and answered with 304
}


class _PageFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def playground_routes() -> list[BaseRoute]:
    """`/`, and the scripts and styles that it loads."""
    files = _PageFiles(directory=FILES)

    async def page(http: HttpRequest) -> Response:
        return await files.get_response("index.html", http.scope)

    return [Route("/", page), Mount("/playground", files)]
