"""The OpenAPI document of the HTTP interface, and the page that shows it without scripts."""

import html
import inspect
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from leafbeam.catalog.expression import MAX_CHARACTERS as MAX_EXPRESSION
from leafbeam.engine import Limits
from leafbeam.serve import catalog_schema
from leafbeam.serve.access import need_of
from leafbeam.serve.catalog_schema import MAX_CHARACTERS, MAX_ITEMS
from leafbeam.serve.completion_schema import (
    ChatAnswer,
    ChatBody,
    CompletionAnswer,
    CompletionBody,
    ItemCompletionBody,
)
from leafbeam.serve.schema import (
    ErrorAnswer,
    Health,
    InteractionsAnswer,
    InteractionsBody,
    ModelsAnswer,
    OpenAIError,
    Readiness,
    RecommendAnswer,
    RecommendBody,
    SlowBatchesAnswer,
)

_DESCRIPTION = """Recommendations under rules: every item in an answer is in the index and allowed by each rule that the \
request names. If fewer items are allowed than requested, fewer are returned, and `num_valid` says how many.

Every failure has the body `{"error": {"type": ..., "message": ...}}`: 4xx says what to change in the request; 429 that \
there are more requests than can be answered in time; 503 that the server is unavailable. 429 and 503 carry `Retry-After`."""
_ACCESS = {
    "401": "The server needs a key that it knows",
    "403": "This key may not do this, or it is not taken from there",
}
_RATE = {"429": "This key sends more requests than it may: try again after `Retry-After` seconds"}
_FAILURES = {
    "400": "The body is not JSON, or the request not HTTP/1.1",
    "408": "The headers or the body did not arrive in time",
    "413": "The body is too long",
    "415": "The body is compressed",
    "422": "The request cannot be answered: a wrong type, a value out of bounds, an unknown rule, a deadline in the past",
    "429": "The queue is full, or the deadline cannot be met: try again after `Retry-After` seconds",
    "431": "The headers are too long",
    "500": "The server failed, such as a model with NaN logits",
    "503": "Stopping, or the device does not answer: try another server, or again after `Retry-After` seconds",
}
_CHANGE_FAILURES = _FAILURES | {
    "404": "There is no such item, rule or snapshot",
    "409": "The catalog is read-only here, the key belongs to another request, or the name is taken",
    "415": "The body is compressed, or of another type than items can be sent in",
    "422": "Lines are wrong, and `lines` says which and why; or the rule cannot be evaluated. Nothing was changed",
    "429": "Too many changes wait",
    "503": "The table of items or the disk cannot be written now",
}
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem;text-align:left;
vertical-align:top}code,pre{background:#f4f4f4;padding:.1rem .3rem}pre{padding:.8rem;overflow:auto}h2{margin-top:2.5rem}"""


_EXAMPLES: dict[str, dict[str, Any]] = {
    "RecommendBody": {"history": ["B0009V1YR8"], "num_items": 10, "rules": ["in_stock"], "deny_item_ids": ["B00021DPQK"]},
    "CompletionBody": {"model": "Qwen3-0.6B", "prompt": "A lamp is a", "guided_choice": ["thing", "person"]},
}
_REF = "#/components/schemas/{name}"

_SEARCH = [
    {"name": name, "in": "query", "description": text, "schema": schema}
    for name, text, schema in (
        ("query", "Words of the title, or an id. Empty: the first items.", {"type": "string", "maxLength": MAX_CHARACTERS}),
        ("id", "Ids to look up, in place of a query.", {"type": "array", "items": {"type": "string"}, "maxItems": MAX_ITEMS}),
        ("limit", "The most items of a query.", {"type": "integer", "minimum": 0, "maximum": MAX_ITEMS, "default": 20}),
        ("rule", "Rules that `allowed` and `num_allowed` are about.", {"type": "array", "items": {"type": "string"}}),
        ("filter", "An expression that must hold too.", {"type": "string"}),
    )
]

_KEY_SCHEME = "key"
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key of `leafbeam keys add`, where the server has keys (`--keys`). A route names the scope that it needs; "
    "`write` may do what `read` may, and `admin` everything.",
}


