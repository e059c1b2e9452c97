"""The routes of the Open Inference Protocol, version 2, which KServe and clients of Triton use: recommendations as a model.

One request is one history: a tensor of item ids as long as the history is, so that nothing is padded.
"""

import importlib
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from leafbeam.engine import Engine, Limits, Request, Result
from leafbeam.errors import RequestError, short_repr
from leafbeam.index.items import is_possible
from leafbeam.live.transaction import id_kind_of
from leafbeam.serve.body import Bounds, decode_body, read_body
from leafbeam.serve.conversions import request_of
from leafbeam.serve.errors import BodyError, describe
from leafbeam.serve.exchange import json_response
from leafbeam.serve.inference_schema import (
    InferAnswer,
    InferBody,
    InferInput,
    InferTensor,
    LiveAnswer,
    ModelMetadata,
    ModelReadyAnswer,
    Parameters,
    ReadyAnswer,
    ServerMetadata,
    TensorMetadata,
)
from leafbeam.serve.items import max_values, observed, result_for
from leafbeam.serve.metrics import Metrics
from leafbeam.serve.schema import ItemId, RecommendBody

MODEL = "items"
_INPUTS = ("history", "deny_item_ids", "rules")
_OUTPUTS = {"item_ids": "BYTES", "scores": "FP32"}
_DECODER = msgspec.json.Decoder(InferBody)
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_BINARY = "tensors are read and written as JSON here: send `data`, and set binary_data=False for inputs and outputs"


