"""The JSON of the HTTP interface: types are checked here, strictly; values by `Request` and `Limits`, as in Python."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from leafbeam.catalog.expression import MAX_CHARACTERS
from leafbeam.engine import ItemId, Limits, Request, Result
from leafbeam.engine.request import is_valid_unicode

__all__ = ["ErrorAnswer", "Health", "Readiness", "RecommendAnswer", "RecommendBody", "publish_limits"]


def _check_unicode(text: str) -> str:
    if not is_valid_unicode(text):
        raise ValueError("text must be valid Unicode")
    return text


Id = Annotated[int, Field(strict=True)] | Annotated[str, Field(strict=True), AfterValidator(_check_unicode)]
Ids = list[Id]


def _field(default: Any, description: str, **schema: Any) -> Any:
    return Field(default=default, description=description, json_schema_extra=schema or None)


class RecommendBody(BaseModel):
    """A request. Every field has a default: `{}` asks for items without a history."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "example": {"history": ["B0009V1YR8"], "num_items": 10, "rules": ["in_stock"], "deny_item_ids": ["B00021DPQK"]}
        },
    )

    history: Ids = Field(
        default_factory=list, description="Item ids, oldest first. Ids that the index does not have are left out and reported."
    )
    user: Id | None = _field(
        None, "Whose history it is, for models with user tokens; `read_user` of the answer says whether it was read."
    )
    num_items: int = _field(10, "The most items to return; fewer come back if the rules allow fewer.", minimum=1)
    rules: list[str] = Field(
        default_factory=list, description="Names of rules of the catalog. Every item returned is allowed by all of them."
    )
    filter: str | None = _field(
        None,
        "An expression over rule names that must hold too: `&` and, `|` or, `-` and not, and parentheses, with the precedence "
        "of Python, such as `(fresh | promo) & in_stock - adult`. A `-` needs a space on its left.",
        maxLength=MAX_CHARACTERS,
    )
    deny_item_ids: Ids = Field(default_factory=list, description="Items that must not be returned, on top of the rules.")
    num_beams: int | None = _field(
        None,
        "Beams of the search; more are better and slower. Default: the server's. Raised to `num_items`, because a beam finds "
        "one item; the answer says how many were used.",
        minimum=1,
    )
    scoring: str = _field(
        "full",
        "`full`: log probabilities over each level's whole codebook. `allowed`: over the legal codes only.",
        enum=["full", "allowed"],
    )
    deadline_ms: float | None = _field(
        None,
        "Milliseconds from the arrival of the request in which an answer is of use. Default: the server's objective. A request "
        "that cannot meet its deadline is rejected with 429, as early as that is clear.",
        exclusiveMinimum=0,
    )

    def to_request(self) -> Request:
        """The engine's request. Raises RequestError for a value out of range."""
        values = dict(self)
        deadline_ms = values.pop("deadline_ms")
        return Request(**values, deadline_s=None if deadline_ms is None else deadline_ms / 1e3)


class TimingsAnswer(BaseModel):
    """Milliseconds of each stage. `prefill`, `rounds` and `constrain` are those of the whole batch."""

    prepare: float = Field(description="Looking up ids, resolving rules.")
    queue: float = Field(description="Waiting for a batch.")
    prefill: float = Field(description="The forward pass of the prompts.")
    rounds: float = Field(description="The forward passes of the beams.")
    constrain: float = Field(description="Choosing legal codes.")
    postprocess: float = Field(description="From codes to item ids.")
    total: float = Field(description="The sum.")


class RecommendAnswer(BaseModel):
    """Items, best first, all of them in the index and allowed by every rule of the request."""

    item_ids: list[ItemId]
    sids: list[list[int]] = Field(description="The Semantic ID of each item: one code per level.")
    scores: list[float] = Field(description="Log probability of each item; items that share a SID share a score.")
    num_valid: int = Field(description="How many items are returned, `num_items` or fewer; 0 if the rules allow none.")
    num_beams: int = Field(description="Beams of the search that ran.")
    num_history_used: int = Field(description="How many items of the history the model saw.")
    read_user: bool = Field(description="Whether the model read the user's token.")
    ignored_history: list[ItemId] = Field(description="Ids of the history that the index does not have.")
    ignored_deny_item_ids: list[ItemId] = Field(description="Denied ids that the index does not have.")
    index_version: str
    rules_generation: int | None = Field(description="1 at start, one more after each reload of the rules.")
    batch_size: int = Field(description="How many requests ran together.")
    timings_ms: TimingsAnswer

    @classmethod
    def of(cls, result: Result) -> "RecommendAnswer":
        timings = TimingsAnswer(**{name: 1e3 * getattr(result.timings, name) for name in TimingsAnswer.model_fields})
        renamed: dict[str, Any] = {"ignored_deny_item_ids": result.ignored_deny, "timings_ms": timings}
        return cls(**renamed, **{name: getattr(result, name) for name in cls.model_fields if name not in renamed})


class ErrorDetail(BaseModel):
    type: str = Field(description="The class of the error, such as `UnknownRuleError`.")
    message: str = Field(description="What was expected, what came, how to fix it.")
    reason: str | None = _field(None, "With 429 and 503: the reason, such as `queue_full`, as the metrics count it.")
    retry_after_ms: int | None = _field(None, "With 429 and 503: when to try again; `Retry-After` in whole seconds.")


class ErrorAnswer(BaseModel):
    """The body of every failure."""

    error: ErrorDetail


class Health(BaseModel):
    """The process is up."""

    alive: bool = True


class Readiness(BaseModel):
    """Whether requests are answered now, and from which index and rules."""

    ready: bool
    reason: str | None = _field(None, "Why not ready, such as a worker that hangs.")
    index_version: str
    num_items: int
    rules: dict[str, int] = Field(description="Items that each rule allows now.")


def publish_limits(document: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Write the engine's limits into the OpenAPI document."""
    properties = document["components"]["schemas"]["RecommendBody"]["properties"]
    maxima = {"num_items": limits.max_items, "num_beams": limits.max_beams, "deadline_ms": limits.max_deadline_s * 1000}
    for name, maximum in maxima.items():
        properties[name]["maximum"] = maximum
    for name, maximum in (("history", limits.max_history), ("deny_item_ids", limits.max_deny), ("rules", limits.max_rules)):
        properties[name]["maxItems"] = maximum
    return document
