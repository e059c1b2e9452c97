"""`POST /v1/recommend` and `POST /v1/interactions`: the routes of an engine."""

import time
from http import HTTPStatus

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from leafbeam.engine import Engine, Limits, Request, Result
from leafbeam.errors import LeafbeamError, RequestError
from leafbeam.serve import exchange
from leafbeam.serve.body import Bounds, EarlyBody, decode_body, decode_recommend, read_body
from leafbeam.serve.bounded_executor import BoundedExecutor
from leafbeam.serve.conversions import recommend_answer, request_of
from leafbeam.serve.errors import error_response
from leafbeam.serve.exchange import json_response, key_of
from leafbeam.serve.metrics import CLIENT_CLOSED_REQUEST, Metrics
from leafbeam.serve.observation import note_answer
from leafbeam.serve.operations import routes_of
from leafbeam.serve.schema import InteractionsAnswer, InteractionsBody

PARSED = "leafbeam.parsed"  # in a scope: the request in the body, if it has been read already
_INTERACTIONS_DECODER = msgspec.json.Decoder(InteractionsBody)


def item_routes(engine: Engine, metrics: Metrics, bounds: Bounds, counting: BoundedExecutor) -> list[Route]:
    """The routes that answer with items, and that count interactions. counting: writes these to disk."""

    async def answer(http: HttpRequest) -> Response:
        """Read, parse once, submit, wait."""
        try:
            body = await read_body(http, bounds)
            early = EarlyBody.of(http)
            arrived = engine.clock() - (0.0 if early is None else early.seconds_ago())
            request: Request | None = http.scope.get(PARSED)
            if request is None:
                request = parse_body(body, http.headers.get("content-type", ""), engine.limits)
        except RequestError as error:
            engine.counts.add("refused", error.reason)
            raise
        result = await result_for(http, request, arrived, engine, metrics, bounds)
        return json_response(recommend_answer(result, explain=request.explain))

    async def recommend(http: HttpRequest) -> Response:
        """Return the answer, or the response of an error, counted and timed."""
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

    async def interactions(http: HttpRequest) -> Response:
        """Count interactions; the write to disk waits in a thread."""
        try:
            body, kind = await read_body(http, bounds), http.headers.get("content-type", "")
            content = decode_body(body, kind, _INTERACTIONS_DECODER, max_values(engine.limits))
            events, request = [(one.history, one.item_id) for one in content.interactions], key_of(http, body)
            return json_response(InteractionsAnswer(pairs=await counting.run(lambda: engine.observe(events, request))))
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except LeafbeamError as error:
            return error_response(http, error)

    return routes_of({"recommend": recommend, "count_interactions": interactions})


async def result_for(
    http: HttpRequest, request: Request, arrived: float, engine: Engine, metrics: Metrics, bounds: Bounds
) -> Result:
    """The engine's result for the client of `http`, noted in the metrics and in its trace. Raises as `exchange.recommend`."""
    gone = exchange.departure(http)
    try:
        result = await exchange.recommend(engine, request, arrived, gone, bounds.answer_s)
    finally:
        gone.cancel()
    metrics.observe_result(result, request.num_items)
    note_answer(http.scope, request, result, seconds=engine.clock() - arrived)
    return result


def parse_body(body: bytes, content_type: str, limits: Limits) -> Request:
    """The request in a body. Raises BodyError for what is not JSON or has wrong types, RequestError for wrong values."""
    return request_of(decode_recommend(body, content_type, max_values(limits)))


def max_values(limits: Limits) -> int:
    """The most values that the body of a request for items may hold."""
    return 4 * (limits.max_history + limits.max_deny + limits.max_rules) + 64  # ids may hold commas
