"""The OpenAPI document of the HTTP interface, and the page that shows it without scripts."""

import html
import json
from typing import Any

from leafbeam.engine import Limits
from leafbeam.serve.completion_schema import (
    ChatAnswer,
    ChatBody,
    CompletionAnswer,
    CompletionBody,
    ItemCompletionBody,
    ModelsAnswer,
)
from leafbeam.serve.schema import EventsAnswer, EventsBody, OpenAIError, RecommendAnswer, RecommendBody, components

_DESCRIPTION = """Recommendations under rules: every item in an answer is in the index and allowed by each rule that the \
request names. If fewer items are allowed than requested, fewer are returned, and `num_valid` says how many.

Every failure has the body `{"error": {"type": ..., "message": ...}}`: 4xx says what to change in the request; 429 that \
there are more requests than can be answered in time; 503 that the server is unavailable. 429 and 503 carry `Retry-After`."""
_FAILURES = {
    "400": "The body is not JSON, or the request not HTTP/1.1",
    "408": "The headers or the body did not arrive in time",
    "413": "The body is too long",
    "422": "The request cannot be answered: a wrong type, a value out of bounds, an unknown rule, a deadline in the past",
    "429": "The queue is full, or the deadline cannot be met: try again after `Retry-After` seconds",
    "431": "The headers are too long",
    "500": "The server failed, such as a model with NaN logits",
    "503": "Stopping, or the device does not answer: try another server, or again after `Retry-After` seconds",
}
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem;text-align:left;
vertical-align:top}code,pre{background:#f4f4f4;padding:.1rem .3rem}pre{padding:.8rem;overflow:auto}h2{margin-top:2.5rem}"""


def document_of(limits: Limits | None, has_text: bool = False) -> dict[str, Any]:
    """The OpenAPI 3.1 document. limits: of the engine, None without one. has_text: whether there is a language model."""
    paths: dict[str, Any] = {}
    types: list[type] = [CompletionAnswer, ModelsAnswer, OpenAIError]
    if limits is not None:
        paths["/v1/recommend"] = _post("Recommend items under rules", ["RecommendBody"], "RecommendAnswer")
        paths["/v1/events"] = _post("Count interactions in the item memory (with --learn)", ["EventsBody"], "EventsAnswer")
        types += [RecommendBody, RecommendAnswer, EventsBody, EventsAnswer, ItemCompletionBody]
    bodies = [*(["CompletionBody"] if has_text else []), *([] if limits is None else ["ItemCompletionBody"])]
    paths["/v1/completions"] = _post("Texts or items, for clients of OpenAI", bodies, "CompletionAnswer", "OpenAIError")
    if has_text:
        types += [CompletionBody, ChatBody, ChatAnswer]
        paths["/v1/chat/completions"] = _post("The next message of a chat", ["ChatBody"], "ChatAnswer", "OpenAIError")
    not_ready = {"503": {"description": "Not ready", "content": _content("Readiness")}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "leafbeam", "version": "1", "description": _DESCRIPTION},
        "paths": {
            **paths,
            "/v1/models": {"get": _get("What `model` may be", _content("ModelsAnswer"))},
            "/healthz": {"get": _get("Is the process up?", _content("Health"))},
            "/readyz": {"get": _get("Does the server answer requests now?", _content("Readiness"), not_ready)},
            "/metrics": {"get": _get("Counters for Prometheus", {"text/plain": {"schema": {"type": "string"}}})},
        },
        "components": {"schemas": components(limits, types)},
    }


def _post(summary: str, bodies: list[str], answer: str, failure: str = "ErrorAnswer") -> dict[str, Any]:
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": _content(*bodies)},
            "responses": {
                "200": {"description": "Answered", "content": _content(answer)},
                **{status: {"description": text, "content": _content(failure)} for status, text in _FAILURES.items()},
            },
        }
    }


def _content(*schemas: str) -> dict[str, Any]:
    refs = [{"$ref": f"#/components/schemas/{schema}"} for schema in schemas]
    return {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}


def _get(summary: str, content: dict[str, Any], failures: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}, **(failures or {})}}


def page_of(document: dict[str, Any]) -> str:
    """The document as HTML: routes, an example call, and the fields of every schema."""
    schemas = document["components"]["schemas"]
    path, body = ("recommend", "RecommendBody") if "RecommendBody" in schemas else ("completions", "CompletionBody")
    example = json.dumps(schemas[body]["example"])
    parts = [f"<h1>leafbeam</h1><p>{_text(document['info']['description'])}</p>"]
    parts.append('<p>This page as <a href="/openapi.json">OpenAPI</a>.</p><h2>Routes</h2><table>')
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            statuses = ", ".join(route["responses"])
            parts.append(f"<tr><td><code>{method.upper()} {path}</code><td>{_text(route['summary'])}<td>{statuses}")
    curl = f"curl -s http://HOST:PORT/v1/{path} -H 'Content-Type: application/json' \\\n  -d"
    parts.append(f"</table><pre>{curl} '{_text(example)}'</pre>")
    for name, schema in schemas.items():
        parts.append(f"<h2 id={name}>{name}</h2><p>{_text(schema.get('description', ''))}</p><table>")
        for field, of in schema.get("properties", {}).items():
            parts.append(f"<tr><td><code>{field}</code><td>{_type(of)}<td>{_text(of.get('description', ''))}")
        parts.append("</table>")
    parts.append("<h2>Failures</h2><table>")
    parts += [f"<tr><td>{status}<td>{_text(text)}" for status, text in _FAILURES.items()]
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


def _type(schema: dict[str, Any]) -> str:
    """A field's type, bounds and default in one line."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"<a href=#{name}>{name}</a>"
    kinds = [f"list of {_type(one['items'])}" if "items" in one else one.get("type", "object") for one in _kinds(schema)]
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
