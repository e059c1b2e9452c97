"""The JSON of the HTTP interface: types are checked here, strictly; values by `Request` and `Limits`, as in Python.

Clients read these types too, so that this module needs nothing but msgspec. The OpenAPI document takes the words for the fields
of requests and answers from `leafbeam.engine.Request`, `Result` and `Timings`.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from leafbeam.ingest.answers import FeedStatus

# Bounded, because parsing an integer takes time quadratic in its digits.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Int64 | str
ItemId = int | str


class RequestFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that all requests for items have, as `leafbeam.engine.Request` describes and checks them."""

    user: Id | None = None
    rules: list[str] = []
    filter: str | None = None
    deny_item_ids: list[Id] = []
    keep_history: bool = False
    scoring: str = "full"
    channel: str | None = None
    boosts: dict[str, float] = {}
    at_most: dict[str, Int64] = {}
    at_least: dict[str, Int64] = {}
    deadline_ms: Annotated[
        float | None,
        Meta(
            description="Milliseconds from the arrival of the request within which an answer is useful. Default: the server's "
            "objective. A request that cannot meet its deadline is rejected with 429, as early as that is clear.",
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None


class RecommendBody(RequestFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request. Every field has a default: `{}` asks for items without a history."""

    history: list[Id] = []
    num_items: Int64 = 10
    num_beams: Int64 | None = None
    explain: bool = False


class InteractionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The items that a user took, and the newest items that the user had before."""

    history: Annotated[list[Id], Meta(description="Item ids, oldest first; only the last few are counted.")] = []
    item_id: Id


class InteractionsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Interactions to count in the item memory."""

    interactions: Annotated[list[InteractionBody], Meta(max_length=1000)]


class InteractionsAnswer(Struct, frozen=True, kw_only=True):
    """The counted pairs of items. They are on disk."""

    pairs: Annotated[int, Meta(description="The number of pairs of items that were counted in the item memory.")]


class TimingsAnswer(Struct, frozen=True, kw_only=True):
    """Milliseconds of each stage. `prefill`, `rounds` and `constrain` are those of the whole batch."""

    prepare: float
    queue: float
    prefill: float
    rounds: float
    constrain: float
    postprocess: float
    total: Annotated[float, Meta(description="The sum of all stages.")]


class ReasonAnswer(Struct, frozen=True, kw_only=True):
    """The largest part of an item's score."""

    channel: Annotated[str, Meta(description="`model`, `transition` or `text`; `popular` if nothing found the item.")]
    item_id: Annotated[
        ItemId | None, Meta(description="The item of the history that led to the item; null for `model` and `popular`.")
    ]
    score: float


class LevelAnswer(Struct, frozen=True, kw_only=True):
    """The beams that the search kept at one level, best first."""

    codes: Annotated[list[int], Meta(description="The code that each beam took.")]
    parents: Annotated[list[int], Meta(description="The beam of the previous level that each beam extends.")]
    scores: Annotated[list[float], Meta(description="The log probability of each beam so far.")]
    num_sids: Annotated[
        list[int], Meta(description="The number of Semantic IDs of the index below each beam's prefix, allowed or not.")
    ]
    passes: Annotated[list[int], Meta(description="The pass of the search that first kept each beam, from 1.")]


class RecommendAnswer(Struct, frozen=True, kw_only=True):
    """Items, best first, all of them in the index and allowed by every rule of the request."""

    item_ids: tuple[ItemId, ...]
    codes: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...]
    channel: str
    reasons: tuple[ReasonAnswer, ...]
    num_valid: int
    empty_rules: tuple[str, ...]
    num_beams: int
    exact: bool
    num_exact: int
    rows: int
    num_history_used: int
    num_history_left_out: int
    read_user: bool
    ignored_history: tuple[ItemId, ...]
    ignored_deny_item_ids: Annotated[tuple[ItemId, ...], Meta(description="Denied ids that the index does not have.")]
    index_version: str
    rules_generation: int | None
    batch_size: int
    timings_ms: TimingsAnswer
    boosts: tuple[float, ...] = ()
    model_scores: Annotated[
        tuple[float, ...], Meta(description="The scores without the boosts; equal to `scores` if the request has none.")
    ] = ()
    unmet: dict[str, int] = {}
    levels: tuple[LevelAnswer, ...] | msgspec.UnsetType = msgspec.UNSET


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Annotated[str, Meta(description="The class of the error, such as `UnknownRuleError`.")]
    message: Annotated[str, Meta(description="A text that says what was expected, what was sent, and how to fix it.")]
    reason: Annotated[
        str | None,
        Meta(description="With 408, 429, 431 and 503: the reason as the metrics count it, such as `queue_full`."),
    ] = None
    retry_after_ms: Annotated[
        int | None,
        Meta(description="With 429 and 503: the time after which to try again; `Retry-After` has it in whole seconds."),
    ] = None
    lines: Annotated[
        dict[str, str] | None, Meta(description="For a batch of items: what is wrong with each line, by its number.")
    ] = None


class ErrorAnswer(Struct, frozen=True):
    """The body of every failure."""

    error: ErrorDetail


class OpenAIErrorDetail(Struct, frozen=True, kw_only=True):
    message: str
    type: Annotated[str, Meta(description="`invalid_request_error`, `rate_limit_error` or `server_error`.")]
    param: Annotated[str | None, Meta(description="The field of the body that is wrong, if it is one.")]
    code: Annotated[str, Meta(description="The class of the error; with 404, 408, 413, 429 and 503 the reason.")]


class OpenAIError(Struct, frozen=True):
    """The body of every failure of these routes."""

    error: OpenAIErrorDetail


class ModelEntry(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "leafbeam"


class ModelsAnswer(Struct, frozen=True, kw_only=True):
    """The names that `model` of a request may have."""

    data: list[ModelEntry]
    object: str = "list"


class ModelBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to serve from now on."""

    directory: Annotated[
        str | None,
        Meta(
            description="The directory of the model on the server. By default the directory of the served model is read again."
        ),
    ] = None


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """The model that answers requests from now on."""

    model_version: Annotated[str | None, Meta(description="A hash of the model's files.")]
    previous_version: Annotated[str | None, Meta(description="The hash of the model that was replaced.")]
    seconds: Annotated[float, Meta(description="The time that loading and warming up the model took.")]


class Health(Struct, frozen=True, kw_only=True):
    """The process is up."""

    alive: bool = True


class LearntWidths(Struct, frozen=True, kw_only=True):
    """The numbers of beams that the proofs of recent requests needed."""

    num_items: Annotated[int, Meta(description="The number of items that the search ranks.")]
    share: Annotated[float, Meta(description="The share of the items that the rules allow, to the nearest power of two.")]
    scoring: str
    widths: Annotated[
        tuple[int, ...], Meta(description="The number of beams of the next first pass, for each level but the last.")
    ]


class Readiness(Struct, frozen=True, kw_only=True):
    """The readiness of the server, with its index and rules."""

    ready: bool
    reason: Annotated[str | None, Meta(description="The reason why the server is not ready, such as a worker that hangs.")]
    index_version: str | None
    model_version: Annotated[
        str | None, Meta(description="A hash of the model's files; null if the model was made in memory.")
    ] = None
    num_items: int
    rules: Annotated[
        dict[str, int],
        Meta(description="The number of items that each rule allows now; empty without a key, if the server has keys."),
    ]
    rules_version: Annotated[
        str | None, Meta(description="A hash of the rules and boosts: servers with the same ones have the same hash.")
    ] = None
    threads: Annotated[int | None, Meta(description="Threads of each worker's matrix products.")]
    text_model: Annotated[str | None, Meta(description="The language model of `/v1/completions`.")]
    http_workers: Annotated[
        int, Meta(description="The number of HTTP processes that accept connections; 0 if the server is one process.")
    ] = 0
    precision: Annotated[
        str | None, Meta(description="The precision of matrix products; for others than float32, also how far answers differ.")
    ] = None
    tuning: Annotated[
        dict[str, str],
        Meta(description="What was measured and chosen for this machine: threads, precision, products, CUDA graphs."),
    ] = {}
    search_widths: Annotated[
        tuple[LearntWidths, ...], Meta(description="The numbers of beams that each kind of request needs.")
    ] = ()
    feed: Annotated[
        FeedStatus | None, Meta(description="The progress in the followed source of items; null if the server follows none.")
    ] = None


class SlowBatchAnswer(Struct, frozen=True, kw_only=True):
    """A batch that took more than five times the median of those before it."""

    ended_at: Annotated[float, Meta(description="Seconds since 1970.")]
    worker: int
    seconds: float
    median_s: float
    requests: int
    tokens: Annotated[int, Meta(description="The number of tokens of all prompts.")]
    beam_rows: Annotated[int, Meta(description="The number of beams of all requests together.")]
    prefill_s: float
    rounds_s: float
    constrain_s: float
    cpu_s: Annotated[
        float,
        Meta(description="The CPU time of the thread; far below `seconds` if it had no core, or waited for a lock."),
    ]
    waits: Annotated[
        int, Meta(description="The number of times that the thread gave up its core: for a lock, the disk, other threads.")
    ]
    preempted: Annotated[int, Meta(description="The number of times that the system gave its core to something else.")]
    faults: Annotated[int, Meta(description="The number of pages that were not in memory.")]


class SlowBatchesAnswer(Struct, frozen=True, kw_only=True):
    """The last slow batches, the oldest first."""

    batches: list[SlowBatchAnswer]
