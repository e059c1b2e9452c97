"""The JSON of the Open Inference Protocol, version 2: https://github.com/kserve/open-inference-protocol."""

from typing import Annotated

from msgspec import Meta, Struct

from leafbeam.serve.schema import Id, Int64

Parameters = dict[str, Int64 | float | str | bool | None]
_SHAPE = Meta(description="One row a request: `[n]` or `[1, n]`. Histories of any length need no padding: n is the length.")


class InferInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A list of item ids as a tensor."""

    name: Annotated[
        str,
        Meta(
            description="`history`, `deny_item_ids` or `rules`.",
            extra_json_schema={"enum": ["history", "deny_item_ids", "rules"]},
        ),
    ]
    shape: Annotated[list[Annotated[int, Meta(ge=0, le=2**31)]], _SHAPE]
    datatype: Annotated[
        str,
        Meta(
            description="`BYTES`: texts, also for ids that are whole numbers. `INT64`: whole numbers.",
            extra_json_schema={"enum": ["BYTES", "INT64"]},
        ),
    ]
    data: Annotated[list[Id | list[Id]], Meta(description="The values, flat or in one row.")]
    parameters: Parameters | None = None


class InferOutput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An output to return."""

    name: Annotated[str, Meta(extra_json_schema={"enum": ["item_ids", "scores"]})]
    parameters: Parameters | None = None


class InferBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for items."""

    inputs: Annotated[list[InferInput], Meta(description="`history` and, if wanted, `deny_item_ids` and `rules`, each once.")]
    id: str | None = None
    parameters: Annotated[
        Parameters | None,
        Meta(
            description="Fields of `/v1/recommend`: `num_items`, `filter`, `num_beams`, `scoring`, `channel`, `keep_history`, "
            "`user`, `deadline_ms`; `rules` as names with commas."
        ),
    ] = None
    outputs: Annotated[list[InferOutput] | None, Meta(description="Which outputs to return. Default: both.")] = None


class InferTensor(Struct, frozen=True, kw_only=True):
    """A part of an answer: `item_ids` (BYTES) or `scores` (FP32), best first."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | float]


class InferAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Items, best first."""

    model_name: str
    outputs: list[InferTensor]
    model_version: Annotated[str | None, Meta(description="The version of the index.")] = None
    id: str | None = None
    parameters: Annotated[
        Parameters | None,
        Meta(
            description="`num_ignored_history`, `num_ignored_deny`: ids that the index does not have. `empty_rules`, if the "
            "rules allow no item: the smallest set of them that already allows none, with commas."
        ),
    ] = None


class InferError(Struct, frozen=True):
    """The body of every failure of these routes."""

    error: str


class ServerMetadata(Struct, frozen=True, kw_only=True):
    """The server."""

    name: str
    version: str
    extensions: list[str] = []


class TensorMetadata(Struct, frozen=True, kw_only=True):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Struct, frozen=True, kw_only=True):
    """A model, its inputs and outputs; -1 is any length."""

    name: str
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    versions: list[str] = []


class LiveAnswer(Struct, frozen=True, kw_only=True):
    """The process is up."""

    live: bool = True


class ReadyAnswer(Struct, frozen=True, kw_only=True):
    """Whether requests are answered now."""

    ready: bool


class ModelReadyAnswer(Struct, frozen=True, kw_only=True):
    """Whether requests to a model are answered now."""

    name: str
    ready: bool


TYPES: list[type] = [
    InferBody,
    InferAnswer,
    InferError,
    ServerMetadata,
    ModelMetadata,
    LiveAnswer,
    ReadyAnswer,
    ModelReadyAnswer,
]
