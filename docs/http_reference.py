"""Writes routes and fields of the OpenAPI document into docs/reference/http.md: `python docs/http_reference.py`.

A part of the page is a table of the routes that begin with some paths, or of the fields of a schema.
"""

import re
from pathlib import Path
from typing import Any

from leafbeam.engine import Limits
from leafbeam.serve.openapi import document_of, type_of

PAGE = Path(__file__).parent / "reference" / "http.md"
_PART = re.compile(r"(<!-- options: ([\w /-]+) -->\n).*?(<!-- end options -->)", re.DOTALL)


def routes_of(document: dict[str, Any], prefixes: list[str]) -> str:
    """A table of routes."""
    rows = [
        f"| `{method.upper()} {path}` | {route['summary']} |"
        for path, methods in document["paths"].items()
        for method, route in methods.items()
        if any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)
    ]
    return "\n".join(["| route | what it does |", "| --- | --- |", *rows]) + "\n"


def fields_of(schema: dict[str, Any]) -> str:
    """A table of the fields of a schema."""
    rows = ["| field | type | meaning |", "| --- | --- | --- |"]
    for name, field in schema["properties"].items():
        text = field.get("description", "").replace("|", "\\|")
        rows.append(f"| `{name}` | {type_of(field)} | {' '.join(text.split())} |")
    return "\n".join(rows) + "\n"


def written(page: str) -> str:
    """The page with its parts as the code has them."""
    document = document_of(Limits(), has_text=True)

    def part(found: re.Match[str]) -> str:
        names = found[2].split()
        is_schema = names[0] in document["components"]["schemas"]
        table = fields_of(document["components"]["schemas"][names[0]]) if is_schema else routes_of(document, names)
        return f"{found[1]}\n{table}\n{found[3]}"

    return _PART.sub(part, page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
