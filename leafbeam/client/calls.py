"""Calls: the requests to all routes of a server, and the types of their answers. Nothing here sends anything.

Each function is a method of `Client` and `AsyncClient`, under the same name, which is also its operationId in the
OpenAPI document.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar
from urllib.parse import quote, urlencode
from uuid import uuid4

from leafbeam.errors import ArgumentError, short_repr
from leafbeam.extras import optional_imports

with optional_imports("leafbeam.Client", "client"):
    import msgspec

from leafbeam.serve.catalog_schema import (
    BoostAnswer,
    BoostBody,
    BoostsAnswer,
    CatalogAnswer,
    ChangeAnswer,
    FoundItems,
    ItemAnswer,
    RollbackBody,
    RuleAnswer,
    RuleBody,
    RulesAnswer,
    SnapshotAnswer,
    SnapshotBody,
    UserAnswer,
)
from leafbeam.serve.operations import BY_NAME
from leafbeam.serve.schema import (
    Health,
    InteractionBody,
    InteractionsAnswer,
    InteractionsBody,
    ItemId,
    ModelAnswer,
    ModelBody,
    ModelsAnswer,
    Readiness,
    RecommendAnswer,
    RecommendBody,
    SlowBatchesAnswer,
)

JSON_LINES = "application/x-ndjson"
Scoring = Literal["full", "allowed", "vocabulary"]
Channel = Literal["model", "memory", "fused"]
T = TypeVar("T")
AnswerT = TypeVar("AnswerT", covariant=True)


@dataclass(frozen=True, kw_only=True)
class Call(Generic[AnswerT]):
    """A request, and the way to read its answer.

    Args:
        method: The HTTP method.
        target: The path and the query, percent-encoded.
        answer: The type of the answer's JSON; `str` for text, `bytes` for the body as it came.
        body: The body of the request.
        content_type: The type of the body.
        key: The header Idempotency-Key.
        repeatable: Whether it may be sent again if the answer was lost, because it only reads, changes nothing the
            second time, or has a key.
        statuses: The HTTP statuses that are an answer, and not an error.
    """

    method: str
    target: str
    answer: type[AnswerT]
    body: bytes | None = field(default=None, repr=False)
    content_type: str = "application/json"
    key: str | None = None
    repeatable: bool = True
    statuses: frozenset[int] = frozenset([200])


def recommend(
    history: Sequence[ItemId] = (),
    *,
    user: ItemId | None = None,
    num_items: int = 10,
    rules: Sequence[str] = (),
    filter: str | None = None,
    deny_item_ids: Sequence[ItemId] = (),
    keep_history: bool = False,
    num_beams: int | None = None,
    scoring: Scoring = "full",
    channel: Channel | None = None,
    boosts: Mapping[str, float] | None = None,
    at_most: Mapping[str, int] | None = None,
    at_least: Mapping[str, int] | None = None,
    explain: bool = False,
    deadline_ms: float | None = None,
) -> Call[RecommendAnswer]:
    """Recommend items after a history, under rules: `POST /v1/recommend`.

    The arguments are those of `leafbeam.engine.Request`.
    """
    body = RecommendBody(
        history=list(history),
        user=user,
        num_items=num_items,
        rules=_names("rules", rules),
        filter=filter,
        deny_item_ids=list(deny_item_ids),
        keep_history=keep_history,
        num_beams=num_beams,
        scoring=scoring,
        channel=channel,
        boosts=dict(boosts or {}),
        at_most=dict(at_most or {}),
        at_least=dict(at_least or {}),
        explain=explain,
        deadline_ms=deadline_ms,
    )
    return _call("recommend", RecommendAnswer, body=_encode(_without_defaults(body)))


def count_interactions(interactions: Iterable[InteractionBody], *, key: str | None = None) -> Call[InteractionsAnswer]:
    """Tell the item memory which items users took, up to 1,000 interactions: `POST /v1/interactions`.

    For `key` see `put_items`.
    """
    body = _encode(InteractionsBody(interactions=list(interactions)))
    return _call("count_interactions", InteractionsAnswer, body=body, key=key or new_key())


def put_items(items: Iterable[Mapping[str, object]], *, key: str | None = None) -> Call[ChangeAnswer]:
    """Insert or replace up to 10,000 items, all or none: `PUT /v1/items`.

    Args:
        items: The items, each with `item_id`, optionally `codes` or `vector`, and attributes by the names of their
            columns. NaN is sent as null.
        key: The idempotency key: a request that is sent again with the same key changes nothing, even from another
            process and after a restart of the server. By default a new key is used for the attempts of this call.

    Raises:
        InvalidRequestError: If an item is wrong; its `lines` say what is wrong with each item.
    """
    return put_lines(encode_lines(items), key)


def put_lines(lines: bytes, key: str | None = None) -> Call[ChangeAnswer]:
    """Insert or replace items that are JSON lines already. The arguments are as for `put_items`."""
    return _change("put_items", lines, key)


def patch_items(items: Iterable[Mapping[str, object]], *, key: str | None = None) -> Call[ChangeAnswer]:
    """Change the attributes or codes that are given for each item, for all items or none: `PATCH /v1/items`.

    Everything else is as for `put_items`.
    """
    return _change("patch_items", encode_lines(items), key)


def delete_items(item_ids: Iterable[ItemId], *, missing_ok: bool = False, key: str | None = None) -> Call[ChangeAnswer]:
    """Remove items, all or none: `DELETE /v1/items`.

    Args:
        item_ids: The ids.
        missing_ok: If true, ids that the server does not have are ignored.
        key: As for `put_items`.
    """
    body = encode_lines({"item_id": item_id} for item_id in item_ids)
    return _change("delete_items", body, key, query="missing=ignore" if missing_ok else "")


def delete_item(item_id: ItemId, *, key: str | None = None) -> Call[ChangeAnswer]:
    """Remove an item: `DELETE /v1/items/{item_id}`. For `key` see `put_items`."""
    return _change("delete_item", None, key, {"item_id": item_id})


def find_items(
    query: str = "",
    *,
    item_ids: Sequence[ItemId] = (),
    limit: int = 20,
    rules: Sequence[str] = (),
    filter: str | None = None,
) -> Call[FoundItems]:
    """Find items by words of their title, or by id, and say which rules allow them: `GET /v1/items`."""
    values = {"query": query, "id": [str(item_id) for item_id in item_ids], "limit": limit, "rule": _names("rules", rules)}
    if filter is not None:
        values["filter"] = filter
    try:
        query = urlencode(values, doseq=True)
    except UnicodeEncodeError:
        raise ArgumentError("query, ids, rules and filter must be valid Unicode") from None
    return _call("find_items", FoundItems, query=query)


def get_user(user: str) -> Call[UserAnswer]:
    """Get the items that a user took, on a server that has a log of interactions: `GET /v1/users/{user}`.

    Raises:
        NotFoundError: If the log has no such user.
    """
    return _call("get_user", UserAnswer, {"user": user})


def get_item(item_id: ItemId) -> Call[ItemAnswer]:
    """Get an item, its codes, its attributes and the rules that allow it: `GET /v1/items/{item_id}`.

    Raises:
        NotFoundError: If there is no such item.
    """
    return _call("get_item", ItemAnswer, {"item_id": item_id})


def get_catalog() -> Call[CatalogAnswer]:
    """Get the size, the columns and the snapshots of the catalog, and whether it can be changed: `GET /v1/catalog`."""
    return _call("get_catalog", CatalogAnswer)


def reload_catalog() -> Call[RulesAnswer]:
    """Read the table of items again and evaluate all rules, as SIGHUP does: `POST /v1/catalog/reload`."""
    return _call("reload_catalog", RulesAnswer)


def load_model(directory: str | None = None) -> Call[ModelAnswer]:
    """Let the server load a model and answer later requests by it: `POST /v1/model/reload`. It is not sent again if its answer
    is lost.

    Args:
        directory: The directory of the model on the server; None reads that of the served model again.
    """
    return _call("load_model", ModelAnswer, body=_encode(ModelBody(directory=directory)), repeatable=False)


def compact_catalog() -> Call[CatalogAnswer]:
    """Merge all changes in the background: `POST /v1/catalog/compact`."""
    return _call("compact_catalog", CatalogAnswer)


def save_snapshot(name: str) -> Call[SnapshotAnswer]:
    """Save all items under a name: `POST /v1/catalog/snapshot`. It is not sent again if its answer is lost."""
    return _call("save_snapshot", SnapshotAnswer, body=_encode(SnapshotBody(name=name)), repeatable=False)


def roll_back(snapshot: str | None = None, *, key: str | None = None) -> Call[ChangeAnswer]:
    """Return to a snapshot, by default the newest: `POST /v1/catalog/rollback`. For `key` see `put_items`."""
    body = _encode(RollbackBody(snapshot=snapshot))
    return _call("roll_back", ChangeAnswer, body=body, key=key or new_key())


def delete_snapshot(name: str) -> Call[CatalogAnswer]:
    """Remove a snapshot: `DELETE /v1/catalog/snapshots/{name}`. It is not sent again if its answer is lost."""
    return _call("delete_snapshot", CatalogAnswer, {"name": name}, repeatable=False)


def list_rules() -> Call[RulesAnswer]:
    """List all current rules: `GET /v1/rules`."""
    return _call("list_rules", RulesAnswer)


def get_rule(name: str) -> Call[RuleAnswer]:
    """Get a rule: `GET /v1/rules/{name}`.

    Raises:
        NotFoundError: If there is no such rule.
    """
    return _call("get_rule", RuleAnswer, {"name": name})


def put_rule(name: str, where: str, *, refresh: str | None = None) -> Call[RuleAnswer]:
    """Add or replace a rule, if it can be evaluated: `PUT /v1/rules/{name}`.

    Args:
        name: The name of the rule.
        where: An SQL predicate over the columns.
        refresh: The interval at which the rule is evaluated again, such as "60s".
    """
    return _call("put_rule", RuleAnswer, {"name": name}, body=_encode(RuleBody(where=where, refresh=refresh)))


def delete_rule(name: str) -> Call[RuleAnswer]:
    """Remove a rule that `put_rule` made: `DELETE /v1/rules/{name}`. It is not sent again if its answer is lost."""
    return _call("delete_rule", RuleAnswer, {"name": name}, repeatable=False)


def list_boosts() -> Call[BoostsAnswer]:
    """List all current boosts: `GET /v1/boosts`."""
    return _call("list_boosts", BoostsAnswer)


def get_boost(name: str) -> Call[BoostAnswer]:
    """Get a boost: `GET /v1/boosts/{name}`.

    Raises:
        NotFoundError: If there is no such boost.
    """
    return _call("get_boost", BoostAnswer, {"name": name})


def put_boost(name: str, expression: str, *, refresh: str | None = None) -> Call[BoostAnswer]:
    """Add or replace a boost, if it can be evaluated: `PUT /v1/boosts/{name}`.

    Args:
        name: The name of the boost.
        expression: An SQL expression over the columns that yields a number for each item.
        refresh: The interval at which the boost is evaluated again, such as "1h".
    """
    return _call("put_boost", BoostAnswer, {"name": name}, body=_encode(BoostBody(expression=expression, refresh=refresh)))


def delete_boost(name: str) -> Call[BoostAnswer]:
    """Remove a boost that `put_boost` made: `DELETE /v1/boosts/{name}`. It is not sent again if its answer is lost."""
    return _call("delete_boost", BoostAnswer, {"name": name}, repeatable=False)


def list_slow_batches() -> Call[SlowBatchesAnswer]:
    """List the last batches that took more than five times the median: `GET /v1/slow-batches`."""
    return _call("list_slow_batches", SlowBatchesAnswer)


def list_models() -> Call[ModelsAnswer]:
    """List the names that OpenAI's clients may send as `model`: `GET /v1/models`."""
    return _call("list_models", ModelsAnswer)


