"""The HTTP interface of an engine."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from leafbeam.engine import Engine, Request, Result, version_name
from leafbeam.errors import ArgumentError, LeafbeamError, RequestError, UnavailableError
from leafbeam.serve.errors import BodyError, describe, error_response, http_error, unexpected_error
from leafbeam.serve.metrics import CLIENT_CLOSED_REQUEST, Metrics
from leafbeam.serve.schema import ErrorAnswer, Health, Readiness, RecommendAnswer, RecommendBody, publish_limits

__all__ = ["create_app"]

_INLINE_IDS = 512  # more ids are looked up in a thread; for fewer, changing threads takes longer
_DESCRIPTION = """
Recommendations under rules: every item in an answer is in the index and allowed by each rule that the request names.
If fewer items are allowed than requested, fewer are returned, and `num_valid` says how many.

Every failure has the body `{"error": {"type": ..., "message": ...}}`: 4xx says what to change in the request; 429 that
there are more requests than can be answered in time; 503 that the server is unavailable. 429 and 503 carry `Retry-After`.
"""
_FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": description}
    for status, description in {
        400: "The body is not JSON",
        408: "The body did not arrive in time",
        413: "The body is too long",
        422: "The request cannot be answered: a wrong type, a value out of bounds, an unknown rule, a deadline in the past",
        429: "The queue is full, or the deadline cannot be met: try again after `Retry-After` seconds",
        500: "The server failed, such as a model with NaN logits",
        503: "Stopping, or the device does not answer: try another server, or again after `Retry-After` seconds",
    }.items()
}
_documented = APIRouter()


@_documented.post("/v1/recommend", response_model=RecommendAnswer, responses=_FAILURES, summary="Recommend items under rules")
async def _recommend(body: RecommendBody) -> None:  # pyright: ignore[reportUnusedFunction]
    """The OpenAPI entry of a route that `create_app` adds itself."""


def create_app(
    engine: Engine,
    metrics: Metrics | None = None,
    *,
    max_body_bytes: int = 1 << 20,
    max_body_s: float = 10.0,
    answer_s: float = 60.0,
    grace_s: float = 30.0,
) -> FastAPI:
    """The FastAPI application of an engine, which starts and stops with it.

    max_body_bytes, max_body_s: bounds of a body and of the seconds until it is there. answer_s: a request without an answer
    by then gets 503, whatever its deadline. grace_s: seconds that accepted requests may still run when the application stops.
    """
    if max_body_bytes < 1 or min(max_body_s, answer_s) <= 0:
        raise ArgumentError("max_body_bytes, max_body_s and answer_s must be above 0")
    metrics = metrics or Metrics(engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop, grace_s)

    app = FastAPI(title="leafbeam", description=_DESCRIPTION, version="1", lifespan=lifespan)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected_error)

    async def answer(http: HttpRequest) -> Response:
        """Read, parse once, submit, wait."""
        try:
            body = await read_body(http, max_bytes=max_body_bytes, max_s=max_body_s)
            arrived = engine.clock()
            request = parse_body(body, http.headers.get("content-type", ""))
        except RequestError as error:
            engine.counts.add("refused", error.reason)
            raise
        blocks = engine.settings.overlap and len(request.history) + len(request.deny_item_ids) > _INLINE_IDS
        submit = partial(engine.submit, request, arrived=arrived)
        result = await _result(await asyncio.to_thread(submit) if blocks else submit(), http, answer_s)
        metrics.observe_result(result, request.num_items)
        # As text, so that FastAPI does not validate every number again.
        return Response(RecommendAnswer.of(result).model_dump_json(), media_type="application/json")

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

    # A Starlette route: a FastAPI route would read and validate the body itself, and takes longer.
    app.add_route("/v1/recommend", recommend, methods=["POST"])

    @app.get("/healthz", summary="Is the process up?")
    async def healthz() -> Health:  # pyright: ignore[reportUnusedFunction]
        return Health()

    @app.get("/readyz", responses={503: {"model": Readiness}}, summary="Does the server answer requests now?")
    async def readyz(response: Response) -> Readiness:  # pyright: ignore[reportUnusedFunction]
        reason = engine.unhealthy_reason
        response.status_code = 200 if reason is None else 503
        filters = {} if engine.catalog is None else engine.catalog.rules.filters
        return Readiness(
            ready=reason is None,
            reason=reason,
            index_version=version_name(engine.version),
            num_items=len(engine.version),
            rules={name: len(allowed) for name, allowed in filters.items()},
        )

    @app.get("/metrics", summary="Counters for Prometheus", response_class=Response)
    async def prometheus() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            routes = [*_documented.routes, *app.routes]
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=routes)
            app.openapi_schema = publish_limits(document, engine.limits)
        return app.openapi_schema

    app.openapi = openapi
    return app


async def _result(future: "Future[Result]", http: HttpRequest, answer_s: float) -> Result:
    """Wait for a result. Raises ClientDisconnect after withdrawing the request, UnavailableError after `answer_s` seconds."""
    answer = asyncio.wrap_future(future)
    disconnected = asyncio.ensure_future(_disconnected(http))
    try:
        done, _ = await asyncio.wait({answer, disconnected}, timeout=answer_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        disconnected.cancel()
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


def parse_body(body: bytes, content_type: str) -> Request:
    """The request in a body. Raises BodyError for what is not JSON or has wrong types, RequestError for wrong values."""
    kind = content_type.partition(";")[0].strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if not body or not is_json:
        raise BodyError("the body: expected a JSON object, sent with Content-Type: application/json")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be parsed"
        raise BodyError(f"the body must be JSON, but: {reason}", status=HTTPStatus.BAD_REQUEST) from None
    try:
        return RecommendBody.model_validate(value).to_request()
    except ValidationError as error:
        raise BodyError(describe(error.errors(include_url=False))) from None


def _too_long(max_bytes: int) -> BodyError:
    message = f"the body may have up to {max_bytes:,} bytes: send fewer ids"
    return BodyError(message, status=HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason="body_too_long")