def document_of(
    limits: Limits | None, *, has_text: bool = False, has_catalog: bool = True, learns: bool = True, has_keys: bool = False
) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the routes that this server answers.

    limits: of the engine, None without one. has_text: whether there is a language model. has_catalog: whether items have
    attributes and rules. learns: whether interactions are counted. has_keys: whether clients need a key.
    """
    paths: dict[str, Any] = {}
    types: list[type] = [CompletionAnswer, ModelsAnswer, OpenAIError]
    if limits is not None:
        paths["/v1/recommend"] = _post("recommend", "Recommend items under rules", ["RecommendBody"], "RecommendAnswer")
        if learns:
            summary = "Count interactions in the item memory (with --learn)"
            interactions = _post("count_interactions", summary, ["InteractionsBody"], "InteractionsAnswer", [_KEY])
            paths["/v1/interactions"] = interactions
        paths |= _catalog_paths() if has_catalog else {"/v1/items": {}}
        slow = _get("list_slow_batches", "Batches that took over five times the median", _content("SlowBatchesAnswer"))
        paths["/v1/slow-batches"] = {"get": slow}
        search = _get("find_items", "Items by title or id, and the rules that allow them", _content("FoundItems"))
        failures = {status: text for status, text in (_ACCESS | _CHANGE_FAILURES).items() if status not in ("409", "415")}
        paths["/v1/items"]["get"] = search | {"parameters": _SEARCH}
        paths["/v1/items"]["get"]["responses"] |= _failed("ErrorAnswer", failures)
        types += [RecommendBody, RecommendAnswer, InteractionsBody, InteractionsAnswer, ItemCompletionBody, SlowBatchesAnswer]
        types += catalog_schema.TYPES
    bodies = [*(["CompletionBody"] if has_text else []), *([] if limits is None else ["ItemCompletionBody"])]
    paths["/v1/completions"] = _post(
        "complete", "Texts or items, for clients of OpenAI", bodies, "CompletionAnswer", failure="OpenAIError"
    )
    if has_text:
        types += [CompletionBody, ChatBody, ChatAnswer]
        paths["/v1/chat/completions"] = _post(
            "chat", "The next message of a chat", ["ChatBody"], "ChatAnswer", failure="OpenAIError"
        )
    not_ready = {"503": {"description": "Not ready", "content": _content("Readiness")}}
    paths |= {
        "/v1/models": {"get": _get("list_models", "What `model` may be", _content("ModelsAnswer"))},
        "/healthz": {"get": _get("get_health", "Is the process up?", _content("Health"))},
        "/readyz": {"get": _get("get_readiness", "Does the server answer requests now?", _content("Readiness"), not_ready)},
        "/metrics": {"get": _get("get_metrics", "Counters for Prometheus", {"text/plain": {"schema": {"type": "string"}}})},
    }
    for path, methods in paths.items():
        for method, operation in methods.items():
            operation["security"] = _security_of(method.upper(), path, has_keys=has_keys)
    return {
        "openapi": "3.1.0",
        "info": {"title": "leafbeam", "version": "1", "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": _components(limits, types), "securitySchemes": {_KEY_SCHEME: _BEARER}},
    }


def _security_of(method: str, path: str, *, has_keys: bool) -> list[dict[str, list[str]]]:
    """Return the alternatives of what a request has to bring: a key of a scope, or nothing."""
    need = need_of(method, path)
    if need is None:
        return []
    key = {_KEY_SCHEME: ["write" if need == "learn" else need]}
    return [key] if has_keys else [key, {}]


def _components(limits: Limits | None, types: list[type]) -> dict[str, Any]:
    """The schemas of the OpenAPI document: of these types, and of what every server has. limits: of the engine, if any."""
    _, schemas = msgspec.json.schema_components([*types, ErrorAnswer, Health, Readiness], ref_template=_REF)
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    for name, example in _EXAMPLES.items():
        if name in schemas:
            schemas[name]["example"] = example
    if limits is None:
        return schemas
    schemas["ItemBody"]["additionalProperties"] = True  # attributes
    properties = schemas["RecommendBody"]["properties"]
    properties["filter"]["maxLength"] = MAX_EXPRESSION
    maxima = {"num_items": limits.max_items, "num_beams": limits.max_beams, "deadline_ms": limits.max_deadline_s * 1000}
    for name, maximum in maxima.items():
        properties[name]["maximum"] = maximum
    properties["num_items"]["minimum"] = properties["num_beams"]["minimum"] = 1
    for name, maximum in (("history", limits.max_history), ("deny_item_ids", limits.max_deny), ("rules", limits.max_rules)):
        properties[name]["maxItems"] = maximum
    return schemas


def _catalog_paths() -> dict[str, Any]:
    """The routes that show and change the catalog."""
    item_body = {"$ref": "#/components/schemas/ItemBody"}
    lines: dict[str, Any] = {"application/x-ndjson": {"schema": item_body}}
    lines["application/json"] = {"schema": {"anyOf": [item_body, {"type": "array", "items": item_body}]}}
    snapshot = [{"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}]
    item = [{"name": "item_id", "in": "path", "required": True, "schema": {"type": "string"}}]
    missing = {"name": "missing", "in": "query", "schema": {"type": "string", "enum": ["error", "ignore"], "default": "error"}}
    return {
        "/v1/items": {
            "put": _change("put_items", "Insert or replace items: all lines or none", "ChangeAnswer", lines, [_KEY]),
            "patch": _change(
                "patch_items", "Change the attributes or codes that each line names", "ChangeAnswer", lines, [_KEY]
            ),
            "delete": _change("delete_items", "Remove the items of the lines", "ChangeAnswer", lines, [_KEY, missing]),
        },
        "/v1/items/{item_id}": {
            "get": _change("get_item", "An item, its codes and attributes", "ItemAnswer", None, item),
            "delete": _change("delete_item", "Remove an item", "ChangeAnswer", None, [*item, _KEY]),
        },
        "/v1/catalog": {"get": _change("get_catalog", "The catalog: its size, columns, snapshots", "CatalogAnswer", None, [])},
        "/v1/catalog/reload": {
            "post": _change("reload_catalog", "Read the table of items again, and evaluate all rules", "RulesAnswer", None, [])
        },
        "/v1/catalog/compact": {
            "post": _change("compact_catalog", "Merge all changes in the background", "CatalogAnswer", None, [])
        },
        "/v1/catalog/snapshot": {
            "post": _change("save_snapshot", "Save all items under a name", "SnapshotAnswer", _content("SnapshotBody"), [])
        },
        "/v1/catalog/rollback": {
            "post": _change("roll_back", "Go back to a snapshot", "ChangeAnswer", _content("RollbackBody"), [_KEY]),
        },
        "/v1/catalog/snapshots/{name}": {
            "delete": _change("delete_snapshot", "Remove a snapshot", "CatalogAnswer", None, snapshot)
        },
        "/v1/rules": {"get": _change("list_rules", "All rules", "RulesAnswer", None, [])},
        "/v1/rules/{name}": {
            "get": _change("get_rule", "A rule", "RuleAnswer", None, snapshot),
            "put": _change(
                "put_rule", "Add or replace a rule, once it can be evaluated", "RuleAnswer", _content("RuleBody"), snapshot
            ),
            "delete": _change("delete_rule", "Remove a rule made by PUT", "RuleAnswer", None, snapshot),
        },
    }


_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Of your choice: the same request with the same key is made once, also after a restart.",
    "schema": {"type": "string", "maxLength": 255},
}


def _change(
    name: str, summary: str, answer: str, body: dict[str, Any] | None, parameters: list[dict[str, Any]]
) -> dict[str, Any]:
    """A method of a route of the catalog. name: of the clients' method."""
    return {
        "operationId": name,
        "summary": summary,
        **({"parameters": parameters} if parameters else {}),
        **({} if body is None else {"requestBody": {"required": True, "content": body}}),
        "responses": {
            "200": {"description": "Done", "content": _content(answer)},
            **_failed("ErrorAnswer", _ACCESS | _CHANGE_FAILURES),
        },
    }