def get_health() -> Call[Health]:
    """Ask whether the process is up: `GET /healthz`."""
    return _call("get_health", Health)


def get_readiness() -> Call[Readiness]:
    """Ask whether the server answers requests now, and why not: `GET /readyz`. A server that is not ready is not an error."""
    return replace(_call("get_readiness", Readiness), statuses=frozenset([200, 503]))


def get_metrics() -> Call[str]:
    """Get the metrics as text for Prometheus: `GET /metrics`."""
    return _call("get_metrics", str)


def new_key() -> str:
    """Return an Idempotency-Key that no other request has."""
    return uuid4().hex


def encode_lines(items: Iterable[Mapping[str, object]]) -> bytes:
    """Return items as JSON lines.

    Raises:
        ArgumentError: If JSON cannot express a value.
    """
    return b"\n".join(encode_line(item, number) for number, item in enumerate(items, 1))


def encode_line(item: Mapping[str, object], number: int) -> bytes:
    """Return one item as a line of JSON."""
    return _encode(item, f"item {number:,}")


def _call(
    name: str,
    answer: type[T],
    values: Mapping[str, ItemId] | None = None,
    *,
    body: bytes | None = None,
    key: str | None = None,
    query: str = "",
    repeatable: bool = True,
) -> Call[T]:
    """Return a request to an operation of the server. `query` is percent-encoded; `values` are the parts of its path by
    name.
    """
    operation = BY_NAME[name]
    path = operation.path.format(**{name: _part(name, value) for name, value in (values or {}).items()})
    target = f"{path}?{query}" if query else path
    return Call(method=operation.method, target=target, answer=answer, body=body, key=key, repeatable=repeatable)


