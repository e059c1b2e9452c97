"""The JSON of the HTTP interface: types are checked here, strictly; values by `Request` and `Limits`, as in Python.

Clients read these types too, so that this module needs nothing but msgspec.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

# Bounded, because parsing an integer takes time quadratic in its digits.
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Id = Int64 | str
ItemId = int | str
# Bounds that the engine checks, with its own messages, are for the reader of the schema alone.
_BEAMS = Meta(
    description="A fixed number of beams, raised to `num_items`, because a beam finds one item. Default: the server's, or as "
    "many as the proof needs that the answer is the best allowed list."
)


class RecommendBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request. Every field has a default: `{}` asks for items without a history."""

    history: Annotated[
        list[Id], Meta(description="Item ids, oldest first. Ids that the index does not have are left out and reported.")
    ] = []
    user: Annotated[
        Id | None,
        Meta(description="Whose history it is, for models with user tokens; `read_user` of the answer says if it was read."),
    ] = None
    num_items: Annotated[
        Int64,
        Meta(description="The most items to return; fewer come back if the rules allow fewer."),
    ] = 10
    rules: Annotated[
        list[str], Meta(description="Names of rules of the catalog. Every item returned is allowed by all of them.")
    ] = []
    filter: Annotated[
        str | None,
        Meta(
            description="An expression over rule names that must hold too: `&` and, `|` or, `-` and not, and parentheses, with "
            "the precedence of Python, such as `(fresh | promo) & in_stock - adult`. A `-` needs a space on its left.",
        ),
    ] = None
    deny_item_ids: Annotated[list[Id], Meta(description="Items that must not be returned, on top of the rules.")] = []
    keep_history: Annotated[bool, Meta(description="Whether items of the history may be returned too.")] = False
    num_beams: Annotated[Int64 | None, _BEAMS] = None
    scoring: Annotated[
        str,
        Meta(
            description="`full`: log probabilities over each level's whole codebook. `allowed`: over the legal codes only.",
            extra_json_schema={"enum": ["full", "allowed"]},
        ),
    ] = "full"
    channel: Annotated[
        str | None,
        Meta(
            description="Who ranks: `model`, the search; `memory`, the item memory without a search; `fused`, both. Default: "
            "`fused` if the server has an item memory, else `model`.",
            extra_json_schema={"enum": ["model", "memory", "fused", None]},
        ),
    ] = None
    explain: Annotated[
        bool, Meta(description="Whether the answer has `levels`. Such requests form batches of their own, and take longer.")
    ] = False
    deadline_ms: Annotated[
        float | None,
        Meta(
            description="Milliseconds from the arrival of the request in which an answer is of use. Default: the server's "
            "objective. A request that cannot meet its deadline is rejected with 429, as early as that is clear.",
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None


class InteractionBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The items that a user took, and the newest items that the user had before."""

    history: Annotated[list[Id], Meta(description="Item ids, oldest first; the last few count.")] = []
    item_id: Id


class InteractionsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Interactions to count in the item memory."""

    interactions: Annotated[list[InteractionBody], Meta(max_length=1000)]


class InteractionsAnswer(Struct, frozen=True, kw_only=True):
    """The counted pairs of items. They are on disk."""

    pairs: Annotated[int, Meta(description="Pairs of items of the memory that were counted.")]


class TimingsAnswer(Struct, frozen=True, kw_only=True):
    """Milliseconds of each stage. `prefill`, `rounds` and `constrain` are those of the whole batch."""

    prepare: Annotated[float, Meta(description="Looking up ids, resolving rules.")]
    queue: Annotated[float, Meta(description="Waiting for a batch.")]
    prefill: Annotated[float, Meta(description="The forward pass of the prompts.")]
    rounds: Annotated[float, Meta(description="The forward passes of the beams.")]
    constrain: Annotated[float, Meta(description="Choosing legal codes.")]
    postprocess: Annotated[float, Meta(description="From codes to item ids.")]
    total: Annotated[float, Meta(description="The sum.")]


class ReasonAnswer(Struct, frozen=True, kw_only=True):
    """The largest part of an item's score."""

    channel: Annotated[str, Meta(description="`model`, `transition` or `text`; `popular` if nothing found the item.")]
    item_id: Annotated[
        ItemId | None, Meta(description="The item of the history that it comes from; null for `model` and `popular`.")
    ]
    score: float


class LevelAnswer(Struct, frozen=True, kw_only=True):
    """The beams that the search kept at one level, best first."""

    codes: Annotated[list[int], Meta(description="The code that each beam took.")]
    parents: Annotated[list[int], Meta(description="The beam of the level before that each extends.")]
    scores: Annotated[list[float], Meta(description="Its log probability so far.")]
    num_sids: Annotated[list[int], Meta(description="Semantic IDs of the index below its prefix, allowed or not.")]
    passes: Annotated[list[int], Meta(description="The pass of the search that first kept it, from 1.")]


class RecommendAnswer(Struct, frozen=True, kw_only=True):
    """Items, best first, all of them in the index and allowed by every rule of the request."""

    item_ids: tuple[ItemId, ...]
    codes: Annotated[tuple[tuple[int, ...], ...], Meta(description="The Semantic ID of each item: one code per level.")]
    scores: Annotated[
        tuple[float, ...],
        Meta(
            description="If `model` ranked, log probabilities: items that share a SID share a score. Else sums of features, "
            "comparable within one answer only."
        ),
    ]
    channel: Annotated[str, Meta(description="Who ranked: `model`, `memory` or `fused`.")]
    reasons: Annotated[
        tuple[ReasonAnswer, ...],
        Meta(
            description="The largest part of each score, one an item; empty if `model` ranked. Allowed items that were not "
            "found fill up a short answer of `memory` or `fused`: they come last, the most popular first, with the channel "
            "`popular`."
        ),
    ]
    num_valid: Annotated[
        int, Meta(description="How many items are returned, `num_items` or fewer; 0 if none is left, see `empty_rules`.")
    ]
    empty_rules: Annotated[
        tuple[str, ...],
        Meta(
            description="If no item is left: the rule, the pair of rules or the smallest set of them that already leaves none; "
            "parts of `filter` as text. Where the rules leave items, `- deny_item_ids` and `- history`, which take these, "
            "count as rules too. Else empty."
        ),
    ]
    num_beams: Annotated[
        int, Meta(description="Beams of the level that has the most in the search's first pass. 0 without a search.")
    ]
    exact: Annotated[
        bool,
        Meta(
            description="Whether the items that the model found are proved to be its best allowed ones; `fused` ranks these. "
            "Always true, unless the request or the server sets a number of beams, or the proof needs more than "
            "`engine.max_rows` prefixes of a level."
        ),
    ]
    num_exact: Annotated[int, Meta(description="How many of the model's first items are proved to be its best allowed ones.")]
    rows: Annotated[
        int, Meta(description="Rows that the model computed: one for the prompt, and one for each beam of each level.")
    ]
    num_history_used: Annotated[
        int, Meta(description="Items of the history that the model saw, deleted ones too until a compaction.")
    ]
    num_history_left_out: Annotated[
        int, Meta(description="Items of the history that the answer leaves out; 0 with `keep_history`.")
    ]
    read_user: Annotated[bool, Meta(description="Whether the model read the user's token.")]
    ignored_history: Annotated[tuple[ItemId, ...], Meta(description="Ids of the history that the index does not have.")]
    ignored_deny_item_ids: Annotated[tuple[ItemId, ...], Meta(description="Denied ids that the index does not have.")]
    index_version: str
    rules_generation: Annotated[int | None, Meta(description="1 at start, one more after each reload of the rules.")]
    batch_size: Annotated[int, Meta(description="How many requests ran together.")]
    timings_ms: TimingsAnswer
    levels: Annotated[
        tuple[LevelAnswer, ...] | msgspec.UnsetType,
        Meta(description="With `explain`: the beams of each level; empty if no search ran."),
    ] = msgspec.UNSET


class ErrorDetail(Struct, frozen=True, kw_only=True, omit_defaults=True):
    type: Annotated[str, Meta(description="The class of the error, such as `UnknownRuleError`.")]
    message: Annotated[str, Meta(description="What was expected, what came, how to fix it.")]
    reason: Annotated[
        str | None,
        Meta(description="With 408, 429, 431 and 503: the reason as the metrics count it, such as `queue_full`."),
    ] = None
    retry_after_ms: Annotated[
        int | None, Meta(description="With 429 and 503: when to try again; `Retry-After` in whole seconds.")
    ] = None
    lines: Annotated[
        dict[str, str] | None, Meta(description="Of a batch of items: what is wrong with each line, by its number.")
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


class Health(Struct, frozen=True, kw_only=True):
    """The process is up."""

    alive: bool = True


class LearntWidths(Struct, frozen=True, kw_only=True):
    """How many beams the proofs of recent requests needed."""

    num_items: Annotated[int, Meta(description="Items that the search ranks.")]
    share: Annotated[float, Meta(description="Share of the items that the rules allow, to the nearest power of two.")]
    scoring: str
    widths: Annotated[tuple[int, ...], Meta(description="Beams of the next first pass, for each level but the last.")]


class Readiness(Struct, frozen=True, kw_only=True):
    """The readiness of the server, with its index and rules."""

    ready: bool
    reason: Annotated[str | None, Meta(description="Why not ready, such as a worker that hangs.")]
    index_version: str | None
    num_items: int
    rules: Annotated[
        dict[str, int], Meta(description="Items that each rule allows now; none without a key, where keys are on.")
    ]
    threads: Annotated[int | None, Meta(description="Threads of each worker's matrix products.")]
    text_model: Annotated[str | None, Meta(description="The language model of `/v1/completions`.")]
    http_workers: Annotated[int, Meta(description="HTTP processes that accept connections; 0: the server is one process.")] = 0
    precision: Annotated[str | None, Meta(description="Of matrix products; bfloat16 with how far it differs.")] = None
    tuning: Annotated[
        dict[str, str],
        Meta(description="What was measured and chosen for this machine at the start: threads, precision, products."),
    ] = {}
    search_widths: Annotated[tuple[LearntWidths, ...], Meta(description="What each kind of request needs.")] = ()


class SlowBatchAnswer(Struct, frozen=True, kw_only=True):
    """A batch that took more than five times the median of those before it."""

    ended_at: Annotated[float, Meta(description="Seconds since 1970.")]
    worker: int
    seconds: float
    median_s: float
    requests: int
    tokens: Annotated[int, Meta(description="Of all prompts.")]
    beam_rows: Annotated[int, Meta(description="Beams of all requests together.")]
    prefill_s: float
    rounds_s: float
    constrain_s: float
    cpu_s: Annotated[
        float, Meta(description="Of the worker's thread. Far below `seconds`: it had no core, or waited for a lock.")
    ]
    waits: Annotated[int, Meta(description="Times that the thread gave up its core: for a lock, the disk, other threads.")]
    preempted: Annotated[int, Meta(description="Times that the system gave its core to something else.")]
    faults: Annotated[int, Meta(description="Pages of memory that were not there.")]


class SlowBatchesAnswer(Struct, frozen=True, kw_only=True):
    """The last slow batches, the oldest first."""

    batches: list[SlowBatchAnswer]
