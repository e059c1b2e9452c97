"""Writes leafbeam.ts, a client of the HTTP interface for TypeScript, from the OpenAPI document.

    python examples/typescript/generate.py

It has no dependencies and runs in browsers, Node, Deno and Bun. Pass a file with the /openapi.json of a server for its limits.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FILE, RUNTIME = HERE / "leafbeam.ts", HERE / "runtime.ts"
_HEAD = "// Written by examples/typescript/generate.py from the OpenAPI document of leafbeam. Do not edit.\n"
_SIMPLE = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def written(document: dict[str, Any]) -> str:
    """The whole module."""
    types = [_type(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    routes = [(path, method, route) for path, methods in document["paths"].items() for method, route in methods.items()]
    methods = [_method(path, method, route) for path, method, route in routes]
    runtime = RUNTIME.read_text(encoding="utf-8").replace("  // METHODS\n", "\n".join(methods))
    return "\n".join([_HEAD, *types, runtime])


def _type(name: str, schema: dict[str, Any]) -> str:
    """An interface."""
    required = schema.get("required", [])
    lines = [_comment(schema.get("description", ""), ""), f"export interface {name} {{"]
    for field, of in schema.get("properties", {}).items():
        lines += [_comment(of.get("description", ""), "  "), f"  {field}{'' if field in required else '?'}: {type_of(of)};"]
    if schema.get("additionalProperties") is True:
        lines.append("  [attribute: string]: unknown;")
    return "\n".join([line for line in lines if line] + ["}\n"])


def type_of(schema: dict[str, Any]) -> str:
    """A schema as a type."""
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_of(one) for one in schema["anyOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(dict.fromkeys(type_of({**schema, "type": one}) for one in kind))
    if kind == "array":
        return f"Array<{type_of(schema.get('items', {}))}>"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {type_of(values) if isinstance(values, dict) else 'unknown'}>"
    return _SIMPLE.get(kind or "", "unknown")


def _method(path: str, method: str, route: dict[str, Any]) -> str:
    """A method of the client: parts of the path, the body, then what may be left out."""
    parameters = route.get("parameters", [])
    parts = [one for one in parameters if one["in"] == "path"]
    arguments = [f"{_camel(one['name'])}: string | number" for one in parts]
    target = f'"{path}"'
    for one in parts:
        target = target.replace(f"{{{one['name']}}}", f'" + part({_camel(one["name"])}) + "')
    target, fields = target.removesuffix(' + ""'), list[str]()
    if "requestBody" in route:
        arguments.append(f"body: {type_of(route['requestBody']['content']['application/json']['schema'])}")
        fields.append("body")
    query = [one for one in parameters if one["in"] == "query"]
    if query:
        arguments.append("query: { " + "; ".join(f"{one['name']}?: {type_of(one['schema'])}" for one in query) + " } = {}")
        fields.append("query")
    if any(one["name"] == "Idempotency-Key" for one in parameters):
        arguments.append("key: string = crypto.randomUUID()")
        fields.append("key")
    content = route["responses"]["200"]["content"]
    answer = type_of(content["application/json"]["schema"]) if "application/json" in content else "string"
    call = f'this.send("{method.upper()}", {target}, {{ {", ".join(fields)} }})'.replace("{  }", "{}")
    return "\n".join(
        [
            _comment(f"{route['summary']}: {method.upper()} {path}", "  "),
            f"  {_camel(route['operationId'])}({', '.join(arguments)}): Promise<{answer}> {{",
            f"    return {call};",
            "  }\n",
        ]
    )


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _comment(text: str, indent: str) -> str:
    words = " ".join(text.split()).replace("*/", "* /")
    return f"{indent}/** {words} */" if words else ""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        document = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    else:
        from leafbeam.engine import Limits
        from leafbeam.serve.openapi import document_of

        document = document_of(Limits(), has_text=True)
    FILE.write_text(written(document), encoding="utf-8")
    print(f"{FILE} was written")
