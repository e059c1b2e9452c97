"""The OpenAPI document of the HTTP interface, and the page that shows it without scripts."""

import html
import inspect
import json
import re
from collections.abc import Mapping
from typing import get_args

import msgspec

from leafbeam.catalog.expression import MAX_CHARACTERS as MAX_EXPRESSION
from leafbeam.config_file import meanings_of
from leafbeam.engine import Channel, Limits, Request, Result, Scoring, Timings
from leafbeam.json_reader import Json
from leafbeam.serve import catalog_schema
from leafbeam.serve.completion_schema import (
    ChatAnswer,
    ChatBody,
    CompletionAnswer,
    CompletionBody,
    ItemCompletionBody,
)
from leafbeam.serve.operations import FAILURES, JSON, OPERATIONS, Operation
from leafbeam.serve.schema import (
    ErrorAnswer,
    Health,
    InteractionsAnswer,
    InteractionsBody,
    ModelAnswer,
    ModelBody,
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
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem;text-align:left;
vertical-align:top}code,pre{background:#f4f4f4;padding:.1rem .3rem}pre{padding:.8rem;overflow:auto}h2{margin-top:2.5rem}"""


_EXAMPLES: dict[str, dict[str, object]] = {
    "RecommendBody": {"history": ["B0009V1YR8"], "num_items": 10, "rules": ["in_stock"], "deny_item_ids": ["B00021DPQK"]},
    "CompletionBody": {"model": "Qwen3-0.6B", "prompt": "A lamp is a", "guided_choice": ["thing", "person"]},
}
_SOURCES = {"RecommendBody": Request, "ItemCompletionBody": Request, "RecommendAnswer": Result, "TimingsAnswer": Timings}
_REF = "#/components/schemas/{name}"

_KEY_SCHEME = "key"
_BEARER = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key made by `leafbeam keys add`, if the server has keys (`--keys`). Each route names the scope that it "
    "needs; `write` includes `read`, and `admin` includes everything.",
}


def document_of(
    limits: Limits | None,
    *,
    has_text: bool = False,
    has_catalog: bool = True,
    learns: bool = True,
    has_users: bool = True,
    has_keys: bool = False,
) -> dict[str, object]:
    """Return the OpenAPI 3.1 document of the routes that this server answers.

    Args:
        limits: The limits of the engine; None without one.
        has_text: Whether there is a language model.
        has_catalog: Whether items have attributes and rules.
        learns: Whether interactions are counted.
        has_users: Whether the histories of users can be looked up.
        has_keys: Whether clients need a key.
    """
    parts = {"items": limits is not None, "texts": has_text, "all": True}
    parts |= {"catalog": parts["items"] and has_catalog, "learn": parts["items"] and learns, "users": has_users}
    bodies = {"CompletionBody": has_text, "ItemCompletionBody": parts["items"]}
    paths: dict[str, dict[str, object]] = {}
    for operation in OPERATIONS:
        if parts[operation.part]:
            methods = paths.setdefault(operation.path, {})
            methods[operation.method.lower()] = _described(operation, bodies, has_keys=has_keys)
    types: list[type] = [CompletionAnswer, ModelsAnswer, OpenAIError]
    if limits is not None:
        types += [RecommendBody, RecommendAnswer, InteractionsBody, InteractionsAnswer, ItemCompletionBody, SlowBatchesAnswer]
        types += [ModelBody, ModelAnswer]
        types += catalog_schema.TYPES
    if has_text:
        types += [CompletionBody, ChatBody, ChatAnswer]
    return {
        "openapi": "3.1.0",
        "info": {"title": "leafbeam", "version": "1", "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": _components(limits, types), "securitySchemes": {_KEY_SCHEME: _BEARER}},
    }


def _described(operation: Operation, bodies: Mapping[str, bool], *, has_keys: bool) -> dict[str, object]:
    """Return an operation as the document has it. bodies: whether this server takes a schema, where not all do."""
    values = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    described: dict[str, object] = {"operationId": operation.name, "summary": operation.summary}
    if parameters := [*values, *operation.parameters]:
        described["parameters"] = parameters
    if operation.body:
        body = operation.body
        content = body if isinstance(body, Mapping) else _content(*(name for name in body if bodies.get(name, True)))
        described["requestBody"] = {"required": True, "content": content}
    failures = {
        status: {"description": text, "content": _content("ErrorAnswer" if status in ("401", "403") else operation.failure)}
        for status, text in operation.failures.items()
    }
    described["responses"] = {"200": {"description": operation.done, "content": _content(operation.answer)}, **failures}
    key = {_KEY_SCHEME: ["write" if operation.need == "learn" else operation.need]}
    described["security"] = [] if operation.need is None else [key] if has_keys else [key, {}]
    return described


def _components(limits: Limits | None, types: list[type]) -> dict[str, object]:
    """Return the schemas of the OpenAPI document: of these types, and of what every server has.

    limits: of the engine, if any.
    """
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
    for name, source in _SOURCES.items():
        meanings, properties = meanings_of(source), schemas[name]["properties"]
        described = {
            field: {**properties.pop(field), "description": meanings[field]} for field in meanings if field in properties
        }
        schemas[name]["properties"] = described | properties
    for name in ("RecommendBody", "ItemCompletionBody"):
        schemas[name]["properties"]["scoring"]["enum"] = list(get_args(Scoring))
        schemas[name]["properties"]["channel"]["enum"] = [*get_args(Channel), None]
    properties = schemas["RecommendBody"]["properties"]
    properties["filter"]["maxLength"] = MAX_EXPRESSION
    maxima = {"num_items": limits.max_items, "num_beams": limits.max_beams, "deadline_ms": limits.max_deadline_s * 1000}
    for name, maximum in maxima.items():
        properties[name]["maximum"] = maximum
    properties["num_items"]["minimum"] = properties["num_beams"]["minimum"] = 1
    for name, maximum in (("history", limits.max_history), ("deny_item_ids", limits.max_deny), ("rules", limits.max_rules)):
        properties[name]["maxItems"] = maximum
    return schemas


def _content(*answers: str) -> dict[str, object]:
    """Return the content of one of some schemas, or of a type that is text."""
    if answers[0].startswith("text/"):
        return {answers[0]: {"schema": {"type": "string"}}}
    refs = [{"$ref": _REF.format(name=name)} for name in answers]
    return {JSON: {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}


def page_of(document: Json) -> str:
    """Return the document as HTML: routes, an example call, and the fields of every schema."""
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
    parts += [f"<tr><td>{status}<td>{_text(text)}" for status, text in sorted(FAILURES.items())]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>leafbeam</title><style>{_STYLE}</style>"
    return f"{head}{''.join(parts)}</table>"


def _text(text: str) -> str:
    """Escaped, with `code` as in Markdown and empty lines as paragraphs."""
    pieces = html.escape(text, quote=False).split("`")
    marked = "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))
    return marked.replace("\n\n", "</p><p>")


def _kinds(schema: Json) -> list[Json]:
    """Return the alternatives of a field; the bounds of 64-bit integers are left out."""
    alternatives = schema.get("anyOf", [schema])
    return [{key: value for key, value in kind.items() if key not in ("minimum", "maximum")} for kind in alternatives]


def type_of(schema: Json, link: str = "{0}") -> str:
    """Return a field's type, bounds and default in one line. link: how the name of another schema is written."""
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
