"""The HTTP interface of an engine."""

import asyncio
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from leafbeam.engine import Engine, Limits, Request, Result, version_name
from leafbeam.errors import ArgumentError, LeafbeamError, RequestError, UnavailableError
from leafbeam.serve.errors import BodyError, describe, error_response, http_error, unexpected_error
from leafbeam.serve.metrics import CLIENT_CLOSED_REQUEST, Metrics
from leafbeam.serve.openapi import document_of, page_of
from leafbeam.serve.schema import EventsAnswer, EventsBody, Health, Readiness, RecommendAnswer, RecommendBody

_INLINE_IDS = 512  # more ids are looked up in a thread; for fewer, changing threads takes longer
_DECODER = msgspec.json.Decoder(RecommendBody)
_EVENTS_DECODER = msgspec.json.Decoder(EventsBody)
S = TypeVar("S", bound=msgspec.Struct)


def create_app(
    engine: Engine,
    metrics: Metrics | None = None,
    *,
    max_body_bytes: int = 1 << 20,
    max_body_s: float = 10.0,
    answer_s: float = 60.0,
    grace_s: float = 30.0,
) -> Starlette:
    """The ASGI application of an engine, which starts and stops with it.

    max_body_bytes, max_body_s: bounds of a body and of the seconds until it is there. answer_s: a request without an answer
    by then gets 503, whatever its deadline. grace_s: seconds that accepted requests may still run when the application stops.
    """
    if max_body_bytes < 1 or min(max_body_s, answer_s) <= 0:
        raise ArgumentError("max_body_bytes, max_body_s and answer_s must be above 0")
    metrics = metrics or Metrics(engine)
    document = document_of(engine.limits)
    page = page_of(document)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop, grace_s)

    async def answer(http: HttpRequest) -> Response:
        """Read, parse once, submit, wait."""
        try:
            body = await read_body(http, max_bytes=max_body_bytes, max_s=max_body_s)
            arrived = engine.clock()
            request = parse_body(body, http.headers.get("content-type", ""), engine.limits)
        except RequestError as error:
            engine.counts.add("refused", error.reason)
            raise
        blocks = engine.settings.overlap and len(request.history) + len(request.deny_item_ids) > _INLINE_IDS
        submit = partial(engine.submit, request, arrived=arrived)
        disconnected = asyncio.ensure_future(_disconnected(http))
        try:
            await asyncio.sleep(0)  # until the end of a connection that was closed behind its request has been read
            if disconnected.done():
                raise ClientDisconnect
            result = await _result(await asyncio.to_thread(submit) if blocks else submit(), disconnected, answer_s)
        finally:
            disconnected.cancel()
        metrics.observe_result(result, request.num_items)
        return _json(RecommendAnswer.of(result))

    async def recommend(http: HttpRequest) -> Response:
        began, status = time.perf_counter(), int(HTTPStatus.INTERNAL_SERVER_ERROR)
        try:
            response = await answer(http)
            status = response.status_code
        except ClientDisconnect:
            status = CLIENT_CLOSED_REQUEST
            response = Response(status_code=status)
        except LeafbeamError as error:  # not in a handler of the app, which takes longer
            response = error_response(http, error)
            status = response.status_code
        finally:
            metrics.observe(status, time.perf_counter() - began)
        return response

    async def events(http: HttpRequest) -> Response:
        """Count interactions; the write to disk waits in a thread."""
        try:
            body = await read_body(http, max_bytes=max_body_bytes, max_s=max_body_s)
            content = _decode(body, http.headers.get("content-type", ""), engine.limits, _EVENTS_DECODER)
            observed = [(event.history, event.item_id) for event in content.events]
            return _json(EventsAnswer(pairs=await asyncio.to_thread(engine.observe, observed)))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except LeafbeamError as error:
            return error_response(http, error)

    async def healthz(http: HttpRequest) -> Response:
        return _json(Health())

    async def readyz(http: HttpRequest) -> Response:
        reason = engine.unhealthy_reason
        filters = {} if engine.catalog is None else engine.catalog.rules.filters
        readiness = Readiness(
            ready=reason is None,
            reason=reason,
            index_version=version_name(engine.version),
            num_items=len(engine.version),
            rules={name: len(allowed) for name, allowed in filters.items()},
        )
        return _json(readiness, HTTPStatus.OK if reason is None else HTTPStatus.SERVICE_UNAVAILABLE)

    async def prometheus(http: HttpRequest) -> Response:
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    async def openapi(http: HttpRequest) -> Response:
        return _json(document)

    async def docs(http: HttpRequest) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"})

    app = Starlette(
        routes=[
            Route("/v1/recommend", recommend, methods=["POST"]),
            Route("/v1/events", events, methods=["POST"]),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", prometheus),
            Route("/openapi.json", openapi),
            Route("/docs", docs),
        ],
        exception_handlers={HTTPException: http_error, Exception: unexpected_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # a redirect would go where the client's Host header says
    return app


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _result(future: "Future[Result]", disconnected: "asyncio.Future[None]", answer_s: float) -> Result:
    """Wait for a result. Raises ClientDisconnect after withdrawing the request, UnavailableError after `answer_s` seconds."""
    answer = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait({answer, disconnected}, timeout=answer_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        future.cancel()
        raise
    if answer in done:
        return answer.result()
    answer.cancel()
    future.cancel()
    if disconnected in done:
        raise ClientDisconnect
    raise UnavailableError(f"no answer within {answer_s:g} s", reason="no_answer")


async def _disconnected(http: HttpRequest) -> None:
    """Return once the client has disconnected."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


async def read_body(http: HttpRequest, *, max_bytes: int, max_s: float) -> bytes:
    """The whole body. Raises BodyError as soon as it is known to be too long or too slow, without holding it."""
    length = http.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > max_bytes:
        raise _too_long(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(max_s):
            async for chunk in http.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise _too_long(max_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {max_s:g} s"
        raise BodyError(message, status=HTTPStatus.REQUEST_TIMEOUT, reason="body_too_slow") from None
    return bytes(body)


def parse_body(body: bytes, content_type: str, limits: Limits) -> Request:
    """The request in a body. Raises BodyError for what is not JSON or has wrong types, RequestError for wrong values."""
    return _decode(body, content_type, limits, _DECODER).to_request()


def _decode(body: bytes, content_type: str, limits: Limits, decoder: "msgspec.json.Decoder[S]") -> S:
    """The content of a body. The first mistake ends the parsing: no body takes more than a few milliseconds."""
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not body or not is_json:
        raise BodyError("the body: expected a JSON object, sent with Content-Type: application/json")
    max_values = 4 * (limits.max_history + limits.max_deny + limits.max_rules) + 64  # ids may hold commas
    if body.count(b",") > max_values:
        raise BodyError(f"the body may hold up to {max_values:,} values: send fewer ids")
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BodyError(describe(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.DecodeError) else "it cannot be parsed"
        raise BodyError(f"the body must be JSON, but: {reason}", status=HTTPStatus.BAD_REQUEST) from None


def _too_long(max_bytes: int) -> BodyError:
    message = f"the body may have up to {max_bytes:,} bytes: send fewer ids"
    return BodyError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason="body_too_long")