def inference_routes(engine: Engine, metrics: Metrics, bounds: Bounds) -> list[Route]:
    """The routes of an engine as the model `items`. bounds: of a request."""

    version: str = importlib.import_module("leafbeam").__version__

    async def server(http: HttpRequest) -> Response:
        return json_response(ServerMetadata(name="leafbeam", version=version))

    async def live(http: HttpRequest) -> Response:
        return json_response(LiveAnswer())

    async def ready(http: HttpRequest) -> Response:
        is_ready = engine.unhealthy_reason is None
        return json_response(ReadyAnswer(ready=is_ready), HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def model(http: HttpRequest) -> Response:
        inputs = [TensorMetadata(name=name, datatype="BYTES", shape=[-1]) for name in _INPUTS]
        outputs = [TensorMetadata(name=name, datatype=kind, shape=[-1]) for name, kind in _OUTPUTS.items()]
        return json_response(ModelMetadata(name=MODEL, platform="leafbeam", inputs=inputs, outputs=outputs))

    async def model_ready(http: HttpRequest) -> Response:
        is_ready = engine.unhealthy_reason is None
        status = HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return json_response(ModelReadyAnswer(name=MODEL, ready=is_ready), status)

    async def recommended(http: HttpRequest) -> Response:
        """As `POST /v1/recommend`: the same parsing of values, admission, deadline and metrics."""
        try:
            if http.headers.get("inference-header-content-length") is not None:
                raise BodyError(_BINARY)
            body = await read_body(http, bounds)
            arrived, kind = engine.clock(), http.headers.get("content-type", "")
            content = parse_tensors(body, kind, engine.limits)
            request = request_of_tensors(content, is_text=id_kind_of(engine.version) != "i")
        except RequestError as error:
            engine.counts.add("refused", error.reason)
            raise
        result = await result_for(http, request, arrived, engine, metrics, bounds)
        return json_response(tensors_of_result(result, content))

    async def infer(http: HttpRequest) -> Response:
        return await observed(recommended, http, metrics)

    return [
        Route("/v2", server),
        Route("/v2/health/live", live),
        Route("/v2/health/ready", ready),
        Route(f"/v2/models/{MODEL}", model),
        Route(f"/v2/models/{MODEL}/ready", model_ready),
        Route(f"/v2/models/{MODEL}/infer", infer, methods=["POST"]),
    ]


def parse_tensors(body: bytes, content_type: str, limits: Limits) -> InferBody:
    """The content of a body. Raises BodyError."""
    return decode_body(body, content_type, _DECODER, max_values(limits))


def request_of_tensors(body: InferBody, *, is_text: bool) -> Request:
    """The engine's request. is_text: whether the ids of the index are text. Raises BodyError, RequestError."""
    values: dict[str, list[Any]] = {}
    for tensor in body.inputs:
        if tensor.name not in _INPUTS or tensor.name in values:
            what = "is there twice" if tensor.name in values else "is no input"
            raise BodyError(
                f"inputs: {short_repr(tensor.name)} {what}; expected {', '.join(_INPUTS)}, each once", param="inputs"
            )
        values[tensor.name] = _values_of(tensor)
    if "history" not in values:
        raise BodyError("inputs: expected `history`, which may be empty (shape [0])", param="inputs")
    for output in body.outputs or ():
        if output.name not in _OUTPUTS:
            raise BodyError(
                f"outputs: {short_repr(output.name)} is no output; there are {', '.join(_OUTPUTS)}", param="outputs"
            )
        _check_no_binary(output.parameters)
    parameters: dict[str, Any] = dict(body.parameters or {})
    if parameters.pop("binary_data_output", False) is not False:
        raise BodyError(_BINARY, param="parameters")
    if (names := parameters.get("rules")) is not None:
        if not isinstance(names, str) or "rules" in values:
            raise BodyError("rules: expected names with commas as a parameter, or a tensor of names", param="rules")
        parameters["rules"] = [name for name in names.split(",") if name]
    if not is_text:
        values |= {name: [_number_of(one) for one in values[name]] for name in ("history", "deny_item_ids") if name in values}
    if both := values.keys() & parameters.keys():
        raise BodyError(f"parameters: {sorted(both)[0]} is an input", param="parameters")
    try:
        fields = msgspec.convert({**parameters, **values}, RecommendBody)
    except msgspec.ValidationError as error:
        raise BodyError(f"parameters: {describe(error, RecommendBody)}", param="parameters") from None
    if fields.explain:
        raise BodyError("parameters: explain is a field of /v1/recommend alone", param="parameters")
    return request_of(fields)


def tensors_of_result(result: Result, body: InferBody) -> InferAnswer:
    """The answer to a request, with as many dimensions as its history."""
    is_row = any(tensor.name == "history" and len(tensor.shape) == 2 for tensor in body.inputs)
    shape = [1, result.num_valid] if is_row else [result.num_valid]
    data: Mapping[str, Any] = {"item_ids": list(map(str, result.item_ids)), "scores": list(result.scores)}
    names = list(_OUTPUTS) if body.outputs is None else list(dict.fromkeys(output.name for output in body.outputs))
    parameters: Parameters = {"num_ignored_history": len(result.ignored_history), "num_ignored_deny": len(result.ignored_deny)}
    if result.empty_rules:
        parameters["empty_rules"] = ", ".join(result.empty_rules)
    return InferAnswer(
        model_name=MODEL,
        model_version=result.index_version,
        id=body.id,
        outputs=[InferTensor(name=name, shape=shape, datatype=_OUTPUTS[name], data=data[name]) for name in names],
        parameters=parameters,
    )


def _values_of(tensor: InferInput) -> list[ItemId]:
    """The values of an input, checked against its shape and type."""
    name, shape = tensor.name, tensor.shape
    _check_no_binary(tensor.parameters)
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != 1):
        raise BodyError(f"inputs: {name} has the shape {short_repr(shape)}: expected [n] or [1, n], one history a request")
    data: Any = tensor.data
    if len(data) == 1 and isinstance(data[0], list) and len(shape) == 2:
        data = data[0]
    kind = {"BYTES": str, "INT64": int}.get(tensor.datatype)
    if kind is None or (name == "rules" and kind is int):
        raise BodyError(f"inputs: {name} has the datatype {short_repr(tensor.datatype)}: expected BYTES, or INT64 for ids")
    if not all(type(one) is kind for one in data):
        raise BodyError(f"inputs: {name} has data of another type than {tensor.datatype}")
    if len(data) != shape[-1]:
        raise BodyError(f"inputs: {name} has {len(data):,} values, but the shape {short_repr(shape)}")
    return list(data)


def _check_no_binary(parameters: Mapping[str, Any] | None) -> None:
    for name, value in (parameters or {}).items():
        if name != "binary_data" or value is not False:
            raise BodyError(f"{short_repr(name)} is no parameter of a tensor here: {_BINARY}")


def _number_of(item_id: ItemId) -> ItemId:
    """An id of an index of whole numbers; other text stays, as an id that the index does not have."""
    if isinstance(item_id, str) and _WHOLE.fullmatch(item_id) and is_possible(int(item_id), 0):
        return int(item_id)
    return item_id