def _failed(schema: str, failures: dict[str, str]) -> dict[str, Any]:
    return {status: {"description": text, "content": _content(schema)} for status, text in failures.items()}


def _post(
    name: str,
    summary: str,
    bodies: list[str],
    answer: str,
    parameters: Sequence[dict[str, Any]] = (),
    *,
    failure: str = "ErrorAnswer",
) -> dict[str, Any]:
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            **({"parameters": list(parameters)} if parameters else {}),
            "requestBody": {"required": True, "content": _content(*bodies)},
            "responses": {
                "200": {"description": "Answered", "content": _content(answer)},
                **_failed("ErrorAnswer", _ACCESS),
                **_failed(failure, _FAILURES | ({"404": "There is no such model"} if failure == "OpenAIError" else {})),
            },
        }
    }


def _content(*schemas: str) -> dict[str, Any]:
    refs = [{"$ref": f"#/components/schemas/{schema}"} for schema in schemas]
    return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}


def _get(name: str, summary: str, content: dict[str, Any], failures: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "OK", "content": content},
            **(failures or _failed("ErrorAnswer", _ACCESS | _RATE)),
        },
    }


def page_of(document: dict[str, Any]) -> str:
    """The document as HTML: routes, an example call, and the fields of every schema."""
    schemas = document["components"]["schemas"]
    path, body = ("recommend", "RecommendBody") if "RecommendBody" in schemas else ("completions", "CompletionBody")
    example = json.dumps(schemas[body]["example"])
    parts = [f"<h1>leafbeam</h1><p>{_text(document['info']['description'])}</p>"]
    parts.append('<p>This page as <a href="/openapi.json">OpenAPI</a>.</p><h2>Routes</h2><table>')
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            statuses = ", ".join(sorted(route["responses"]))
            parts.append(f"<tr><td><code>{method.upper()} {path}</code><td>{_text(route['summary'])}<td>{statuses}")
    curl = f"curl -s http://HOST:PORT/v1/{path} -H 'Content-Type: application/json' \\\n  -d"
    parts.append(f"</table><pre>{curl} '{_text(example)}'</pre>")
    for name, schema in schemas.items():
        parts.append(f"<h2 id={name}>{name}</h2><p>{_text(schema.get('description', ''))}</p><table>")
        for field, of in schema.get("properties", {}).items():
            kind = type_of(of, "<a href=#{0}>{0}</a>")
            parts.append(f"<tr><td><code>{field}</code><td>{kind}<td>{_text(of.get('description', ''))}")
        parts.append("</table>")
    parts.append("<h2>Failures</h2><table>")
    parts += [f"<tr><td>{status}<td>{_text(text)}" for status, text in sorted((_ACCESS | _FAILURES).items())]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>leafbeam</title><style>{_STYLE}</style>"
    return f"{head}{''.join(parts)}</table>"


