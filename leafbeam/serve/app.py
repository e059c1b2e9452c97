"""The HTTP interface of an engine, a language model, or both."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from leafbeam.engine import Engine
from leafbeam.engine.search_widths import SearchWidths
from leafbeam.errors import ArgumentError
from leafbeam.ingest import CatalogWriter, Source
from leafbeam.serve.access import Access, AccessMiddleware, with_cors
from leafbeam.serve.catalog_routes import CatalogRoutes
from leafbeam.serve.completions import CompletionRoutes
from leafbeam.serve.config import ServerConfig
from leafbeam.serve.engine_routes import item_handlers, model_handlers, slow_batch_answer
from leafbeam.serve.errors import Handler, UnexpectedErrorMiddleware, http_error
from leafbeam.serve.exchange import BoundedExecutor, Bounds, in_own_thread, json_response
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.observation import Observation, ObservationMiddleware, RequestIdMiddleware
from leafbeam.serve.openapi import document_of, page_of
from leafbeam.serve.operations import OPERATIONS
from leafbeam.serve.schema import Health, LearntWidths, Readiness, SlowBatchesAnswer
from leafbeam.serve.user_histories import user_handlers
from leafbeam.text import TextService

MAX_PENDING = {"changes": 16, "look-ups": 16, "interactions": 256}  # that wait for the disk; more get 429
_READ_THREADS = 4
NO_WRITER = "this server was started without a place to keep changes: see `leafbeam serve --changes`"

FILES = Path(__file__).parent / "playground"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # asked for again each time, and answered with 304
}


def create_app(
    engine: Engine | None,
    metrics: Metrics | None = None,
    *,
    config: ServerConfig | None = None,
    text: TextService | None = None,
    writer: CatalogWriter | str = NO_WRITER,
    access: Access | None = None,
    observation: Observation | None = None,
) -> Starlette:
    """Return the ASGI application of an engine, a language model, or both, which start and stop with it.

    Args:
        engine: The engine.
        metrics: Its metrics, where the caller counts too.
        config: Only the bounds of bodies and answers, the seconds to stop, sites, users and the log of requests are read.
        text: The language model.
        writer: Changes the engine's catalog for clients, or the reason why it cannot be changed.
        access: The rights of clients; by default, programs on this machine may change the catalog.
        observation: Logs and traces requests; by default it logs them as `config` says.
    """
    if engine is None and text is None:
        raise ArgumentError("there is nothing to serve: pass an engine, a text service, or both")
    config = config or ServerConfig()
    bounds = Bounds(max_body_bytes=config.max_body_bytes, max_body_s=config.max_body_s, answer_s=config.answer_s)
    observation = observation or Observation(log=config.log_requests)
    metrics, access = metrics or Metrics(engine, text), access or Access(keys=config.key_file())
    batch_bounds = replace(bounds, max_body_bytes=config.max_batch_bytes)
    writes, reads, counting = (
        BoundedExecutor(what, number, _READ_THREADS if what == "look-ups" else 1) for what, number in MAX_PENDING.items()
    )
    handlers = CompletionRoutes(engine, text, metrics, bounds).handlers
    handlers |= _state_handlers(engine, text, metrics, access, None if isinstance(writer, str) else writer.source)
    if engine is not None:
        handlers |= item_handlers(engine, metrics, bounds, counting) | model_handlers(engine, metrics, bounds)
        handlers |= CatalogRoutes(engine, writer, metrics, batch_bounds, writes=writes, reads=reads).handlers
        handlers |= user_handlers(config.users, reads)
    document = document_of(
        None if engine is None else engine.limits,
        has_text=text is not None,
        has_catalog=engine is not None and engine.catalog is not None,
        learns=engine is not None and engine.learns,
        has_users="get_user" in handlers,
        has_keys=access.keys is not None,
    )
    traces = [] if observation.traces is None else [observation.traces.close]
    closes = [writes.close, reads.close, counting.close, *traces]
    app = Starlette(
        routes=[
            *(
                Route(operation.route_path, handlers[operation.name], methods=[operation.method])
                for operation in OPERATIONS
                if operation.name in handlers
            ),
            *([] if engine is None else playground_routes(config.exposure.pictures)),
            *_document_routes(document),
        ],
        exception_handlers={HTTPException: http_error},
        middleware=[
            Middleware(RequestIdMiddleware),
            *([Middleware(ObservationMiddleware, observation=observation)] if observation.is_on else []),
            # Around all that answers, so that errors have its headers too.
            Middleware(with_cors, origins=config.exposure.origins),
            Middleware(UnexpectedErrorMiddleware),
            Middleware(AccessMiddleware, access=access, refused=metrics.observe_refused_access),
        ],
        lifespan=partial(_running, engine, text, config.grace_s, closes),
    )
    app.router.redirect_slashes = False  # a redirect would go where the client's Host header says
    return app


@asynccontextmanager
async def _running(
    engine: Engine | None, text: TextService | None, grace_s: float, closes: Sequence[Callable[[], None]], app: Starlette
) -> AsyncGenerator[None]:
    """Start the engine and the language model; at the end stop both, then call `closes` one after the other."""
    if engine is not None:
        engine.start()
    if text is not None:
        await asyncio.to_thread(text.start)
    yield
    stops = [part.stop for part in (engine, text) if part is not None]
    await asyncio.gather(*(in_own_thread(partial(stop, grace_s)) for stop in stops))
    for close in closes:
        await in_own_thread(close)


def _state_handlers(
    engine: Engine | None, text: TextService | None, metrics: Metrics, access: Access, source: Source | None
) -> dict[str, Handler]:
    """Return the handlers that say how the server is, by operation."""
    metrics.unready_reason = partial(_unready_reason, engine, text, source)

    async def healthz(http: HttpRequest) -> Response:
        return json_response(Health())

    async def readyz(http: HttpRequest) -> Response:
        readiness = _readiness(engine, text, metrics.num_http_workers(), source)
        if not access.is_known(http):
            readiness = msgspec.structs.replace(readiness, rules={}, feed=None)
        return json_response(readiness, HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def slow_batches(http: HttpRequest) -> Response:
        kept = () if engine is None else engine.slow_batches.kept
        return json_response(SlowBatchesAnswer(batches=[slow_batch_answer(batch) for batch in kept]))

    async def prometheus(http: HttpRequest) -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    own: dict[str, Handler] = {"get_health": healthz, "get_readiness": readyz, "get_metrics": prometheus}
    return own if engine is None else {"list_slow_batches": slow_batches, **own}


def _document_routes(document: dict[str, object]) -> list[Route]:
    """Return the routes of the OpenAPI document, as JSON and as a page."""
    page = page_of(document)

    async def openapi(http: HttpRequest) -> Response:
        return json_response(document)

    async def docs(http: HttpRequest) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    return [Route("/openapi.json", openapi), Route("/docs", docs)]


def _unready_reason(engine: Engine | None, text: TextService | None, source: Source | None) -> str | None:
    """Return why requests should go elsewhere."""
    reason = None if engine is None else engine.unhealthy_reason
    if reason is None and text is not None and not text.worker.is_alive:
        reason = "the text worker has ended"
    return source.unready_reason if reason is None and source is not None else reason


def _readiness(engine: Engine | None, text: TextService | None, http_workers: int, source: Source | None) -> Readiness:
    reason = _unready_reason(engine, text, source)
    tuning = {} if engine is None else engine.choices
    rules = None if engine is None or engine.catalog is None else engine.catalog.rules
    return Readiness(
        ready=reason is None,
        reason=reason,
        index_version=None if engine is None else engine.version.name,
        model_version=None if engine is None else engine.model_version,
        num_items=0 if engine is None else len(engine.version),
        rules={} if rules is None else {name: len(allowed) for name, allowed in rules.filters.items()},
        rules_version=None if rules is None else rules.definitions_version,
        threads=None if engine is None else engine.threads,
        precision=tuning.get("precision"),
        tuning=tuning,
        search_widths=() if engine is None else _learnt(engine.search_widths),
        text_model=None if text is None else text.name,
        http_workers=http_workers,
        feed=None if source is None else source.status,
    )


def _learnt(search_widths: SearchWidths) -> tuple[LearntWidths, ...]:
    return tuple(
        LearntWidths(num_items=kind.num_items, share=2.0**kind.octave, scoring=kind.scoring, widths=widths)
        for kind, widths in search_widths.learnt.items()
    )


class _PageFiles(StaticFiles):
    """The page's files. They have no inline script or style and load nothing from elsewhere but pictures of these sites."""

    def __init__(self, picture_sites: Sequence[str]) -> None:
        super().__init__(directory=FILES)
        self._policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            f"frame-ancestors 'none'; img-src {' '.join(['data:', *picture_sites])} 'self'"
        )

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update({**_HEADERS, "Content-Security-Policy": self._policy})
        return response


def playground_routes(picture_sites: Sequence[str]) -> list[BaseRoute]:
    """Return the routes of `/`, and of the files that it loads. picture_sites: sites of the items' pictures."""
    files = _PageFiles(picture_sites)

    async def page(http: HttpRequest) -> Response:
        return await files.get_response("index.html", http.scope)

    return [Route("/", page), Mount("/playground", files)]
