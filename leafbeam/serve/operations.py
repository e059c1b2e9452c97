"""Operations: the list of all HTTP routes. Handlers, scopes of keys, the OpenAPI document and the clients' calls follow it.

Clients read it too, so this module needs nothing but msgspec.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from leafbeam.json_reader import Json
from leafbeam.serve.catalog_schema import MAX_CHARACTERS, MAX_ITEMS
from leafbeam.serve.keys import Scope

Need = Scope | Literal["learn"]
Part = Literal["items", "catalog", "learn", "users", "texts", "all"]

JSON = "application/json"
_ITEM = {"$ref": "#/components/schemas/ItemBody"}
_ITEMS = {
    "application/x-ndjson": {"schema": _ITEM},
    JSON: {"schema": {"anyOf": [_ITEM, {"type": "array", "items": _ITEM}]}},
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A key of your choice. The same request with the same key is carried out only once, even after a restart.",
    "schema": {"type": "string", "maxLength": 255},
}
_MISSING = {"name": "missing", "in": "query", "schema": {"type": "string", "enum": ["error", "ignore"], "default": "error"}}
_SEARCH = tuple(
    {"name": name, "in": "query", "description": text, "schema": schema}
    for name, text, schema in (
        (
            "query",
            "Words of the title, or an id. An empty query finds the first items.",
            {"type": "string", "maxLength": MAX_CHARACTERS},
        ),
        (
            "id",
            "The ids to look up, in place of a query.",
            {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ITEMS},
        ),
        (
            "limit",
            "The largest number of items that a query finds.",
            {"type": "integer", "minimum": 0, "maximum": MAX_ITEMS, "default": 20},
        ),
        (
            "rule",
            "The rules that `allowed` and `num_allowed` take into account.",
            {"type": "array", "items": {"type": "string"}},
        ),
        ("filter", "An expression that items must also satisfy to be allowed.", {"type": "string"}),
    )
)
_ACCESS = {
    "401": "The server requires a key, and this one is missing or unknown",
    "403": "The scope of this key does not cover the request, or the request comes from an address that may not send it",
}
_ASKED = _ACCESS | {
    "400": "The body is not JSON, or the request is not HTTP/1.1",
    "408": "The headers or the body did not arrive in time",
    "413": "The body is too long",
    "415": "The body is compressed",
    "422": "The request is wrong, for example a type, a value out of range, an unknown rule or a deadline in the past",
    "429": "The queue is full, or the deadline cannot be met: try again after `Retry-After` seconds",
    "431": "The headers are too long",
    "500": "The server failed, for example because the model gave NaN logits",
    "503": "The server is stopping, or its device hangs: try another server, or try again after `Retry-After` seconds",
}
_CHANGED = _ASKED | {
    "404": "There is no such item, rule or snapshot",
    "409": "The catalog is read-only, the `Idempotency-Key` belongs to another request, or the name is taken",
    "415": "The body is compressed, or its `Content-Type` is not one that items can be sent in",
    "422": "Some lines are wrong (`lines` says which and why), or the rule cannot be evaluated. Nothing was changed",
    "429": "Too many changes are waiting",
    "503": "The table of items or the disk cannot be written now",
}
_SEARCHED = {status: text for status, text in _CHANGED.items() if status not in ("409", "415")}
_READ = _ACCESS | {"429": "This key has used up its rate of requests: try again after `Retry-After` seconds"}
_COMPLETED = _ASKED | {"404": "There is no such model"}
FAILURES = _ASKED


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """A method of a path of the HTTP interface.

    Args:
        name: The name of the method in the clients.
        method: The HTTP method.
        path: The path, with names in braces in place of values.
        need: The scope that a key needs; "learn" is for counting interactions; None means that no key is needed.
        part: The part of a server that has the route.
        summary: A few words that say what it does.
        answer: The schema of the answer, or its content type.
        body: The schemas that a body may have, or its contents by content type.
        parameters: The parameters of the query and the headers; those of the path are added from it.
        failures: The meaning of each status of a failure.
        failure: The schema of failures, except for those of access.
        done: The description of status 200.
    """

    name: str
    method: str
    path: str
    need: Need | None
    part: Part = "items"
    summary: str
    answer: str
    body: tuple[str, ...] | Json = ()
    parameters: tuple[Json, ...] = ()
    failures: Mapping[str, str] = field(default_factory=lambda: _CHANGED)
    failure: str = "ErrorAnswer"
    done: str = "Done"

    @property
    def route_path(self) -> str:
        """Return the path in the form that Starlette expects; the id of an item or of a user may contain slashes."""
        return self.path.replace("{item_id}", "{item_id:path}").replace("{user}", "{user:path}")


def _asked(name: str, path: str, summary: str, answer: str, body: tuple[str, ...], **more: object) -> Operation:
    operation = Operation(name=name, method="POST", path=path, need="read", summary=summary, answer=answer, body=body)
    return replace(operation, **({"failures": _ASKED, "done": "Answered"} | more))


def _read(name: str, path: str, summary: str, answer: str, **more: object) -> Operation:
    read = Operation(name=name, method="GET", path=path, need="read", summary=summary, answer=answer)
    return replace(read, **({"failures": _READ, "done": "OK"} | more))


def _catalog(name: str, method: str, path: str, need: Need, summary: str, answer: str, **more: object) -> Operation:
    of_catalog = Operation(name=name, method=method, path=path, need=need, part="catalog", summary=summary, answer=answer)
    return replace(of_catalog, **more)


_OPENAI: dict[str, object] = {"failures": _COMPLETED, "failure": "OpenAIError"}
OPERATIONS = (
    _asked("recommend", "/v1/recommend", "Recommend items under rules", "RecommendAnswer", ("RecommendBody",)),
    _asked(
        "count_interactions",
        "/v1/interactions",
        "Count interactions in the item memory (with --learn)",
        "InteractionsAnswer",
        ("InteractionsBody",),
        need="learn",
        part="learn",
        parameters=(_KEY,),
    ),
    _read(
        "find_items",
        "/v1/items",
        "Find items by title or id, and the rules that allow them",
        "FoundItems",
        parameters=_SEARCH,
        failures=_SEARCHED,
    ),
    _catalog(
        "put_items",
        "PUT",
        "/v1/items",
        "write",
        "Insert or replace items, all lines or none",
        "ChangeAnswer",
        body=_ITEMS,
        parameters=(_KEY,),
    ),
    _catalog(
        "patch_items",
        "PATCH",
        "/v1/items",
        "write",
        "Change the attributes or codes that each line has",
        "ChangeAnswer",
        body=_ITEMS,
        parameters=(_KEY,),
    ),
    _catalog(
        "delete_items",
        "DELETE",
        "/v1/items",
        "write",
        "Remove the items that the lines name",
        "ChangeAnswer",
        body=_ITEMS,
        parameters=(_KEY, _MISSING),
    ),
    _read(
        "get_user",
        "/v1/users/{user}",
        "Return the items that a user took (with --set users)",
        "UserAnswer",
        part="users",
        failures=_READ | {"404": "The log has no such user"},
    ),
    _catalog("get_item", "GET", "/v1/items/{item_id}", "read", "Return an item, its codes and its attributes", "ItemAnswer"),
    _catalog("delete_item", "DELETE", "/v1/items/{item_id}", "write", "Remove an item", "ChangeAnswer", parameters=(_KEY,)),
    _catalog(
        "get_catalog", "GET", "/v1/catalog", "read", "Return the size, columns and snapshots of the catalog", "CatalogAnswer"
    ),
    _catalog(
        "reload_catalog",
        "POST",
        "/v1/catalog/reload",
        "admin",
        "Read the table of items again, and evaluate all rules",
        "RulesAnswer",
    ),
    _catalog("compact_catalog", "POST", "/v1/catalog/compact", "admin", "Merge all changes in the background", "CatalogAnswer"),
    _catalog(
        "save_snapshot",
        "POST",
        "/v1/catalog/snapshot",
        "admin",
        "Save all items under a name",
        "SnapshotAnswer",
        body=("SnapshotBody",),
    ),
    _catalog(
        "roll_back",
        "POST",
        "/v1/catalog/rollback",
        "admin",
        "Go back to a snapshot",
        "ChangeAnswer",
        body=("RollbackBody",),
        parameters=(_KEY,),
    ),
    _catalog("delete_snapshot", "DELETE", "/v1/catalog/snapshots/{name}", "admin", "Remove a snapshot", "CatalogAnswer"),
    _catalog("list_rules", "GET", "/v1/rules", "admin", "Return all rules", "RulesAnswer"),
    _catalog("get_rule", "GET", "/v1/rules/{name}", "admin", "Return a rule", "RuleAnswer"),
    _catalog(
        "put_rule",
        "PUT",
        "/v1/rules/{name}",
        "admin",
        "Add or replace a rule, once it can be evaluated",
        "RuleAnswer",
        body=("RuleBody",),
    ),
    _catalog("delete_rule", "DELETE", "/v1/rules/{name}", "admin", "Remove a rule made by PUT", "RuleAnswer"),
    _catalog("list_boosts", "GET", "/v1/boosts", "admin", "Return all boosts", "BoostsAnswer"),
    _catalog("get_boost", "GET", "/v1/boosts/{name}", "admin", "Return a boost", "BoostAnswer"),
    _catalog(
        "put_boost",
        "PUT",
        "/v1/boosts/{name}",
        "admin",
        "Add or replace a boost, once it can be evaluated",
        "BoostAnswer",
        body=("BoostBody",),
    ),
    _catalog("delete_boost", "DELETE", "/v1/boosts/{name}", "admin", "Remove a boost made by PUT", "BoostAnswer"),
    Operation(
        name="load_model",
        method="POST",
        path="/v1/model/reload",
        need="admin",
        summary="Load a model, and answer later requests by it",
        answer="ModelAnswer",
        body=("ModelBody",),
        failures=_ASKED
        | {
            "409": "Another model is being loaded",
            "422": "The model cannot be loaded, needs more memory than is free, or does not fit the index. Nothing has changed",
        },
        done="The model is served",
    ),
    _read(
        "list_slow_batches", "/v1/slow-batches", "Return the batches that took over five times the median", "SlowBatchesAnswer"
    ),
    _asked(
        "complete",
        "/v1/completions",
        "Generate texts or items, for clients of OpenAI",
        "CompletionAnswer",
        ("CompletionBody", "ItemCompletionBody"),
        part="all",
        **_OPENAI,
    ),
    _asked(
        "chat",
        "/v1/chat/completions",
        "Generate the next message of a chat",
        "ChatAnswer",
        ("ChatBody",),
        part="texts",
        **_OPENAI,
    ),
    _read("list_models", "/v1/models", "Return the names that `model` may have", "ModelsAnswer", part="all"),
    _read("get_health", "/healthz", "Return whether the process runs", "Health", need=None, part="all"),
    _read(
        "get_readiness",
        "/readyz",
        "Return whether the server answers requests now",
        "Readiness",
        need=None,
        part="all",
        failures={"503": "Not ready"},
        failure="Readiness",
    ),
    _read("get_metrics", "/metrics", "Return the metrics for Prometheus", "text/plain", part="all"),
)
BY_NAME = {operation.name: operation for operation in OPERATIONS}
