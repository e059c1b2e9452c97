"""The HTTP interface of an engine."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Body, FastAPI, Response
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST

from pleach.engine import Engine, name_of
from pleach.errors import ArgumentError, OverloadedError
from pleach.serve.body import BoundedBody
from pleach.serve.errors import add_error_answers
from pleach.serve.metrics import Counted, Metrics
from pleach.serve.schema import ErrorAnswer, Health, Readiness, RecommendAnswer, RecommendBody, publish_limits

_DESCRIPTION = """
Recommendations that obey rules: every item in an answer is in the index and allowed by each rule that the request names.
When the rules leave fewer items than asked for, fewer come back, and `num_valid` says how many.

Every failure has the body `{"error": {"type": ..., "message": ...}}`: 4xx says what to change in the request, 503 (with
`Retry-After`) that the server is too busy or stopping.
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
    an answer by then gets 503. grace_s: how long waiting requests may still run when the application stops.
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
            413: "The body is too long",
            422: "The request cannot be answered: a wrong type, a value out of its bounds, an unknown rule",
            500: "The server failed, such as a model that gives NaN",
            503: "Too busy, or stopping: try again after `Retry-After` seconds",
        }.items()
    }
    app = FastAPI(title="pleach", description=_DESCRIPTION, version="1", lifespan=lifespan)
    add_error_answers(app)

    app.add_middleware(BoundedBody, max_bytes=max_body_bytes, max_s=max_body_s)
    app.add_middleware(Counted, metrics=metrics, path="/v1/recommend")

    @app.post("/v1/recommend", responses=refusals, summary="Recommend items under rules")
    async def recommend(body: Annotated[RecommendBody, Body()]) -> RecommendAnswer:  # pyright: ignore[reportUnusedFunction]
        request = body.to_request()
        try:
            async with asyncio.timeout(answer_s):
                result = await asyncio.wrap_future(engine.submit(request))
        except TimeoutError as error:
            raise OverloadedError(f"no answer within {answer_s:g} s") from error
        metrics.observe_result(result, request.num_items)
        return RecommendAnswer.of(result)

    @app.get("/healthz", summary="Is the process up?")
    async def healthz() -> Health:  # pyright: ignore[reportUnusedFunction]
        return Health()

    @app.get("/readyz", responses={503: {"model": Readiness}}, summary="Are requests answered now?")
    async def readyz(response: Response) -> Readiness:  # pyright: ignore[reportUnusedFunction]
        ready = engine.is_running
        response.status_code = 200 if ready else 503
        filters = {} if engine.catalogue is None else engine.catalogue.rules.filters
        sizes = {name: len(chosen) for name, chosen in filters.items()}
        version = engine.version
        return Readiness(ready=ready, index_version=name_of(version), num_items=len(version), rules=sizes)

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
