"""The JSON of the HTTP interface.

Types are checked here, strictly; how much may be asked is the engine's to say (`Limits`), so that Python and HTTP refuse
the same things in the same words. `publish_limits` writes those limits into the OpenAPI document.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from leafbeam.catalog.expression import MAX_CHARACTERS
from leafbeam.engine import ItemId, Limits, Request, Result
from leafbeam.engine.request import is_whole
from leafbeam.errors import RequestError


def _whole_text(text: str) -> str:
    if not is_whole(text):
        raise ValueError("text has to be whole characters")
    return text


Id = Annotated[int, Field(strict=True)] | Annotated[str, Field(strict=True), AfterValidator(_whole_text)]
Ids = list[Id]


class RecommendBody(BaseModel):
    """What to recommend, and under which rules. Everything has a default: `{}` asks for what suits a newcomer."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "example": {
                "history": ["B004SPHRG0", "B0009V1YR8"],
                "num_items": 10,
                "rules": ["in_stock", "under_20"],
                "deny_item_ids": ["B00021DPQK"],
            }
        },
    )

    history: Ids = Field(
        default_factory=list,
        description="Item ids, oldest first. Those that the index does not know are left out and reported.",
    )
    user: Id | None = Field(
        default=None,
        description="Whose history it is. A model with tokens for users reads it, another does not look at it; `read_user` of "
        "the answer says which.",
    )
    num_items: int = Field(
        default=10,
        description="How many items to answer at most. Fewer come back when the rules allow no more.",
        json_schema_extra={"minimum": 1},
    )
    rules: list[str] = Field(
        default_factory=list, description="Names of rules of the catalog. Every answered item obeys all of them."
    )
    filter: str | None = Field(
        default=None,
        description="An expression over names of rules that every answered item obeys too: `&` both, `|` either, `-` less, and "
        "parentheses, as Python reads them, such as `(fresh | promo) & in_stock - adult`. A `-` needs a space on its left.",
        json_schema_extra={"maxLength": MAX_CHARACTERS},
    )
    deny_item_ids: Ids = Field(default_factory=list, description="Items that must not come back, on top of the rules.")
    num_beams: int | None = Field(
        default=None,
        description="Width of the search; wider is better and slower. Left out, the server's default. A width below "
        "`num_items` is raised to it, since a beam finds one item; the answer says which width was used.",
        json_schema_extra={"minimum": 1},
    )
    scoring: str = Field(
        default="full",
        description="`full`: log probabilities over each level's whole codebook. `allowed`: over the legal codes only.",
        json_schema_extra={"enum": ["full", "allowed"]},
    )
    deadline_ms: float | None = Field(
        default=None,
        description="How soon an answer is of use, in milliseconds from when the request is here. Left out, the server's "
        "objective. A request that cannot be answered by then is refused with 429, as early as that is clear.",
        json_schema_extra={"exclusiveMinimum": 0},
    )

    def to_request(self) -> Request:
        """The engine's request. Raises RequestError where a value cannot be meant."""
        if self.scoring not in ("full", "allowed"):
            raise RequestError(f"scoring has to be 'full' or 'allowed', not {self.scoring[:60]!r}")
        return Request(
            history=tuple(self.history),
            user=self.user,
            num_items=self.num_items,
            rules=tuple(self.rules),
            filter=self.filter,
            deny_item_ids=tuple(self.deny_item_ids),
            num_beams=self.num_beams,
            scoring=self.scoring,
            deadline_s=None if self.deadline_ms is None else self.deadline_ms / 1e3,
        )


class TimingsAnswer(BaseModel):
    """Milliseconds of this request. `prefill`, `rounds` and `constrain` are those of the batch that it ran in."""

    prepare: float = Field(description="Reading ids, joining rules.")
    queue: float = Field(description="Waiting for the batch to begin.")
    prefill: float = Field(description="The forward pass of the prompts.")
    rounds: float = Field(description="The forward passes of the beams.")
    constrain: float = Field(description="Choosing the best legal codes.")
    postprocess: float = Field(description="From codes to item ids.")
    total: float = Field(description="The sum.")


class RecommendAnswer(BaseModel):
    """Items, best first, all of them in the index and allowed by every rule of the request."""

    item_ids: list[ItemId]
    sids: list[list[int]] = Field(description="The Semantic ID of each item: one code per level.")
    scores: list[float] = Field(description="Log probability of each item; items that share a SID share a score.")
    num_valid: int = Field(description="How many items there are, `num_items` or fewer; 0 if the rules allow none.")
    num_beams: int = Field(description="The width of the search that was used.")
    num_history_used: int = Field(description="How many items of the history the model saw.")
    read_user: bool = Field(description="Whether the model was told whose history it is.")
    ignored_history: list[ItemId] = Field(description="Ids of the history that the index does not know.")
    ignored_deny_item_ids: list[ItemId] = Field(description="Denied ids that the index does not know.")
    index_version: str
    rules_generation: int | None = Field(description="1 at start, one more after each reload of the rules.")
    batch_size: int = Field(description="How many requests ran together.")
    timings_ms: TimingsAnswer

    @classmethod
    def of(cls, result: Result) -> "RecommendAnswer":
        timings = result.timings
        return cls(
            item_ids=list(result.item_ids),
            sids=[list(sid) for sid in result.sids],
            scores=list(result.scores),
            num_valid=result.num_valid,
            num_beams=result.num_beams,
            num_history_used=result.num_history_used,
            read_user=result.read_user,
            ignored_history=list(result.ignored_history),
            ignored_deny_item_ids=list(result.ignored_deny),
            index_version=result.index_version,
            rules_generation=result.rules_generation,
            batch_size=result.batch_size,
            timings_ms=TimingsAnswer(
                prepare=timings.prepare * 1e3,
                queue=timings.queue * 1e3,
                prefill=timings.prefill * 1e3,
                rounds=timings.rounds * 1e3,
                constrain=timings.constrain * 1e3,
                postprocess=timings.postprocess * 1e3,
                total=timings.total * 1e3,
            ),
        )


class ErrorDetail(BaseModel):
    type: str = Field(description="The class of the error, such as `UnknownRuleError`.")
    message: str = Field(description="What was expected, what came, how to mend it.")
    reason: str | None = Field(
        default=None, description="With 429 and 503: a word for why, such as `queue_full`; the metrics count by it."
    )
    retry_after_ms: int | None = Field(
        default=None, description="With 429 and 503: when to come again; `Retry-After` in full seconds."
    )


class ErrorAnswer(BaseModel):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class Health(BaseModel):
    """The process is up."""

    alive: bool = True


class Readiness(BaseModel):
    """Whether requests are answered now, and from what."""

    ready: bool
    reason: str | None = Field(default=None, description="Why not, such as a worker that hangs.")
    index_version: str
    num_items: int
    rules: dict[str, int] = Field(description="Items that each rule allows now.")


def publish_limits(openapi: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Write the engine's limits into the OpenAPI document."""
    properties = openapi["components"]["schemas"]["RecommendBody"]["properties"]
    properties["num_items"]["maximum"] = limits.max_items
    properties["num_beams"]["maximum"] = limits.max_beams
    properties["history"]["maxItems"] = limits.max_history
    properties["deny_item_ids"]["maxItems"] = limits.max_deny
    properties["rules"]["maxItems"] = limits.max_rules
    properties["deadline_ms"]["maximum"] = limits.max_deadline_s * 1000
    return openapi
