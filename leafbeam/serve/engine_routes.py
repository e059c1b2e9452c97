"""The routes of an engine: `POST /v1/recommend`, `POST /v1/interactions`, and `POST /v1/model/reload`."""

import asyncio
import logging
import time
from functools import partial
from http import HTTPStatus

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.engine import Engine, Limits, Request, Result, SlowBatch
from leafbeam.errors import CheckpointError, LogitsError, RequestError
from leafbeam.serve.errors import BodyError, Handler, answering
from leafbeam.serve.exchange import (
    BoundedExecutor,
    Bounds,
    EarlyBody,
    decode_body,
    decode_recommend,
    departure,
    in_own_thread,
    json_response,
    key_of,
    read_body,
    result_of,
)
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.observation import note_answer
from leafbeam.serve.schema import (
    InteractionsAnswer,
    InteractionsBody,
    LevelAnswer,
    ModelAnswer,
    ModelBody,
    ReasonAnswer,
    RecommendAnswer,
    RecommendBody,
    SlowBatchAnswer,
    TimingsAnswer,
)

log = logging.getLogger("leafbeam.serve")
PARSED = "leafbeam.parsed"  # in a scope: the request in the body, if it has been read already
_INLINE_IDS = 512  # more ids are looked up in a thread; for fewer, changing threads takes longer
_MODEL = msgspec.json.Decoder(ModelBody)
_INTERACTIONS_DECODER = msgspec.json.Decoder(InteractionsBody)


def item_handlers(engine: Engine, metrics: Metrics, bounds: Bounds, counting: BoundedExecutor) -> dict[str, Handler]:
    """Return the handlers that answer with items, and that count interactions, by operation. counting: writes these to disk."""

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
            response = await answered(http)
            status = response.status_code
        finally:
            metrics.observe(status, time.perf_counter() - began)
        return response

    async def interactions(http: HttpRequest) -> Response:
        """Count interactions; the write to disk waits in a thread."""
        body, kind = await read_body(http, bounds), http.headers.get("content-type", "")
        content = decode_body(body, kind, _INTERACTIONS_DECODER, max_values(engine.limits))
        events, request = (
            [(interaction.history, interaction.item_id) for interaction in content.interactions],
            key_of(http, body),
        )
        return json_response(InteractionsAnswer(pairs=await counting.run(lambda: engine.observe(events, request))))

    answered = answering(answer)
    return {"recommend": recommend, "count_interactions": answering(interactions)}


async def result_for(
    http: HttpRequest, request: Request, arrived: float, engine: Engine, metrics: Metrics, bounds: Bounds
) -> Result:
    """Return the engine's result for the client of `http`, noted in the metrics and in its trace.

    Raises what `Engine.submit` and `result_of` raise.
    """
    gone = departure(http)
    try:
        result = await _submit(engine, request, arrived, gone, bounds.answer_s)
    finally:
        gone.cancel()
    metrics.observe_result(result, request.num_items)
    note_answer(http.scope, request, result, seconds=engine.clock() - arrived)
    return result


async def _submit(engine: Engine, request: Request, arrived: float, gone: "asyncio.Future[None]", answer_s: float) -> Result:
    """Submit a request to an engine, and wait for its result as `result_of` does."""
    has_many = engine.settings.overlap and len(request.history) + len(request.deny_item_ids) > _INLINE_IDS
    blocks = has_many or request.has_objectives  # the first request with a column reads the whole table
    max_s = engine.limits.max_deadline_s
    if request.deadline_s is not None and not 0 < request.deadline_s <= max_s:  # in the words of HTTP
        reason = "deadline_past" if request.deadline_s <= 0 else "over_a_limit"
        engine.counts.add("refused", reason)
        message = f"deadline_ms must be above 0 and at most {1000 * max_s:,}, not {1e3 * request.deadline_s:,.15g}"
        raise RequestError(message, reason=reason)
    submit = partial(engine.submit, request, arrived=arrived)
    await asyncio.sleep(0)  # until the end of a connection that was closed behind its request has been read
    if gone.done():
        raise ClientDisconnect
    return await result_of(await asyncio.to_thread(submit) if blocks else submit(), gone, answer_s)