def _text(text: str) -> str:
    """Escaped, with `code` as in Markdown and empty lines as paragraphs."""
    pieces = html.escape(text, quote=False).split("`")
    marked = "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
    return marked.replace("\n\n", "</p><p>")


def _kinds(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a field; the bounds of 64-bit integers are left out."""
    alternatives = schema.get("anyOf", [schema])
    return [{key: value for key, value in one.items() if key not in ("minimum", "maximum")} for one in alternatives]


def type_of(schema: dict[str, Any], link: str = "{0}") -> str:
    """A field's type, bounds and default in one line. link: how the name of another schema is written."""
    if "$ref" in schema:
        return link.format(schema["$ref"].rsplit("/", 1)[1])
    kinds = [
        f"list of {type_of(one['items'], link)}" if "items" in one else one.get("type", "object") for one in _kinds(schema)
    ]
    kind = " or ".join(dict.fromkeys(kinds))
    bounds = [f"{word} {schema[key]:,}" for key, word in _BOUNDS.items() if key in schema]
    default = [f"default {json.dumps(schema['default'])}"] if "default" in schema else []
    return ", ".join([kind, *bounds, *default])


_BOUNDS = {
    "minimum": "from",
    "exclusiveMinimum": "above",
    "maximum": "to",
    "maxItems": "up to",
    "maxLength": "length up to",
}