def _change(
    name: str, body: bytes | None, key: str | None, values: Mapping[str, ItemId] | None = None, *, query: str = ""
) -> Call[ChangeAnswer]:
    """Return a change of items, whose body is JSON lines."""
    call = _call(name, ChangeAnswer, values, body=body, key=key or new_key(), query=query)
    return replace(call, content_type=JSON_LINES)


def _names(argument: str, names: Sequence[str]) -> list[str]:
    if isinstance(names, str):  # would be taken as a list of its letters
        raise ArgumentError(f"{argument}: expected a list of names, not the text {short_repr(names)}")
    return list(names)


def _part(argument: str, value: ItemId) -> str:
    """Return a value as one part of a path."""
    text = str(value)
    if not text:
        raise ArgumentError(f"{argument} must not be empty")
    try:
        return quote(text, safe="").replace(".", "%2E")  # "." and ".." would lead to another path
    except UnicodeEncodeError:
        raise ArgumentError(f"{argument} must be valid Unicode, not {short_repr(value)}") from None


def _without_defaults(body: RecommendBody) -> dict[str, object]:
    """Return the fields that differ from their defaults, so that an older server need not know the others."""
    fields, plain = msgspec.structs.asdict(body), RecommendBody()
    return {name: value for name, value in fields.items() if value != getattr(plain, name)}


def _encode(value: object, what: str = "the request") -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ArgumentError(f"{what} holds what JSON does not have: {error}") from None