def parse_body(body: bytes, content_type: str, limits: Limits) -> Request:
    """Return the request in a body. Raises BodyError for what is not JSON or has wrong types, RequestError for wrong values."""
    return request_of(decode_recommend(body, content_type, max_values(limits)))


def max_values(limits: Limits) -> int:
    """Return the most values that the body of a request for items may hold."""
    return 4 * (limits.max_history + limits.max_deny + limits.max_rules) + 64  # ids may hold commas


def request_of(body: RecommendBody) -> Request:
    """Return the engine's request. Raises RequestError for a value out of range."""
    values = msgspec.structs.asdict(body)
    deadline_ms = values.pop("deadline_ms")
    return Request(**values, deadline_s=None if deadline_ms is None else deadline_ms / 1e3)


def recommend_answer(result: Result, *, explain: bool = False) -> RecommendAnswer:
    """Return the answer to a request."""
    timings = TimingsAnswer(**{name: 1e3 * getattr(result.timings, name) for name in TimingsAnswer.__struct_fields__})
    reasons = tuple(ReasonAnswer(channel=why.channel, item_id=why.item_id, score=why.score) for why in result.reasons)
    levels = (
        tuple(
            LevelAnswer(**{name: getattr(level, name).tolist() for name in LevelAnswer.__struct_fields__})
            for level in result.levels
        )
        if explain
        else msgspec.UNSET
    )
    renamed: dict[str, object] = {"timings_ms": timings, "reasons": reasons, "levels": levels}
    renamed["ignored_deny_item_ids"] = result.ignored_deny
    return RecommendAnswer(
        **renamed, **{name: getattr(result, name) for name in RecommendAnswer.__struct_fields__ if name not in renamed}
    )


def slow_batch_answer(batch: SlowBatch) -> SlowBatchAnswer:
    """Return a slow batch as JSON."""
    size, use = batch.size, batch.use
    return SlowBatchAnswer(
        ended_at=batch.ended_at,
        worker=batch.worker,
        seconds=batch.seconds,
        median_s=batch.median_s,
        requests=size.requests,
        tokens=size.tokens,
        beam_rows=size.beam_rows,
        prefill_s=batch.prefill_s,
        rounds_s=batch.rounds_s,
        constrain_s=batch.constrain_s,
        cpu_s=use.cpu_s,
        waits=use.waits,
        preempted=use.preempted,
        faults=use.faults,
    )


def load_model(engine: Engine, metrics: Metrics, directory: str | None = None) -> ModelAnswer:
    """Load a model in this thread, let the engine serve it, and count and log that. The errors are those of the engine."""
    began, previous = time.perf_counter(), engine.model_version
    outcome = "failed"
    try:
        version = engine.load_model(directory)
        outcome = "ok"
    finally:
        metrics.model_loads.labels(outcome).inc()
    answer = ModelAnswer(model_version=version, previous_version=previous, seconds=time.perf_counter() - began)
    log.info("the model %s is served in place of %s, after %.1f s", version, previous, answer.seconds)
    return answer


def reload_changed_model(engine: Engine, metrics: Metrics) -> None:
    """Load the served model's directory again if its files have changed; log what is wrong with them."""
    try:
        source = getattr(engine.model, "source", None)  # None for a model that was made in memory
        if source is not None and source.is_outdated:
            load_model(engine, metrics)
    except Exception:  # of any kind: the reload of the rules goes on
        log.exception("the model could not be loaded again: the server keeps the former one")


def model_handlers(engine: Engine, metrics: Metrics, bounds: Bounds) -> dict[str, Handler]:
    """Return the handler of the operation `load_model`."""

    async def route(http: HttpRequest) -> Response:
        body = decode_body(await read_body(http, bounds), http.headers.get("content-type", ""), _MODEL)
        try:
            return json_response(await in_own_thread(partial(load_model, engine, metrics, body.directory)))
        except (CheckpointError, LogitsError) as error:
            raise BodyError(f"{error}; the server keeps the former model", status=HTTPStatus.UNPROCESSABLE_ENTITY) from error

    return {"load_model": answering(route)}
