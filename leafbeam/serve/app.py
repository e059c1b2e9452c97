"""The HTTP interface of an engine."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST

from leafbeam.engine import Engine, Result, name_of
from leafbeam.errors import ArgumentError, RequestError, UnavailableError
from leafbeam.serve.admission import Gate
from leafbeam.serve.body import ARRIVED, BoundedBody
from leafbeam.serve.errors import add_error_answers
from leafbeam.serve.metrics import GONE, Counted, Metrics
from leafbeam.serve.schema import ErrorAnswer, Health, Readiness, RecommendAnswer, RecommendBody, publish_limits

_FEW_IDS = 512
_DESCRIPTION = """
Recommendations that obey rules: every item in an answer is in the index and allowed by each rule that the request names.
When the rules leave fewer items than asked for, fewer come back, and `num_valid` says how many.

Every failure has the body `{"error": {"type": ..., "message": ...}}`: 4xx says what to change in the request, except 429: more
requests than can be answered in time; 503 that the server does not serve now. Both say when to come again (`Retry-After`).
"""


def create_app(
    engine: Engine,
    metrics: Metrics | None = None,
    *,
    max_body_bytes: int = 1 << 20,
    max_body_s: float = 10.0,
    answer_s: float = 60.0,
    grace_s: float = 30.0,
) -> FastAPI:
    """The FastAPI application of an engine, which it starts and stops with itself.

    max_body_bytes, max_body_s: a body that is longer, or takes longer to arrive, is refused. answer_s: a request without
    an answer by then gets 503, whatever its deadline. grace_s: how long requests may still run when the application stops.
    """
    if max_body_bytes < 1 or min(max_body_s, answer_s) <= 0:
        raise ArgumentError("max_body_bytes, max_body_s and answer_s have to be above 0")
    metrics = metrics or Metrics(engine)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop, grace_s)

    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorAnswer, "description": description}
        for status, description in {
            400: "The body is not JSON",
            408: "The body did not arrive in time",
            413: "The body is too long",
            422: "The request cannot be answered: a wrong type, a value out of bounds, an unknown rule, a deadline in the past",
            429: "The queue is full, or the deadline cannot be kept: try again after `Retry-After` seconds",
            500: "The server failed, such as a model that gives NaN",
            503: "Stopping, or the device does not answer: ask another server, or again after `Retry-After` seconds",
        }.items()
    }
    app = FastAPI(title="leafbeam", description=_DESCRIPTION, version="1", lifespan=lifespan)
    add_error_answers(app, engine.counts)

    app.add_middleware(Gate, engine=engine, path="/v1/recommend")
    app.add_middleware(BoundedBody, max_bytes=max_body_bytes, max_s=max_body_s, counts=engine.counts, clock=engine.clock)
    app.add_middleware(Counted, metrics=metrics, path="/v1/recommend")

    @app.post("/v1/recommend", response_model=RecommendAnswer, responses=refusals, summary="Recommend items under rules")
    async def recommend(http: HttpRequest, body: Annotated[RecommendBody, Body()]) -> Any:  # pyright: ignore[reportUnusedFunction]
        try:
            request = body.to_request()
        except RequestError as error:
            engine.counts.add("refused", error.reason)
            raise
        # Many ids are looked up beside the loop that serves everybody; for a few, changing threads would take longer.
        arrived = http.scope.get(ARRIVED)
        if engine.settings.overlap and len(request.history) + len(request.deny_item_ids) > _FEW_IDS:
            future = await asyncio.to_thread(engine.submit, request, arrived=arrived)
        else:
            future = engine.submit(request, arrived=arrived)
        result = await _answered(future, http, answer_s)
        if result is None:
            return Response(status_code=GONE)
        metrics.observe_result(result, request.num_items)
        # As text: FastAPI would look at every number of the answer once more.
        return Response(RecommendAnswer.of(result).model_dump_json(), media_type="application/json")

    @app.get("/healthz", summary="Is the process up?")
    async def healthz() -> Health:  # pyright: ignore[reportUnusedFunction]
        return Health()

    @app.get("/readyz", responses={503: {"model": Readiness}}, summary="Are requests answered now?")
    async def readyz(response: Response) -> Readiness:  # pyright: ignore[reportUnusedFunction]
        trouble = engine.trouble
        response.status_code = 200 if trouble is None else 503
        filters = {} if engine.catalog is None else engine.catalog.rules.filters
        sizes = {name: len(chosen) for name, chosen in filters.items()}
        version = engine.version
        return Readiness(
            ready=trouble is None, reason=trouble, index_version=name_of(version), num_items=len(version), rules=sizes
        )

    @app.get("/metrics", summary="Counters for Prometheus", response_class=Response)
    async def prometheus() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(metrics.page(), media_type=CONTENT_TYPE_LATEST)

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            app.openapi_schema = publish_limits(document, engine.limits)
        return app.openapi_schema

    app.openapi = openapi
    return app


async def _answered(future: "Future[Result]", http: HttpRequest, answer_s: float) -> Result | None:
    """The result; None if the client went away first, in which case the request is cancelled wherever it is."""
    answer = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(_disconnected(http))
    try:
        done, _ = await asyncio.wait({answer, gone}, timeout=answer_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        future.cancel()
        raise
    finally:
        gone.cancel()
    if answer in done:
        return answer.result()
    answer.cancel()
    future.cancel()
    if gone in done:
        return None
    raise UnavailableError(f"no answer within {answer_s:g} s", reason="no_answer")


async def _disconnected(http: HttpRequest) -> None:
    """Returns once the client is gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass
