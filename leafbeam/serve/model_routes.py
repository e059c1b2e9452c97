"""The route that replaces the model that is served, and what SIGHUP does about the model."""

import logging
import time
from functools import partial
from http import HTTPStatus

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from leafbeam.engine import Engine
from leafbeam.errors import CheckpointError, LogitsError
from leafbeam.serve.errors import BodyError, Handler, answering
from leafbeam.serve.exchange import Bounds, decode_body, json_response, read_body
from leafbeam.serve.executors import in_own_thread
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.schema import ModelAnswer, ModelBody

log = logging.getLogger("leafbeam.serve")
_BODY = msgspec.json.Decoder(ModelBody)


def load_model(engine: Engine, metrics: Metrics, directory: str | None = None) -> ModelAnswer:
    """Load a model in this thread, let the engine serve it, and count and log that. The errors are those of the engine."""
    began, previous = time.perf_counter(), engine.model_version
    outcome = "failed"
    try:
        version = engine.load_model(directory)
        outcome = "ok"
    finally:
        metrics.observe_model_load(outcome)
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
        log.exception("the model could not be loaded again: the one before is served on")


def model_handlers(engine: Engine, metrics: Metrics, bounds: Bounds) -> dict[str, Handler]:
    """Return the handler of the operation `load_model`."""

    async def route(http: HttpRequest) -> Response:
        body = decode_body(await read_body(http, bounds), http.headers.get("content-type", ""), _BODY)
        try:
            return json_response(await in_own_thread(partial(load_model, engine, metrics, body.directory)))
        except (CheckpointError, LogitsError) as error:
            raise BodyError(f"{error}; the model before is served on", status=HTTPStatus.UNPROCESSABLE_ENTITY) from error

    return {"load_model": answering(route)}
